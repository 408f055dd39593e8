"""What the scenes have in common: services under gunicorn, and how they are asked and ended."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

from common.ports import free_port

HERE = pathlib.Path(__file__).resolve().parent


def gunicorn(app, environment, *options):
    """A service of one worker process, and where it listens."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gunicorn", "--bind", address, "--workers", "1", "--keep-alive", "0"]
    command += ["--log-level", "warning", "--chdir", HERE, *options, app]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), **environment}
    return subprocess.Popen(command, env=environment), address


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


@contextlib.contextmanager
def ended_at_last(*children):
    """Processes that end with the scene, however that does."""
    try:
        yield
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
