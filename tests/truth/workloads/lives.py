"""Lives that end early or change on the way: killed, replaced by another program, very short."""

import os
import signal
import sys
import threading
import time

from clock import Child, Phase, Thread, claim, publish, run

ASLEEP_S = 0.15
BRIEF_S = 0.002


def killed():
    """What a killed thread did until then is not lost."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"%d" % time.monotonic_ns())
        time.sleep(60)
    asleep = int(os.read(read, 100))
    begin = time.time_ns()
    time.sleep(ASLEEP_S)
    shot = time.monotonic_ns()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    claim(
        "cell",
        label="killed in its sleep",
        thread="MainThread",
        pid=child,
        tid=child,
        start=begin,
        end=time.time_ns(),
        states=["sleep"],
        ns=shot - asleep,
        ns_max=time.monotonic_ns() - asleep,
        at_least=100_000_000,
    )


def become(stage, slept=0):
    """Replaces this program by itself, which goes on at `stage`."""
    publish()
    os.execv(sys.executable, [sys.executable, __file__, stage, str(slept)])


def replaced():
    """The same thread before and after exec: one ledger."""

    def before():
        with Phase("sleeps before exec") as phase:
            time.sleep(ASLEEP_S)
        become("after", phase.blocked)

    Child(before).end()


def after(slept):
    with Phase("sleeps before and after exec") as phase:
        time.sleep(ASLEEP_S)
    phase.cell("sleep", at_least_ms=200, ns=slept + phase.blocked)


def replaced_by_a_thread():
    """A thread that calls exec takes the first thread's id: its time before that is its own."""

    def work():
        with Phase("sleeps, then calls exec from a thread") as phase:
            time.sleep(ASLEEP_S)
        phase.cell("sleep", at_least_ms=100)
        become("after-thread")

    def before():
        thread = threading.Thread(name="replacer", target=work)
        thread.start()
        thread.join()

    Child(before).end()


def after_thread(_):
    with Phase("sleeps after exec from a thread") as phase:
        time.sleep(ASLEEP_S)
    phase.cell("sleep", at_least_ms=100)


def brief():
    """Two hundred threads that live for two milliseconds: each has its ledger."""
    slept, tids = [], []  # they slept for as long as they asked, or longer until the GIL was free

    def live():
        with Phase("sleeps briefly") as phase:
            time.sleep(BRIEF_S)
        slept.append(phase.blocked)
        tids.append(phase.who["tid"])

    with Phase("200 brief threads") as phase:
        for _ in range(20):
            crowd = [threading.Thread(name="brief", target=live) for _ in range(10)]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join()
    asked = int(len(tids) * BRIEF_S * 1e9)
    phase.claim("crowd", states=["sleep"], ns=asked, ns_max=sum(slept), tids=tids)


STAGES = {"after": after, "after-thread": after_thread}

if len(sys.argv) > 1:
    STAGES[sys.argv[1]](int(sys.argv[2]))
else:
    killed()
    replaced()
    replaced_by_a_thread()
    run(Thread("parent", brief))
