"""The little statistics behind the verdicts."""

import random

from bench.figures import MET, MISSED, NOT_SHOWN, held_above, held_below, interval, median


def test_the_interval_has_the_true_median_in_95_of_100_cases():
    dice = random.Random(1)
    for count in (6, 9, 12, 20):
        hits = 0
        for _ in range(4000):
            low, high = interval([dice.expovariate(1) for _ in range(count)])
            hits += low <= 0.693147 <= high
        assert 0.945 <= hits / 4000 <= 0.99, (count, hits)


def test_few_values_are_told_whole():
    assert interval([3, 1, 2]) == (1, 3)
    assert interval([1]) == (1, 1)


def test_a_target_is_met_or_missed_only_beyond_doubt():
    quiet, noisy = [1.0, 1.01] * 6, [0.7, 1.3] * 6
    assert median(noisy) == 1.0
    assert held_below("p99", quiet, 1.02, "").verdict == MET
    assert held_below("p99", noisy, 1.02, "").verdict == NOT_SHOWN
    assert held_below("p99", [1.05, 1.06] * 6, 1.02, "").verdict == MISSED
    assert held_above("rate", quiet, 0.98, "").verdict == MET
    assert held_above("rate", noisy, 0.98, "").verdict == NOT_SHOWN
    assert held_above("rate", [0.9, 0.95] * 6, 0.98, "").verdict == MISSED
