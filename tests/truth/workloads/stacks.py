"""Threads wait at the ends of known call trees.

What a stack must be is said by the interpreter itself, with `sys._getframe()`, just before the
wait; how long the wait was is said by the kernel. The argument is a library made of callback.c.
"""

import asyncio
import ctypes
import fcntl
import os
import queue
import socket
import sys
import tempfile
import threading
import time

from clock import Child, Phase, Thread, now, run

# Until then the agent may not have read the unwind tables of an interpreter that is new to it. How
# long it took is claimed as "first".
SETTLED_S = 2.0
# Longer than the period: each of these waits is a sample.
PAUSE_S = 0.012
ROUNDS = 125
AT_A_TIME = 4


def name(code):
    """As Underspan can know it: qualified from 3.11 on."""
    return getattr(code, "co_qualname", code.co_name)


def frames_here():
    """The caller's Python frames, outermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        found.append([name(code), os.path.basename(code.co_filename), frame.f_lineno])
        frame = frame.f_back
    return found[::-1]


class Place:
    """A place in the code where a thread waits. `below`: which functions of the standard library
    do the waiting, as (class, function, file)."""

    def __init__(self, *below, native=None):
        self.below = below
        self.native = native
        self.frames = None
        self.ns = 0

    def wait(self, block, *arguments):
        if self.frames is None:
            self.frames = frames_here()
            self.frames[-1][2] += 3  # to the line of the wait
        before = now()
        block(*arguments)
        after = now()
        self.ns += after.mono - before.mono - (after.cpu - before.cpu)
        self.ns -= after.delay - before.delay

    def tree(self):
        qualified = sys.version_info >= (3, 11)
        below = [
            [f"{owner}.{function}" if owner and qualified else function, file, 0]
            for owner, function, file in self.below
        ]
        return {"frames": self.frames + below, "ns": self.ns, "native": self.native}


class Cause:
    """A thread that waits in `places`, for one kind of thing only."""

    def __init__(self, label, states, work, *places, at_least_ms=1200, cut_short=""):
        self.label = label
        # Whoever comes back from a wait may have to wait for the GIL too, at the same place.
        self.states = [*states.split("+"), "gil_wait"]
        self.work = work
        self.places = places
        self.at_least_ms = at_least_ms
        self.cut_short = cut_short

    def thread(self):
        return Thread(self.label.split(":")[0], self.play, claims_life=False)

    def play(self):
        with Phase(self.label) as phase:
            self.work(*self.places)
        phase.claim(
            "stack",
            states=self.states,
            trees=[place.tree() for place in self.places],
            at_least=self.at_least_ms * 1_000_000,
            cut_short=self.cut_short,
        )


def rest(place):
    for _ in range(ROUNDS):
        place.wait(time.sleep, PAUSE_S)


def dig(depth, work, place):
    if depth:
        dig(depth - 1, work, place)
    else:
        work(place)


def at_depth(depth):
    return lambda place: dig(depth, rest, place)


def sleeps():
    for depth in (5, 40, 120):
        yield Cause(f"sleep at depth {depth}", "sleep", at_depth(depth), Place())
    yield Cause("deep recursion, 300", "sleep", at_depth(300), Place())
    # More than a stack holds: it must say that it is cut short.
    yield Cause("recursion, 900", "sleep", at_depth(900), Place(), cut_short="too_deep")


def again_and_again(step, until):
    """Does `step` from another thread, some time after each other, until the waiter is done."""

    def work():
        while not until.is_set():
            time.sleep(PAUSE_S)
            step()

    threading.Thread(target=work, daemon=True).start()


def fed(place, feed, block, *arguments):
    """Waits for what `feed` gives."""
    done = threading.Event()
    again_and_again(feed, done)
    for _ in range(ROUNDS):
        place.wait(block, *arguments)
    done.set()


def lock(place):
    held = threading.Lock()
    held.acquire()
    fed(place, lambda: held.locked() and held.release(), held.acquire)


def condition(place):
    ready, done = threading.Condition(), threading.Event()

    def notify():
        with ready:
            ready.notify()

    again_and_again(notify, done)
    for _ in range(ROUNDS):
        with ready:
            place.wait(ready.wait)
    done.set()


def from_queue(place):
    items = queue.Queue()
    fed(place, lambda: items.put(1), items.get)


def from_socket(place):
    ours, theirs = socket.socketpair()
    fed(place, lambda: theirs.send(b"x"), ours.recv, 1)


def file_lock(place):
    with tempfile.NamedTemporaryFile() as file, open(file.name) as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)

        def step():
            fcntl.flock(theirs, fcntl.LOCK_UN)
            time.sleep(0.001)  # or the waiter would hardly ever get it
            fcntl.flock(theirs, fcntl.LOCK_EX)

        done = threading.Event()
        again_and_again(step, done)
        for _ in range(ROUNDS):
            place.wait(fcntl.flock, file, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.002)
        done.set()


CHUNK = b"x" * (8 << 20)


def disk(place):
    """Most of these are shorter than the period, so it takes more of them. In the folder that this
    is run in: that for temporary files may be in memory."""
    end = time.monotonic() + 30
    with tempfile.TemporaryFile(dir=os.curdir) as file:
        while place.ns < 2_500_000_000 and time.monotonic() < end:
            os.pwrite(file.fileno(), CHUNK, 0)
            place.wait(os.fsync, file.fileno())


def waits_for_things():
    event = ("Event", "wait", "threading.py")
    waits = ("Condition", "wait", "threading.py")
    yield Cause("lock", "lock_wait", lock, Place())
    yield Cause("condition", "lock_wait", condition, Place(waits))
    yield Cause("queue", "lock_wait", from_queue, Place(("Queue", "get", "queue.py"), waits))
    yield Cause("event with a timeout", "lock_wait", timeout, Place(event, waits))
    yield Cause("socket", "net_read", from_socket, Place())
    yield Cause("file lock", "lock_wait", file_lock, Place())
    yield Cause("disk", "disk_io", disk, Place())


def timeout(place):
    never = threading.Event()
    for _ in range(ROUNDS):
        place.wait(never.wait, PAUSE_S)


def through_c(library, work):
    """Python calls C calls Python. C was compiled without frame pointers."""
    outer = ctypes.CDLL(library).outer_call
    outer(ctypes.CFUNCTYPE(None)(work))


def callback(library):
    def work(place):
        place.native["after"] = len(frames_here()) + 1  # that of through_c()
        through_c(library, lambda: rest(place))

    between = ["outer_call", "middle_call", "inner_call"]
    return Cause("C calls back", "sleep", work, Place(native={"functions": between}))


def sorting(place):
    def key(_):
        rest(place)
        return 0

    sorted([1], key=key)


def generators(place):
    def innermost():
        rest(place)
        yield

    def outer(depth):
        yield from outer(depth - 1) if depth else innermost()

    for _ in outer(5):
        pass


def coroutines(place):
    async def blocking():
        rest(place)

    async def outer(depth):
        await (outer(depth - 1) if depth else blocking())

    asyncio.run(outer(5))


def idle_loop(place):
    async def main():
        place.frames = frames_here()
        while place.frames[-1][0].split(".")[-1] != "_run_once":
            place.frames.pop()
        place.frames[-1][2] = 0  # which line of it, is not ours to know
        with Phase("") as phase:
            for _ in range(ROUNDS):
                await asyncio.sleep(PAUSE_S)
        place.ns = phase.blocked

    asyncio.run(main())


def moving(place):
    cpus = sorted(os.sched_getaffinity(0))

    def move(round):
        os.sched_setaffinity(0, {cpus[round % len(cpus)]})
        place.wait(time.sleep, PAUSE_S)

    for round in range(ROUNDS):
        move(round)


def two_ms(place):
    place.wait(time.sleep, 0.002)


def three_ms(place):
    place.wait(time.sleep, 0.003)


def four_ms(place):
    place.wait(time.sleep, 0.004)


def short_waits(two, three, four):
    for _ in range(800):
        two_ms(two)
        three_ms(three)
        four_ms(four)


def functions(library):
    select = ("EpollSelector", "select", "selectors.py")
    short = Place(), Place(), Place()
    yield Cause("waits shorter than the period", "sleep", short_waits, *short, at_least_ms=7000)
    yield callback(library)
    yield Cause("builtin calls back", "sleep", sorting, Place())
    yield Cause("generators", "sleep", generators, Place())
    yield Cause("asyncio: a coroutine blocks", "sleep", coroutines, Place())
    yield Cause("asyncio: nothing to do", "poll_wait", idle_loop, Place(select))
    yield Cause("thread that migrates", "sleep", moving, Place())


def in_child():
    Cause("fork: the child", "sleep", at_depth(10), Place()).play()


def fork():
    def work(place):
        place.wait(Child(in_child).result)

    below = ("Child", "result", "clock.py")
    return Cause("fork: the parent", "pipe_ipc+child_wait", work, Place(below))


def settle(library):
    """The first whole stack of this process is found among these waits, and the mappings of its
    library are read again when it is first met."""
    with Phase("first whole stack") as phase:
        through_c(library, lambda: time.sleep(0.1))
        end = time.monotonic() + SETTLED_S
        while time.monotonic() < end:
            time.sleep(0.01)
    phase.claim("first_stack")


def main(library):
    sys.setrecursionlimit(5000)
    run(Thread("first", lambda: settle(library), claims_life=False))
    run(fork().thread())  # while there is no other thread
    threads = [cause.thread() for cause in (*functions(library), *sleeps(), *waits_for_things())]
    # A few at a time: nobody shall wait for the GIL instead. The short ones take all the time, and
    # so does the disk.
    short, of_disk = threads.pop(0), threads.pop()
    short.start()
    of_disk.start()
    for at in range(0, len(threads), AT_A_TIME):
        run(*threads[at : at + AT_A_TIME])
    short.join()
    of_disk.join()


if __name__ == "__main__":
    main(sys.argv[1])
