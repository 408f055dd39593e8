"""Threads wait for locks that a named thread, or another process, holds."""

import fcntl
import tempfile
import threading
import time

from clock import Child, Phase, Thread, run

HOLD_S = 0.4  # long enough for the holder to be known by name


def thread_lock(lock):
    held = threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(HOLD_S)

    def wait():
        held.wait()
        with Phase(f"{type(lock).__name__} held by another thread") as phase:
            with lock:
                pass
        phase.wait(
            "lock_wait",
            at_least_ms=200,
            holder_tid=holder.native_id,
            holder_thread="holder",
            waker_tid=holder.native_id,
            waker_thread="holder",
        )

    holder = Thread("holder", hold)
    run(holder, Thread("waiter", wait))


def condition():
    """Nothing else waits on a lock in this thread, so its cell is exact too."""
    ready = threading.Condition()

    def wait():
        with ready:
            with Phase("Condition notified by another thread") as phase:
                ready.wait()
        phase.wait("lock_wait", at_least_ms=100, waker_thread="notifier")
        phase.cell("lock_wait", at_least_ms=100)

    def notify():
        time.sleep(HOLD_S)
        with ready:
            ready.notify()

    run(Thread("waiter", wait), Thread("notifier", notify))


def event_with_timeout():
    def wait():
        with Phase("Event with a timeout nobody meets") as phase:
            threading.Event().wait(0.15)
        phase.wait("lock_wait", at_least_ms=150)
        phase.cell("lock_wait", at_least_ms=150)

    run(Thread("waiter", wait))


def file_lock():
    named = tempfile.NamedTemporaryFile(prefix="truth-flock-")
    path = named.name

    def hold():
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(HOLD_S)

    def wait():
        time.sleep(0.05)
        with open(path, "w") as file:
            with Phase("flock held by another process") as phase:
                fcntl.flock(file, fcntl.LOCK_EX)
        phase.wait("lock_wait", at_least_ms=100, waker_tid=child.pid)
        phase.cell("lock_wait", at_least_ms=100)

    child = Child(hold)
    run(Thread("waiter", wait))
    child.result()
    named.close()


thread_lock(threading.Lock())
thread_lock(threading.RLock())
condition()
event_with_timeout()
file_lock()
