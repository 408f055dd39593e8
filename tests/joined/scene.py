"""The front service under gunicorn, its backend, and a client that asks for each path once.

Says, as its last line, what each handler measured.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
PATHS = ("/follow", "/full", "/window/60", "/window/250", "/window/600")
QUIET = 5


def main():
    backend = subprocess.Popen([sys.executable, HERE / "backend.py"], stdout=subprocess.PIPE, text=True)
    ports = json.loads(backend.stdout.readline())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    front = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--bind", address, "--workers", "1", "--worker-class", "gthread"]
        + ["--threads", "2", "--keep-alive", "0", "--log-level", "warning", "--chdir", HERE, "front:app"],
        env={**os.environ, "BACKEND_PORTS": json.dumps(ports)},
    )
    measured = {"backend": backend.pid, "quiet": []}
    try:
        answer(address, "/quiet", attempts=100)
        time.sleep(1)
        for path in PATHS:
            measured[path] = answer(address, path)
        for _ in range(QUIET):
            start = time.monotonic_ns()
            answer(address, "/quiet")
            measured["quiet"].append(time.monotonic_ns() - start)
    finally:
        for child in (front, backend):
            child.terminate()
            child.wait()
    print(json.dumps(measured), flush=True)


def answer(address, path, attempts=1):
    """What a handler measured."""
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
                return json.loads(response.read())
        except OSError:
            if attempt == attempts - 1:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
