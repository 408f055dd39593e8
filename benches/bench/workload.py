"""Programs that make a load, start when told, and print what they did."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from bench.observers import WORKLOADS, BenchError

TIME_LIMIT_S = 120


def compiled(folder: Path, name: str, *options: str) -> Path:
    """A workload in C, compiled once."""
    binary = folder / name
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = WORKLOADS / f"{name}.c"
        subprocess.run(["cc", "-O2", "-pthread", *options, str(source), "-o", str(binary)], check=True)
    return binary


class Workload:
    """A program that has started and waits for its line on standard input."""

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_exception) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def go(self) -> dict:
        """Let it run to its end. Returns what it printed."""
        try:
            output, _ = self._process.communicate("go\n", timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self._process.args} did not end within {TIME_LIMIT_S} s") from None
        if self._process.returncode:
            raise BenchError(f"{self._process.args} failed with status {self._process.returncode}")
        return json.loads(output)


def switches(folder: Path, way: str, pairs: int, seconds: float, rate: int = 0) -> Workload:
    """Threads that wake each other over pipes or futexes; `rate` in rounds a second, 0: without limit."""
    return Workload([str(compiled(folder, "switches")), way, str(pairs), str(seconds), str(rate)])


class Handoffs(Workload):
    """A service that plays turns: threads that hand requests to and fro, with work in between."""

    def __init__(self, folder: Path) -> None:
        library = compiled(folder, "handoffs", "-shared", "-fPIC")
        super().__init__([sys.executable, str(WORKLOADS / "handoffs.py"), str(library)])
        self._answer()

    def play(self, work: int, rate: float, seconds: float) -> dict:
        """One turn; `rate` in requests a second, 0: as many as there can be. Returns what was done."""
        self._process.stdin.write(json.dumps({"work": work, "rate": rate, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self._process.args} ended")
        return line


def gil(way: str, threads: int, acquisitions: int) -> Workload:
    """Threads that give the GIL away and take it again, so many times in all."""
    return Workload([sys.executable, str(WORKLOADS / "gil.py"), way, str(threads), str(acquisitions // threads)])


def open_loop(folder: Path, port: int, path: str, rate: float, seconds: float) -> dict:
    """HTTP requests at fixed times, to their end. Returns what the clients saw."""
    argv = [str(compiled(folder, "openloop")), str(port), path, str(rate), str(seconds)]
    output = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TIME_LIMIT_S)
    return json.loads(output.stdout)


def wrk(port: int, path: str, seconds: int, connections: int, keep_alive: bool) -> dict:
    """As many HTTP requests as there are answers, over so many connections (a closed loop)."""
    argv = ["wrk", "--latency", "-t1", f"-c{connections}", f"-d{seconds}s", f"http://127.0.0.1:{port}{path}"]
    if not keep_alive:
        argv += ["-H", "Connection: close"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=TIME_LIMIT_S).stdout
    if "Non-2xx" in text:
        raise BenchError(f"wrk got errors for answers:\n{text}")
    return {
        "answered": int(_find(r"(\d+) requests in", text)[0]),
        "rate": float(_find(r"Requests/sec:\s+([\d.]+)", text)[0]),
        "p50": _nanoseconds(*_find(r"50%\s+([\d.]+)(us|ms|s)", text)),
        "p99": _nanoseconds(*_find(r"99%\s+([\d.]+)(us|ms|s)", text)),
    }


def _find(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    if not found:
        raise BenchError(f"wrk said something unexpected:\n{text}")
    return found.groups()


def _nanoseconds(number: str, unit: str) -> float:
    return float(number) * {"us": 1e3, "ms": 1e6, "s": 1e9}[unit]
