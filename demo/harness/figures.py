"""What the clients saw, in figures."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from harness.load import Seen


@dataclass(frozen=True)
class Clients:
    """What all clients of one scene saw. The POSTs that start reports are not among them."""

    seen: list[Seen]

    @classmethod
    def read(cls, path: Path) -> Clients:
        """From the file that harness.load wrote."""
        everyone = [Seen(**json.loads(line)) for line in path.read_text().splitlines()]
        return cls([one for one in everyone if one.method == "GET"])

    @property
    def slowest(self) -> Seen:
        return max(self.seen, key=lambda one: one.latency_ns)

    @property
    def failed(self) -> int:
        """How many got no answer, or one that is not a 2xx."""
        return sum(not 200 <= one.status < 300 for one in self.seen)

    def percentile(self, percent: float) -> int:
        """In nanoseconds."""
        return percentile([one.latency_ns for one in self.seen], percent)


def percentile(values: list[int], percent: float) -> int:
    """The smallest value that is at least as large as this percentage of all (nearest rank); 0 of none."""
    if not values:
        return 0
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


def duration(nanoseconds: float) -> str:
    """For people: three digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{nanoseconds:.0f} ns"
