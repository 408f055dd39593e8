"""How long and how often: the full measure and the smoke test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Sizes of one run of the suite."""

    quick: bool
    storm_s: float  # one context-switch storm
    storm_repeats: int
    pairs: int  # watched and not
    stack_rounds: int  # each with every observer
    saturation_s: int
    steady_s: int  # one turn at 70 %
    cost_s: int  # at 500 requests/s
    gil_acquisitions: int
    gil_repeats: int
    ring_s: float
    ring_rates: tuple[int, ...]  # rounds a second, 0: as fast as it goes
    stacks_rounds: int
    stacks_saturated_s: float
    stacks_paced_s: float
    scale_rows: int
    explains: int
    cold_explains: int
    quiet_s: float  # how long to wait for a quiet machine before each part


FULL = Settings(
    quick=False,
    storm_s=2,
    storm_repeats=3,
    pairs=12,
    stack_rounds=9,
    saturation_s=2,
    steady_s=5,
    cost_s=30,
    gil_acquisitions=1_000_000,
    gil_repeats=5,
    ring_s=3,
    ring_rates=(5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 0),
    stacks_rounds=9,
    stacks_saturated_s=0.8,
    stacks_paced_s=1.2,
    scale_rows=10_000_000,
    explains=100,
    cold_explains=10,
    quiet_s=60,
)

QUICK = Settings(
    quick=True,
    storm_s=0.5,
    storm_repeats=1,
    pairs=1,
    stack_rounds=1,
    saturation_s=2,
    steady_s=3,
    cost_s=5,
    gil_acquisitions=40_000,
    gil_repeats=1,
    ring_s=1,
    ring_rates=(5_000, 0),
    stacks_rounds=1,
    stacks_saturated_s=0.3,
    stacks_paced_s=0.5,
    scale_rows=100_000,
    explains=5,
    cold_explains=1,
    quiet_s=0,
)
