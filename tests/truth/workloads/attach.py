"""A process that is watched only later: its threads were alive, asleep and blocked before.

It makes the file CLAIMS.ready and goes on when the file CLAIMS.go appears: from then on it is
watched. Until then every thread sleeps, which must not matter.
"""

import gc
import os
import time

from clock import Child, Phase, Thread, claim, run
from httpclock import Exchange, ask, connect, listen, now, text

LATE_S = 0.2
PLACE = os.environ.get("TRUTH_CLAIMS")
STARTED = time.monotonic_ns()


def wait_until_watched():
    """Rehearsed by hand, it just goes on."""
    while PLACE and not os.path.exists(PLACE + ".go"):
        time.sleep(0.02)


def early(name, work):
    def after_go():
        wait_until_watched()
        work()

    return Thread(name, after_go, claims_life=False)


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

    return [early("writer", write_late), early("waiter", wait)]


def collection():
    def collect():
        alive = [[] for _ in range(1_000_000)]
        with Phase("collects") as phase:
            collected = gc.collect()
        phase.claim("gc_pause", ns=phase.wall, at_least=1, generation=2, collected=collected)
        del alive

    return [early("collector", collect)]


def server():
    listener = listen()

    def serve():
        connection, _ = listener.accept()
        exchange = Exchange(connection, accepted=now())
        exchange.read()
        time.sleep(0.1)
        exchange.answer()
        told = asking.result()
        exchange.claim(os.getpid(), "/listened-before", told["ready"])

    def client():
        wait_until_watched()
        time.sleep(LATE_S)
        return ask(connect(listener), text("/listened-before"))

    asking = Child(client)
    return [early("server", serve)]


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
    return [Thread("blocked", wait, claims_life=False), early("releaser", release)]


gc.disable()
threads = [*server(), *pipe(), *collection(), *blocked_all_along()]
for thread in threads:
    thread.start()
if PLACE:
    open(PLACE + ".ready", "w").close()
wait_until_watched()
run(Thread("born later", lambda: time.sleep(LATE_S)))
for thread in threads:
    thread.join()
