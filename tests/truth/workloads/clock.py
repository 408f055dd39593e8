"""What a thread can know by itself about where its time went.

A workload injects a delay, reads these clocks around it and *claims* what must be found in the
store. The clocks are the kernel's own accounts, not Underspan's:

- CLOCK_MONOTONIC for lengths, the Unix clock to find the rows;
- CLOCK_THREAD_CPUTIME_ID for time on a CPU;
- `/proc/thread-self/schedstat` for time in a run queue.

What is left of the wall time was spent blocked. No clock here lets go of the GIL: reading one must
not change what it measures. Standard library only, Python 3.8 and later.
"""

import atexit
import collections
import ctypes
import json
import os
import sys
import threading
import time
import traceback

_libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
_local = threading.local()
_claims = []

Instant = collections.namedtuple("Instant", "unix mono cpu delay slices")


def _schedstat():
    """Nanoseconds this thread spent in run queues, and how often it was switched in."""
    if getattr(_local, "owner", None) != threading.get_native_id():
        _local.owner = (
            threading.get_native_id()
        )  # a forked child inherits the file of its parent's thread
        _local.fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        _local.buffer = ctypes.create_string_buffer(96)
    length = _libc.pread(_local.fd, _local.buffer, 95, 0)
    _, delay, slices = _local.buffer.raw[:length].split()
    return int(delay), int(slices)


def now():
    """All clocks at one instant: read again if the thread lost its CPU between two of them."""
    while True:
        delay, slices = _schedstat()
        instant = Instant(time.time_ns(), time.monotonic_ns(), time.thread_time_ns(), delay, slices)
        if _schedstat()[1] == slices:
            return instant


GAP_NS = 20_000


ENOUGH_BY_NS = 5_000_000_000


def spin(seconds, enough=lambda: True):
    """Computes, reading the clock all the time, and longer until it is `enough`: what else the
    machine does may leave too little of what is injected. Returns how long it was kept from
    reading, which is a second opinion on its time in a run queue."""
    begin = last = time.monotonic_ns()
    end, gaps = last + int(seconds * 1e9), 0
    while last < end or not (last - begin > ENOUGH_BY_NS or enough()):
        if last >= end:
            end = last + 50_000_000
        instant = time.monotonic_ns()
        if instant - last > GAP_NS:
            gaps += instant - last
        last = instant
    return gaps


class Phase:
    """A stretch of the calling thread's life, and what must be found of it."""

    def __init__(self, label):
        self.label = label

    def __enter__(self):
        thread = threading.current_thread()
        self.who = {"pid": os.getpid(), "tid": threading.get_native_id(), "thread": thread.name}
        self.begin = now()
        return self

    def __exit__(self, *_):
        self.end = now()
        self.wall = self.end.mono - self.begin.mono
        self.cpu = self.end.cpu - self.begin.cpu
        self.delay = self.end.delay - self.begin.delay
        self.slices = self.end.slices - self.begin.slices
        self.blocked = self.wall - self.cpu - self.delay

    @property
    def ended(self):
        """When its last call returned from the kernel: between these two, since the thread may have
        been in a run queue on the way back."""
        return (self.end.unix - self.delay, self.end.unix)

    def claim(self, kind, **fields):
        """Say what must be in the store about this phase."""
        claim(
            kind,
            label=self.label,
            start=self.begin.unix,
            end=self.end.unix,
            wall=self.wall,
            cpu=self.cpu,
            delay=self.delay,
            slices=self.slices,
            **self.who,
            **fields,
        )

    def wait(self, state, at_least_ms, **culprit):
        """The phase was one wait: one row of `waits`."""
        self.claim(
            "wait",
            state=state,
            ns=self.blocked,
            at_least=at_least_ms * 1_000_000,
            culprit=culprit,
        )

    def gil_wait(self, ns, ns_max, at_least_ms, in_gc=False, **culprit):
        """Rows of `gil_wait` that together last between `ns` and `ns_max`."""
        self.claim(
            "gil_wait",
            ns=ns,
            ns_max=ns_max,
            in_gc=in_gc,
            at_least=at_least_ms * 1_000_000,
            culprit=culprit,
        )

    def computed(self, waiting, gaps, at_least_ms):
        """It computed all the time or waited for a CPU, in the states `waiting`: for how long say
        the kernel and the thread's own clock, and the truth is between the two."""
        low, high = sorted((self.delay, gaps))
        self.cell(waiting, at_least_ms, ns=low, unsure=high - low)

    def off_cpu(self, state, at_least_ms, stolen=0):
        """Many short waits: state and run queue together. Where one ends and the other begins, the
        kernel and Underspan differ by some microseconds at each wake-up. What a hypervisor may have
        `stolen` is time off the CPU to the kernel, and time on it to Underspan."""
        off = self.wall - self.cpu
        # No wait is shorter than nothing, though steal is told in whole ticks.
        stolen = min(stolen, off)
        self.cell(state + "+runnable", at_least_ms, ns=off - stolen, unsure=stolen)

    def cell(self, state, at_least_ms, ns=None, unsure=0):
        """What the thread's ledger must hold for `state` (or `one+another`) over its whole life: at
        least `ns`, and no more than what is `unsure` on top."""
        ns = self.blocked if ns is None else ns
        self.claim(
            "cell",
            states=state.split("+"),
            ns=ns,
            ns_max=ns + unsure,
            at_least=at_least_ms * 1_000_000,
        )


def claim(kind, **fields):
    _claims.append(dict(fields, kind=kind))


class Thread(threading.Thread):
    """A named thread that claims its whole life too: its ledger must sum to that, and split the way
    the kernel says."""

    def __init__(self, name, work, claims_life=True):
        super().__init__(name=name, target=self._live)
        self._work = work
        self._claims_life = claims_life
        self._life = None
        self.error = None

    def start(self):
        self.created = time.monotonic_ns()
        super().start()

    def _live(self):
        with Phase("whole life") as self._life:
            try:
                self._work()
            except BaseException as error:
                self.error = error
                raise

    def join(self):
        """Waits until the thread is gone; a workload with a failed thread has failed."""
        super().join()
        if self.error is not None:
            raise RuntimeError(f"thread {self.name} failed; its message is above")
        if not self._claims_life:
            return
        while os.path.exists(f"/proc/self/task/{self.native_id}"):
            time.sleep(0.0001)
        lived = time.monotonic_ns() - self.created
        self._life.claim("life", ns=self._life.wall, ns_max=lived)
        for each in _claims:
            if each["kind"] == "cell" and each["tid"] == self.native_id:
                each["ns_max"] += self._elsewhere(each, lived)

    def _elsewhere(self, cell, lived):
        """How long the thread may have been in a cell's states outside of the cell's phase: running
        or waiting for its turn, above all before its first line and after its last."""
        turns = {
            "running": self._life.cpu - cell["cpu"],
            "runnable": self._life.delay - cell["delay"],
            "gil_wait": 0,
        }
        more = [turns[state] for state in cell["states"] if state in turns]
        return sum(more) + lived - self._life.wall if more else 0


def run(*threads):
    """Starts threads together and waits for all of them."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def publish():
    """Hands the claims to the harness; every process of a workload does so before it ends."""
    lines = "".join(json.dumps(each) + "\n" for each in _claims).encode()
    del _claims[:]
    path = os.environ.get("TRUTH_CLAIMS")
    if path is None:
        sys.stdout.write(lines.decode())
        return
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(out, lines)
    os.close(out)


atexit.register(publish)


class Child:
    """A forked child that runs `work`. It publishes its claims; its result comes through a pipe."""

    def __init__(self, work, *args):
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        status = 1
        try:
            del _claims[:]
            threading.current_thread().name = "MainThread"
            result = json.dumps(work(*args))
            publish()
            os.write(write, result.encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def result(self):
        """Waits for the child to end."""
        with os.fdopen(self._read) as pipe:
            text = pipe.read()
        os.waitpid(self.pid, 0)
        if not text:
            raise RuntimeError("a child of the workload failed; its message is above")
        return json.loads(text)

    def end(self):
        """Waits for a child that became another program, and has no result."""
        os.close(self._read)
        _, status = os.waitpid(self.pid, 0)
        if status:
            raise RuntimeError("a child of the workload failed; its message is above")
