"""A cgroup with a CPU quota, in either version."""

import contextlib
import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class Cgroup:
    """Goes at the end; whoever is in it must have ended."""

    def __init__(self, name):
        self.path = f"/underspan-{name}-{os.getpid()}"
        self._is_v2 = (ROOT / "cgroup.controllers").exists()
        self._root = ROOT if self._is_v2 else ROOT / "cpu"
        self._folder = self._root / self.path[1:]
        self.cpu_stat = self._folder / "cpu.stat"

    def __enter__(self):
        if self._is_v2:
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self._folder.mkdir()
        return self

    def __exit__(self, *_):
        # The kernel takes a moment to empty it.
        for _ in range(100):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.05)

    def limit(self, cpus):
        """From now on its processes have so much of a CPU."""
        quota = int(cpus * PERIOD_US)
        if self._is_v2:
            (self._folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota))

    def add(self, pid):
        """Moves a process into it."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    @contextlib.contextmanager
    def inside(self):
        """What is started meanwhile is in it."""
        own = self._own()
        self.add(os.getpid())
        try:
            yield
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))

    def _own(self):
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if (self._is_v2 and not controllers) or "cpu" in controllers.split(","):
                return self._root / path[1:]
        return self._root


def throttled_ns(cpu_stat):
    """For how long the kernel has held a cgroup back: what it says in a file `cpu.stat`."""
    counters = dict(line.split() for line in pathlib.Path(cpu_stat).read_text().splitlines())
    if "throttled_usec" in counters:
        return int(counters["throttled_usec"]) * 1000
    return int(counters["throttled_time"])


@contextlib.contextmanager
def on_one_cpu():
    """What is started meanwhile stays on one CPU: the kernel adds up the time that each CPU's queue of
    a cgroup was held back, which two may be at the same time, and a thread is in one only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
