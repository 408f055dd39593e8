"""The command as its user meets it, with time limits: nothing here may hang."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from common.services import port_in

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]
# Whatever it is, it has been said by then. Generous: other work may keep the machine busy.
LIMIT_S = 60


@dataclass(frozen=True)
class Said:
    """What a command that ended said."""

    status: int
    out: str
    err: str
    seconds: float

    def rows(self) -> list[dict]:
        """Its output, as rows of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    def failed(self, *words: str, status: int = 1, hint: str = "") -> None:
        """Checks that it failed as it should: a message that says what, why and what to do."""
        assert self.status == status, self
        assert self.out == "", self
        lines = [line for line in self.err.splitlines() if not is_progress(line)]
        assert lines, self
        assert lines[0].startswith("underspan: "), self
        text = "\n".join(lines)
        for word in words:
            assert word in text, f"no {word!r} in {self.err}"
        for noise in ("panicked", "aborting", "Traceback", "RUST_BACKTRACE", "os error 2)\n\n"):
            assert noise not in self.err, self
        # One line that says what, one hint, and what others said, indented.
        assert len([line for line in lines if not line.startswith("  ")]) <= 2, self
        if hint:
            assert hint in lines[-1] or any(hint in line for line in lines), self


def is_progress(line: str) -> bool:
    """Lines that say what is being done, and warnings that came before the failure."""
    doing = ("looking for", "starting the", "the embedded store answers", "another process is")
    doing += ("watching", "stopping", "API at", "taking spans", "done;")
    said = line.removeprefix("underspan: ")
    return (line != said and said.startswith(doing)) or line.lstrip().startswith(("WARN", "INFO"))


class Underspan:
    """The program under test, with a Python that has the embedded store."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.env = dict(os.environ)
        self.env.setdefault("UNDERSPAN_PYTHON", sys.executable)
        for name in ("UNDERSPAN_STORE", "UNDERSPAN_DATA", "RUST_LOG", "SUDO_USER"):
            self.env.pop(name, None)

    def __call__(self, *words, limit: float = LIMIT_S, before=(), env=None, **options) -> Said:
        """Runs it to its end. `before`: words in front of it, such as `setpriv … --`."""
        start = time.monotonic()
        command = [*before, self.program, *map(str, words)]
        options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env={**self.env, **(env or {})},
            check=False,
            **options,
        )
        return Said(done.returncode, done.stdout, done.stderr, time.monotonic() - start)

    @contextlib.contextmanager
    def going(self, *words, before=(), env=None, **options):
        """Runs it beside the test, and makes sure that it has ended afterwards."""
        going = Going([*before, self.program, *map(str, words)], {**self.env, **(env or {})}, options)
        try:
            yield going
        finally:
            going.end()

    @contextlib.contextmanager
    def serving(self, data, store_port: int = 0):
        """Runs a server on a folder beside the test, and yields it when its store answers."""
        words = ["--no-otlp", "--api", "127.0.0.1:0", "--store-port", store_port]
        with self.going("server", "--data", data, *words) as going:
            going.wait_for("API at")
            endpoint = json.loads((data / "endpoint.json").read_text())
            yield Serving(going, endpoint["url"], endpoint["pid"], (data / "token").read_text().strip())

    def sql(self, data, query: str, *words) -> list[dict]:
        """The rows of a query."""
        said = self("sql", query, "--json", "--data", data, *words)
        assert said.status == 0, said
        return said.rows()


@dataclass(frozen=True)
class Serving:
    """A server that runs beside the test."""

    going: Going
    # Of its store: `http://HOST:PORT`, the process, and what opens it.
    address: str
    host_pid: int
    token: str

    @property
    def port(self) -> int:
        """Of its store."""
        return int(self.address.rpartition(":")[2])

    def url(self, user: str | None = None) -> str:
        """Of its store, for who has its token, or for `USER:PASSWORD@`."""
        user = f"default:{self.token}@" if user is None else user
        return self.address.replace("http://", f"http://{user}") + "/default"


class Going:
    """A command that runs beside the test."""

    def __init__(self, command, env, options) -> None:
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self.process.pid
        self.out, self.err = [], []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream, into) -> None:
        for line in stream:
            into.append(line)

    def wait_for(self, text: str, limit: float = LIMIT_S, out_only: bool = False) -> str:
        """Waits until it says something, and returns the line."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            for line in self.out if out_only else [*self.err, *self.out]:
                if text in line:
                    return line
            assert self.process.poll() is None, f"ended without {text!r}: {self.err}"
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} after {limit} s: {self.err}")

    def service_port(self) -> int:
        """Where a service of tests/services listens that is its command, as soon as it does."""
        return port_in(self.wait_for("port ", out_only=True))

    def send(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self, limit: float = LIMIT_S) -> Said:
        """Waits for its end."""
        start = time.monotonic()
        status = self.process.wait(limit)
        for reader in self._readers:
            reader.join(10)
        return Said(status, "".join(self.out), "".join(self.err), time.monotonic() - start)

    def end(self) -> None:
        """Ends it, if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise


def until(what: str, check, limit: float = LIMIT_S):
    """Waits until something is so, and returns it."""
    deadline = time.monotonic() + limit
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.2)
