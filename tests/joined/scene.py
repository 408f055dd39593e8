"""The front service under gunicorn, its backend, and a client that asks for each path once.

Says, as its last line, what each handler measured.
"""

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common.services import service
from stage import answer, ended_at_last, gunicorn

PATHS = ("/follow", "/full", "/window/60", "/window/250", "/window/600")
QUIET = 5


def main():
    backend = subprocess.Popen(service("backend.py"), stdout=subprocess.PIPE, text=True)
    ports = backend.stdout.readline()
    options = ["--worker-class", "gthread", "--threads", "2"]
    front, address = gunicorn("front:app", {"BACKEND_PORTS": ports}, *options)
    measured = {"backend": backend.pid, "quiet": []}
    with ended_at_last(front, backend):
        answer(address, "/quiet", attempts=100)
        time.sleep(1)
        for path in PATHS:
            measured[path] = answer(address, path)
        for _ in range(QUIET):
            start = time.monotonic_ns()
            answer(address, "/quiet")
            measured["quiet"].append(time.monotonic_ns() - start)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
