"""The machine: what it is, whether it is quiet, and who used its CPUs."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
QUIET_LOAD = 1.0
# Others may use so much of the machine, in percent, before a run counts as disturbed.
QUIET_PERCENT = 5


def facts() -> str:
    """One line: the day, CPUs, kernel, memory, interpreter."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown CPU")
    virtual = " (virtual machine)" if any(" hypervisor" in line for line in cpuinfo) else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"{day}, {os.cpu_count()} CPUs, {model}{virtual}, {memory:.0f} GiB; Linux {platform.release()}; "
        f"CPython {platform.python_version()}"
    )


def await_quiet(seconds: float) -> float:
    """Wait until little else runs, but not longer than this. Returns the load average of the last minute."""
    deadline = time.monotonic() + seconds
    while os.getloadavg()[0] >= QUIET_LOAD and time.monotonic() < deadline:
        time.sleep(1)
    return os.getloadavg()[0]


def busy_s() -> float:
    """CPU time that everything together has used, the kernel included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / TICKS


def own_s() -> float:
    """CPU time of this program and of all it started that have ended."""
    return sum(os.times()[:4])


def process_cpu_s(pid: int) -> float:
    """CPU time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_rss(pid: int) -> int:
    """The most memory a process has had resident, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def python_library() -> Path:
    """The file that holds CPython's functions: libpython, or the interpreter itself."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition(" ")[2]
        if "/libpython3." in name:
            return Path(name)
    return Path(sys.executable).resolve()
