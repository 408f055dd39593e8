"""A CPU quota of 20 ms in every 100, used by one thread and by two.

The group's own counters say how long it was throttled; the rest of its time off the CPU a thread
was runnable.
"""

import os

import cgroup
from clock import Child, Phase, Thread, run, spin

ENOUGH_NS = 250_000_000


def compute(group, label):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = group.throttled_ns()

    def enough():
        return all(now - then > ENOUGH_NS for now, then in zip(group.throttled_ns(), before))

    with Phase(label) as phase:
        gaps = spin(0.65, enough)
    low, high = sorted(after - then for after, then in zip(group.throttled_ns(), before))
    phase.cell("throttled", at_least_ms=200, ns=low, unsure=high - low)
    phase.computed("throttled+runnable", gaps, at_least_ms=200)


def alone():
    def member():
        group.join()
        run(Thread("computer", lambda: compute(group, "computes beyond its quota")))

    group = cgroup.Group("truth-quota", quota_us=20_000, period_us=100_000)
    try:
        Child(member).result()
    finally:
        group.remove()


def together():
    """When the quota runs out, one of two is ready, not running: from then on it is throttled."""

    def member():
        group.join()
        run(Thread("computer", lambda: compute(group, "two compute beyond their quota")))

    group = cgroup.Group("truth-quota", quota_us=20_000, period_us=100_000)
    try:
        for child in [Child(member), Child(member)]:
            child.result()
    finally:
        group.remove()


alone()
together()
