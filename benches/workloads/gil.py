"""A known number of GIL acquisitions: each write or sleep gives the GIL away and takes it again.

    gil.py write|sleep THREADS ACQUISITIONS_PER_THREAD

A write to /dev/null comes back at once, as most input and output does; a sleep leaves the CPU each time. Starts
when a line comes in on standard input, and prints one JSON object.
"""

import json
import os
import resource
import sys
import threading
import time


def write(count: int) -> None:
    write, nowhere = os.write, os.open(os.devnull, os.O_WRONLY)
    for _ in range(count):
        write(nowhere, b".")


def sleep(count: int) -> None:
    sleep = time.sleep
    for _ in range(count):
        sleep(0)


def usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def main(way: str, threads: int, count: int) -> None:
    workers = [threading.Thread(target={"write": write, "sleep": sleep}[way], args=(count,)) for _ in range(threads)]
    sys.stdin.readline()
    begin, start = usage(), time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, end = time.monotonic() - start, usage()
    print(
        json.dumps(
            {
                "acquisitions": threads * count,
                "seconds": seconds,
                "cpu_s": end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime,
                "switches": end.ru_nvcsw + end.ru_nivcsw - begin.ru_nvcsw - begin.ru_nivcsw,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
