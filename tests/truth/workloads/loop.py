"""An event loop of asyncio stalls, for reasons and times that are known."""

import asyncio
import os
import threading
import time

from clock import Thread, claim, now

lock, held = threading.Lock(), threading.Event()


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


async def stall(work, state, **culprit):
    await asyncio.sleep(0.02)
    begin = now()
    work()
    end = now()
    await asyncio.sleep(0.02)
    wall, delay = end.mono - begin.mono, end.delay - begin.delay
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
    # What functions are called must be read while there is a process to read it from.
    await asyncio.sleep(1)


if __name__ == "__main__":
    loop = Thread("loop", lambda: asyncio.run(main()), claims_life=False)
    loop.start()
    loop.join()
