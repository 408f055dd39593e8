"""More computing threads than CPUs, and a thread that moves between CPUs."""

import ctypes
import os
import time

from clock import Child, Phase, Thread, run, spin


def call_this_thread(name):
    ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME


def contention():
    """Three processes on one CPU: how long was this thread in the run queue, and who ran?"""
    cpu = min(os.sched_getaffinity(0))

    def rival():
        os.sched_setaffinity(0, {cpu})
        call_this_thread("rival")
        spin(0.7)

    rivals = [Child(rival), Child(rival)]

    def compute():
        os.sched_setaffinity(0, {cpu})
        with Phase("computes on a contended CPU") as phase:
            gaps = spin(0.6)
        phase.computed("runnable", gaps, at_least_ms=200)
        phase.claim("holders", state="runnable", any_of=[rival.pid for rival in rivals])

    run(Thread("computer", compute))
    for rival in rivals:
        rival.result()


def migration():
    """A thread that runs, sleeps, and is moved to another CPU after every turn."""
    cpus = sorted(os.sched_getaffinity(0))

    def move():
        with Phase("moves between CPUs") as phase:
            for turn in range(20):
                os.sched_setaffinity(0, {cpus[turn % len(cpus)]})
                spin(0.0005)
                time.sleep(0.005)
        phase.off_cpu("sleep+other", at_least_ms=80)

    run(Thread("mover", move))


contention()
migration()
