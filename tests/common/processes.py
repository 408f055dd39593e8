"""What /proc says of processes."""

from __future__ import annotations

import pathlib


def status(pid: int | str) -> dict[str, str]:
    """`/proc/PID/status`; also of a thread, as `PID/task/TID`."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    """Children of any of a process's threads."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
