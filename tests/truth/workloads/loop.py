"""An event loop of asyncio stalls, for reasons and times that are known."""

import asyncio
import gc
import os
import threading
import time

from clock import Thread, claim, now

# By then a sibling has begun to compute or to collect.
ASLEEP_S = 0.03
KNOWN_S = 0.3  # by then a thread is known by name
COLLECTS_S = 0.3

lock, held = threading.Lock(), threading.Event()
wanted = []


def hold():
    with lock:
        held.set()
        time.sleep(0.35)


def sleeps():
    time.sleep(0.2)


def computes():
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        pass


def waits_for_a_lock():
    with lock:
        pass


def is_quick():
    time.sleep(0.05)


def when_wanted(work, *arguments):
    while not wanted:
        time.sleep(0.001)
    work(*arguments)


def wants_the_gil():
    """It lets go of the GIL, and does not get it back: a sibling that was told has it."""
    wanted.append(True)
    time.sleep(ASLEEP_S)


def waits_for_a_collection():
    wanted.append(True)
    time.sleep(ASLEEP_S)


def collects():
    gc.collect()


def timed(work, *arguments):
    """Seconds on a CPU: a busy machine makes nothing longer."""
    begin = time.thread_time()
    work(*arguments)
    return time.thread_time() - begin


def long_sum():
    """How many numbers `sum` adds up in the time; it holds the GIL throughout."""
    numbers = 2_000_000
    return int(numbers * 0.4 / timed(sum, range(numbers)))


def much_to_collect():
    """As many objects as it takes for a collection of that length."""
    alive = []
    while timed(gc.collect) < COLLECTS_S:
        alive.append([[] for _ in range(1_000_000)])
    return alive


async def stall(work, state, asleep=0.0, **culprit):
    """asleep: seconds of it that are not in that state."""
    await asyncio.sleep(0.02)
    begin = now()
    work()
    end = now()
    await asyncio.sleep(0.02)
    wall, delay = end.mono - begin.mono, end.delay - begin.delay
    if asleep:
        wall -= int(asleep * 1e9)
        delay += end.cpu - begin.cpu  # who wakes up for the GIL every 5 ms computes, too
    claim(
        "stall",
        label=work.__name__.replace("_", " "),
        pid=os.getpid(),
        tid=threading.get_native_id(),
        thread=threading.current_thread().name,
        start=begin.unix,
        end=end.unix,
        state=state,
        # The loop's own part of the iteration comes on top.
        ns=wall - delay if state else 0,
        ns_max=wall if state else 0,
        at_least=150_000_000 if state else 0,
        function=work.__name__,
        culprit=culprit,
    )


async def sibling(name, work, *arguments, of, state):
    """A thread does something for which the loop has to wait."""
    del wanted[:]
    thread = Thread(name, lambda: when_wanted(work, *arguments), claims_life=False)
    thread.start()
    await asyncio.sleep(KNOWN_S)
    culprit = {"culprit_tid": thread.native_id, "culprit_thread": name, "culprit": state}
    await stall(of, state, ASLEEP_S, **culprit)
    thread.join()


async def main():
    # A loop sleeps longer in its own calls than elsewhere; this one does before it stalls. Also
    # until the agent has read the interpreter's unwind tables.
    for _ in range(600):
        await asyncio.sleep(0.003)
    await stall(sleeps, "sleep")
    await stall(computes, "running")
    await stall(is_quick, "")
    holder = Thread("holder", hold, claims_life=False)
    holder.start()
    held.wait()
    await stall(waits_for_a_lock, "lock_wait", culprit_tid=holder.native_id)
    holder.join()
    await sibling("computer", sum, range(NUMBERS), of=wants_the_gil, state="gil_wait")
    await sibling("collector", gc.collect, of=waits_for_a_collection, state="gc_wait")
    await stall(collects, "gc_run", culprit_tid=0)
    # What functions are called must be read while there is a process to read it from.
    await asyncio.sleep(1)


if __name__ == "__main__":
    gc.disable()  # only the collections above
    ALIVE = much_to_collect()
    NUMBERS = long_sum()
    loop = Thread("loop", lambda: asyncio.run(main()), claims_life=False)
    loop.start()
    loop.join()
