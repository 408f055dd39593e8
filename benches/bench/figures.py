"""Rows of the table, and the little statistics they need."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# What a row says about its target.
MET, MISSED, NO_TARGET = "met", "MISSED", "–"
IN_NOISE = "MISSED, within the noise"


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


def change(ratios: Sequence[float]) -> str:
    """Ratios as a change in percent: median (smallest to largest)."""
    low, middle, high = (f"{(value - 1) * 100:+.1f} %" for value in (min(ratios), median(ratios), max(ratios)))
    return middle if len(ratios) == 1 else f"{middle} ({low} to {high})"
