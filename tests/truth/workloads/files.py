"""Storage: fsync, reads from a cold file, and page faults on a cold mapping.

The thread waits a few dozen times in each, not thousands: at every switch the kernel's own accounts
are off by some microseconds, and thousands would make the truth uncertain.
"""

import mmap
import os
import resource
import tempfile

from clock import Phase, Thread, run

PAGE = mmap.PAGESIZE
SIZE = 96 << 20
TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def cold_file():
    """A file of which nothing is in the page cache."""
    file = tempfile.TemporaryFile()
    file.write(os.urandom(SIZE))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def stolen():
    """What the hypervisor has taken from this machine since it was started, in ns."""
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8]) * TICK


def storage(label, state, at_least_ms, work):
    """A thread that does `work`. The host's own part of an I/O may run where the thread ran, so
    this is where hypervisors steal; they tell in whole ticks only."""

    def wait():
        before = stolen()
        with Phase(label) as phase:
            work()
        after = stolen()
        if phase.blocked < at_least_ms * 1_000_000:
            raise RuntimeError(f"{label}: blocked for {phase.blocked} ns only")
        phase.off_cpu(state, 0, stolen=after - before + TICK if after else 0)

    run(Thread("storage", wait))


def syncs():
    """Each takes a fraction of a millisecond: too short for a row, so only the cells see it."""
    with tempfile.TemporaryFile() as file:

        def sync():
            for _ in range(30):
                os.write(file.fileno(), b"x" * PAGE)
                os.fsync(file.fileno())

        storage("30 small fsyncs", "disk_io", 1, sync)


def big_sync():
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(SIZE))
        file.flush()
        storage("fsync of 96 MiB", "disk_io", 10, lambda: os.fsync(file.fileno()))


def reads():
    with cold_file() as file:

        def read():
            while file.read(1 << 20):
                pass

        file.seek(0)
        storage("reads a cold file", "disk_io", 10, read)


def faults():
    with cold_file() as file:
        mapping = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)

        def touch():
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
            for offset in range(0, SIZE, PAGE):
                mapping[offset]
            if resource.getrusage(resource.RUSAGE_THREAD).ru_majflt == before:
                raise RuntimeError("no page was cold")

        storage("page faults on a cold mapping", "page_fault", 10, touch)


syncs()
big_sync()
reads()
faults()
