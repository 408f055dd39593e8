"""A thread wants the GIL while another computes: in one long C call, and in ordinary bytecode."""

import os
import time

from clock import Phase, Thread, run

ASLEEP_S = 0.05
ASLEEP_NS = int(ASLEEP_S * 1e9)
ENOUGH_NS = 120_000_000
KNOWN_S = 0.3  # by then a thread is known by name


def calibrate(seconds):
    """How many numbers `sum` adds up in that time; it holds the GIL throughout."""
    begin = time.perf_counter()
    sum(range(2_000_000))
    return int(2_000_000 * seconds / (time.perf_counter() - begin))


def one_long_call():
    numbers = calibrate(0.4)
    asleep = []

    def hold():
        while not asleep:
            time.sleep(0.001)
        with Phase("computes in one C call") as phase:
            sum(range(numbers))
        phase.cell("running", at_least_ms=100, ns=phase.wall - phase.delay)

    def want():
        asleep.append(True)
        with Phase("wants the GIL during one C call") as phase:
            time.sleep(ASLEEP_S)
        phase.gil_wait(
            phase.blocked - ASLEEP_NS,
            phase.wall - ASLEEP_NS,
            at_least_ms=100,
            holder_tid=holder.native_id,
            holder_thread="holder",
        )
        phase.cell("gil_wait", at_least_ms=100, ns=phase.blocked - ASLEEP_NS, unsure=phase.delay)

    holder = Thread("holder", hold)
    holder.start()
    time.sleep(KNOWN_S)
    run(Thread("wanter", want))
    holder.join()


def bytecode():
    """The holder is asked to let go every 5 ms, so the other waits about that long, many times.
    Waits of less than a millisecond are in the ledger, but have no row."""
    wanted, enough = [], []

    def compute():
        while not wanted:
            time.sleep(0.001)
        while not enough:
            pass

    def want():
        shortest = longest = off_cpu = 0
        with Phase("wants the GIL during bytecode") as phase:
            wanted.append(True)
            end = time.monotonic() + 0.25
            while time.monotonic() < (end if off_cpu > ENOUGH_NS else end + 5):
                with Phase("wants it once") as once:
                    os.stat("/")  # lets go of the GIL and blocks on nothing
                off_cpu += once.wall - once.cpu
                if once.blocked > 1_100_000:
                    shortest += once.blocked
                if once.wall > 900_000:
                    longest += once.wall
        enough.append(True)
        phase.gil_wait(
            shortest,
            longest,
            at_least_ms=50,
            holder_tid=computer.native_id,
            holder_thread="computer",
        )
        phase.off_cpu("gil_wait", at_least_ms=100)

    computer = Thread("computer", compute)
    computer.start()
    time.sleep(KNOWN_S)
    run(Thread("wanter", want))
    computer.join()


one_long_call()
bytecode()
