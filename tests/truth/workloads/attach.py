"""A process that is watched only later: its threads were alive, asleep and blocked before.

It makes the file CLAIMS.ready and goes on when the file CLAIMS.go appears: from then on it is
watched. Until then every thread sleeps, which must not matter.
"""

import gc
import os
import time

from clock import Child, Phase, Thread, claim, run
from httpclock import accept, ask, connect, listen, text

LATE_S = 0.2
PLACE = os.environ.get("TRUTH_CLAIMS")
STARTED = time.monotonic_ns()


TURN = [0]


def wait_for_turn(turn):
    """Nothing happens until the process is watched, and then one thing after another."""
    while TURN[0] < turn or (PLACE and not os.path.exists(PLACE + ".go")):
        time.sleep(0.02)


def early(name, turn, work, last=True):
    """A thread that was there before. The last of a turn ends it."""

    def in_turn():
        wait_for_turn(turn)
        work()
        TURN[0] += last

    return Thread(name, in_turn, claims_life=False)


def pipe():
    read, write = os.pipe()

    def write_late():
        time.sleep(LATE_S)
        os.write(write, b"x")

    def wait():
        with Phase("reads an empty pipe") as phase:
            os.read(read, 1)
        phase.wait("pipe_ipc", at_least_ms=100, waker_thread="writer")
        phase.cell("pipe_ipc", at_least_ms=100)

    return [early("writer", 1, write_late, last=False), early("waiter", 1, wait)]


def collection():
    def collect():
        alive = [[] for _ in range(1_000_000)]
        with Phase("collects") as phase:
            collected = gc.collect()
        phase.claim(
            "gc_pause",
            ns=phase.wall - phase.delay,
            ns_max=phase.wall,
            at_least=5_000_000,
            generation=2,
            collected=collected,
        )
        del alive

    return [early("collector", 2, collect)]


def server():
    listener = listen()

    def serve():
        exchange = accept(listener)
        exchange.read()
        time.sleep(0.1)
        exchange.answer()
        exchange.claim(os.getpid(), "/listened-before", asking.result())

    def client():
        wait_for_turn(0)
        time.sleep(LATE_S)
        return ask(connect(listener), text("/listened-before"))

    asking = Child(client)
    return [early("server", 0, serve)]


def blocked_all_along():
    """Its wait began before anybody watched: the ledger begins in that state, and stays in it."""
    read, write = os.pipe()

    def wait():
        with Phase("blocked since before it was watched") as phase:
            os.read(read, 1)
        claim(
            "cell",
            label=phase.label,
            states=["pipe_ipc"],
            start=phase.begin.unix,
            end=phase.end.unix,
            ns=time.monotonic_ns() - gone[0],
            ns_max=time.monotonic_ns() - STARTED,
            **phase.who,
        )

    def release():
        gone.append(time.monotonic_ns())
        time.sleep(3 * LATE_S)
        os.write(write, b"x")

    gone = []
    return [Thread("blocked", wait, claims_life=False), early("releaser", 3, release)]


gc.disable()
threads = [*server(), *pipe(), *collection(), *blocked_all_along()]
for thread in threads:
    thread.start()
if PLACE:
    open(PLACE + ".ready", "w").close()
wait_for_turn(4)
run(Thread("born later", lambda: time.sleep(LATE_S)))
for thread in threads:
    thread.join()
