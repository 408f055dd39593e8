"""A line of the table."""

import collections

STRICT_NS = 1_000_000


def tolerance(ns):
    """1 ms or 1 %, whichever is larger."""
    return max(STRICT_NS, ns // 100)


class Verdict(collections.namedtuple("Verdict", "what thread state injected reported error culprit problems")):
    """Times in nanoseconds. It holds if there is no problem."""

    @property
    def ok(self):
        return not self.problems


def outside(reported, low, high=None):
    """How far `reported` is from what it must be: a figure, or anything between two."""
    high = low if high is None else max(low, high)
    return min(reported - low, 0) or max(reported - high, 0)


def judge_length(reported, low, high=None):
    error = outside(reported, low, high)
    allowed = tolerance(low)
    problems = []
    if abs(error) > allowed:
        problems.append(f"off by {error / 1e6:.3f} ms, allowed {allowed / 1e6:.3f} ms")
    return error, problems
