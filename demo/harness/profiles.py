"""Reads profiles and folded stacks."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from harness.processes import DemoError, Processes


def go() -> str:
    """Where Go is."""
    found = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if found is None:
        raise DemoError("Go is not installed: install it (Debian: apt install golang-go), then run this again")
    return found


def seconds_in_profile(processes: Processes, profile: Path, function: str, sample: str) -> tuple[float, float]:
    """The seconds of a function and what it calls, and those of the whole profile, as `go tool pprof` says them."""
    options = ["-top", "-cum", "-nodecount=100000", "-nodefraction=0", "-unit=s", f"-sample_index={sample}"]
    text = processes.run([go(), "tool", "pprof", *options, profile], timeout=120)
    whole = re.search(r"Total samples = ([0-9.]+)s", text)
    part = re.search(rf"([0-9.]+)s\s+[0-9.]+%\s+{re.escape(function)}( \(inline\))?$", text, re.MULTILINE)
    if whole is None:
        raise DemoError(f"{profile} cannot be read:\n{text[:500]}")
    return float(part[1]) if part else 0.0, float(whole[1])


def shares_in_folded(text: str, function: str) -> list[float]:
    """The share of stacks with this function: one for each of the numbers that end a line."""
    whole, part = [], []
    for line in text.splitlines():
        found = re.fullmatch(r"(.*?)((?: -?\d+)+)", line)
        if found is None:
            raise DemoError(f"not a folded stack: {line!r}")
        numbers = [int(number) for number in found[2].split()]
        whole = [a + b for a, b in zip(whole or [0] * len(numbers), numbers)]
        if function in found[1].split(";"):
            part = [a + b for a, b in zip(part or [0] * len(numbers), numbers)]
    return [a / b if b else 0.0 for a, b in zip(part or [0] * len(whole), whole)]
