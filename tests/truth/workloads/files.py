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


def cold_file():
    """A file of which nothing is in the page cache."""
    file = tempfile.TemporaryFile()
    file.write(os.urandom(SIZE))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def syncs():
    """Each takes a fraction of a millisecond: too short for a row, so only the cells see it."""
    with tempfile.TemporaryFile() as file:

        def sync():
            with Phase("30 small fsyncs") as phase:
                for _ in range(30):
                    os.write(file.fileno(), b"x" * PAGE)
                    os.fsync(file.fileno())
            phase.off_cpu("disk_io", at_least_ms=2)

        run(Thread("syncer", sync))


def big_sync():
    """The thread only waits for what another wrote: a hypervisor that takes the CPU from a thread
    while it copies would be in the kernel's account, as time off the CPU."""
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(SIZE))
        file.flush()

        def sync():
            with Phase("fsync of 96 MiB") as phase:
                os.fsync(file.fileno())
            phase.off_cpu("disk_io", at_least_ms=10)

        run(Thread("syncer", sync))


def reads():
    with cold_file() as file:

        def read():
            with Phase("reads a cold file") as phase:
                while file.read(1 << 20):
                    pass
            phase.off_cpu("disk_io", at_least_ms=10)

        file.seek(0)
        run(Thread("reader", read))


def faults():
    with cold_file() as file:
        mapping = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)

        def touch():
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
            with Phase("page faults on a cold mapping") as phase:
                for offset in range(0, SIZE, PAGE):
                    mapping[offset]
            if resource.getrusage(resource.RUSAGE_THREAD).ru_majflt == before:
                raise RuntimeError("no page was cold")
            phase.off_cpu("page_fault", at_least_ms=10)

        run(Thread("toucher", touch))


syncs()
big_sync()
reads()
faults()
