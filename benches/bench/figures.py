"""Rows of the table, and the little statistics they need."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# What a row says about its target.
MET, MISSED, NO_TARGET = "met", "MISSED", "–"
NOT_SHOWN = "not shown: too uncertain"


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    figure: str
    target: str = ""
    verdict: str = NO_TARGET


def at_most(what: str, value: float, limit: float, figure: str, target: str) -> Row:
    """A row whose value must not exceed a limit."""
    return Row(what, figure, target, MET if value <= limit else MISSED)


def at_least(what: str, value: float, limit: float, figure: str, target: str) -> Row:
    """A row whose value must reach a limit."""
    return Row(what, figure, target, MET if value >= limit else MISSED)


def held_below(what: str, ratios: Sequence[float], limit: float, target: str) -> Row:
    """A row whose true median must not exceed a limit: met or missed only where the rounds leave no doubt."""
    low, high = interval(ratios)
    return Row(what, change(ratios), target, MET if high <= limit else MISSED if low > limit else NOT_SHOWN)


def held_above(what: str, ratios: Sequence[float], limit: float, target: str) -> Row:
    """A row whose true median must reach a limit, likewise."""
    low, high = interval(ratios)
    return Row(what, change(ratios), target, MET if low >= limit else MISSED if high < limit else NOT_SHOWN)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    """Median (smallest–largest)."""
    low, middle, high = (form.format(value) for value in (min(values), median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}–{high})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Has the true median with 95 % confidence, whatever the distribution: each value is above it or below with the
    same chance. Of fewer than six values it is all of them, which is less sure."""
    ordered, count = sorted(values), len(values)
    outside = [sum(math.comb(count, fewer) for fewer in range(rank + 1)) / 2**count for rank in range(count // 2)]
    rank = max((rank for rank, chance in enumerate(outside) if chance <= 0.025), default=0)
    return ordered[rank], ordered[-1 - rank]


def change(ratios: Sequence[float]) -> str:
    """Ratios as a change in percent: median (the interval that has the true one)."""
    low, high = interval(ratios)
    low, middle, high = (f"{(value - 1) * 100:+.1f} %" for value in (low, median(ratios), high))
    return middle if len(ratios) == 1 else f"{middle} ({low} to {high})"
