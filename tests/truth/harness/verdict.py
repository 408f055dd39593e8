"""A line of the table."""

import collections

STRICT_NS = 1_000_000


def ms(ns):
    return f"{ns / 1e6:.3f}"


def tolerance(ns):
    """1 ms or 1 %, whichever is larger."""
    return max(STRICT_NS, ns // 100)


class Verdict(
    collections.namedtuple("Verdict", "what thread state injected reported error culprit problems")
):
    """Times in nanoseconds. It holds if there is no problem."""

    @property
    def ok(self):
        return not self.problems


def statement(what, problems):
    """A line about no length of time."""
    return Verdict(what, "", "", 0, 0, 0, "", problems)


def judge(reported, low, high=None):
    """How far `reported` is from the truth (a figure, or anything between two), and if too far."""
    high = low if high is None else max(low, high)
    error = min(reported - low, 0) or max(reported - high, 0)
    allowed = tolerance(low)
    if abs(error) <= allowed:
        return error, []
    return error, [f"{ms(reported)} ms is off by {ms(error)} ms, allowed {ms(allowed)} ms"]
