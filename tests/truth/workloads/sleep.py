"""A thread asks to sleep: once for long, and many times for too short to be a wait row."""

import time

from clock import Phase, Thread, run


def long_sleep():
    with Phase("one sleep") as phase:
        time.sleep(0.2)
    phase.wait("sleep", at_least_ms=200)
    phase.cell("sleep", at_least_ms=200)


def short_sleeps():
    with Phase("400 short sleeps") as phase:
        for _ in range(400):
            time.sleep(0.0004)
    phase.cell("sleep", at_least_ms=160)


run(Thread("sleeper", long_sleep), Thread("napper", short_sleeps))
