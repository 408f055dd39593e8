"""Storage: fsync, reads from a cold file, and page faults on a cold mapping."""

import mmap
import os
import random
import resource
import tempfile

from clock import Phase, Thread, run

PAGE = mmap.PAGESIZE
PAGES = 6000


def cold(file):
    """Throws the file's pages out of the page cache, so that the next look at them has to wait."""
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def syncs():
    """Each takes a fraction of a millisecond: too short for a row, so only the cells see it."""
    with tempfile.TemporaryFile() as file:
        with Phase("200 small fsyncs") as phase:
            for _ in range(200):
                os.write(file.fileno(), b"x" * PAGE)
                os.fsync(file.fileno())
        phase.cell("disk_io", at_least_ms=5)


def big_sync():
    with tempfile.TemporaryFile() as file:
        for _ in range(128):
            os.write(file.fileno(), b"x" * (1 << 20))
        with Phase("fsync of 128 MiB") as phase:
            os.fsync(file.fileno())
        phase.cell("disk_io", at_least_ms=5)


def shuffled():
    order = list(range(PAGES))
    random.Random(1).shuffle(order)  # no read-ahead will guess this
    return order


def reads():
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(PAGES * PAGE))
        file.flush()
        cold(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

        def read():
            with Phase("reads from a cold file") as phase:
                for page in shuffled():
                    os.pread(file.fileno(), 16, page * PAGE)
            phase.cell("disk_io", at_least_ms=20)

        run(Thread("reader", read))


def faults():
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(PAGES * PAGE))
        file.flush()
        cold(file)
        mapping = mmap.mmap(file.fileno(), PAGES * PAGE, prot=mmap.PROT_READ)
        mapping.madvise(mmap.MADV_RANDOM)  # or one fault would bring many pages

        def touch():
            order = shuffled()
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
            with Phase("page faults on a cold mapping") as phase:
                for page in order:
                    mapping[page * PAGE]
            faulted = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before
            if faulted < PAGES * 9 // 10:
                raise RuntimeError(f"only {faulted} of {PAGES} pages were cold")
            phase.cell("page_fault", at_least_ms=20)

        run(Thread("toucher", touch))


run(Thread("syncer", syncs))
run(Thread("syncer", big_sync))
reads()
faults()
