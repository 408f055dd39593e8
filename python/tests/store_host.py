"""A real store host for the tests, on a free port, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

PYTHON_FOLDER = Path(__file__).resolve().parents[1]


class Host:
    """The store host, started as the supervisor starts it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "underspan.store", "--data", str(folder), "--port", "0"]
            + ["--supervised", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PYTHON_FOLDER)},
        )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read())
        self.url = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])
        self.token = (folder / "token").read_text().strip()

    def ask(self, body: bytes | str = b"", headers: dict | None = None, **parameters: str):
        """Sends one request with the token; returns status, headers and body."""
        data = body.encode() if isinstance(body, str) else body
        request = urllib.request.Request(
            f"{self.url}/?{urlencode(parameters)}",
            data=data,
            headers={"X-ClickHouse-Key": self.token, **(headers or {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def ok(self, body: bytes | str = b"", **parameters: str) -> bytes:
        """The body of an answer that must be a success."""
        status, _, answer = self.ask(body, **parameters)
        assert status == 200, answer
        return answer

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Stops the host and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(40)
        finally:
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                pipe.close()
