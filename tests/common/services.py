"""The services of tests/services: starts them, learns their ports, asks them."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import urllib.request

SERVICES = pathlib.Path(__file__).resolve().parents[1] / "services"


def service(name: str, *words) -> list[str]:
    """The command of one of them."""
    return [sys.executable, str(SERVICES / name), *map(str, words)]


def port_in(line: str) -> int:
    """Of what a service says when it listens: `port N`."""
    return int(line.split()[1])


@contextlib.contextmanager
def running(command: list[str]):
    """A process that is killed in the end; its output can be read."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def serving(name: str):
    """A service, not watched from its start. Yields its pid and its port."""
    with running(service(name)) as process:
        yield process.pid, port_in(process.stdout.readline())


def ask(port: int, path: str, limit_s: float = 60) -> None:
    """One request, answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=limit_s) as answer:
        answer.read()
