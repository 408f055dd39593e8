"""Garbage collections over millions of objects: on the thread itself, and on a sibling."""

import gc
import time

from clock import Phase, Thread, run

ASLEEP_S = 0.03
ASLEEP_NS = int(ASLEEP_S * 1e9)
KNOWN_S = 0.3  # by then a thread is known by name


def garbage(count):
    """Unreachable cycles: each is one object for the collector to free."""
    for _ in range(count):
        cycle = []
        cycle.append(cycle)


def collect(generation, at_least_ms):
    with Phase(f"collects generation {generation}") as phase:
        collected = gc.collect(generation)
    phase.claim(
        "gc_pause",
        ns=phase.wall - phase.delay,
        ns_max=phase.wall,
        at_least=at_least_ms * 1_000_000,
        generation=generation,
        collected=collected,
    )
    return phase


def every_generation():
    """Oldest first, so that the younger ones see only what was made for them."""
    for generation, cycles in ((2, 1000), (1, 700), (0, 300)):
        young = [[] for _ in range(400_000)]
        garbage(cycles)
        collect(generation, at_least_ms=5)
        del young


def own():
    """The ledger of a thread that does nothing but collect."""
    phase = collect(2, at_least_ms=50)
    phase.cell("gc_run", at_least_ms=50, ns=phase.wall - phase.delay)


def sibling():
    asleep = []

    def work():
        while not asleep:
            time.sleep(0.001)
        collect(2, at_least_ms=50)

    def want():
        asleep.append(True)
        with Phase("wants the GIL while a sibling collects") as phase:
            time.sleep(ASLEEP_S)
        phase.gil_wait(
            phase.blocked - ASLEEP_NS,
            phase.wall - ASLEEP_NS,
            at_least_ms=20,
            in_gc=True,
            holder_tid=collector.native_id,
            holder_thread="collector",
        )
        phase.cell("gc_wait", at_least_ms=20, ns=phase.blocked - ASLEEP_NS, unsure=phase.delay)

    collector = Thread("collector", work)
    collector.start()
    time.sleep(KNOWN_S)
    run(Thread("wanter", want))
    collector.join()


gc.disable()  # only the collections above
ALIVE = [[] for _ in range(3_000_000)]
gc.collect()
run(Thread("generations", every_generation))
run(Thread("collector", own))
sibling()
