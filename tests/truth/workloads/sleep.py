"""A thread asks to sleep: once for long, and many times for too short to be a wait row."""

import time

from clock import Phase, Thread, run


def long_sleep():
    with Phase("one sleep") as phase:
        time.sleep(0.2)
    phase.wait("sleep", at_least_ms=200)
    phase.cell("sleep", at_least_ms=200)


def short_sleeps():
    with Phase("100 short sleeps") as phase:
        for _ in range(100):
            time.sleep(0.0008)
    phase.off_cpu("sleep", at_least_ms=80)


run(Thread("sleeper", long_sleep), Thread("napper", short_sleeps))
