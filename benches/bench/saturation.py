"""What the demo's stack answers at the most: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Row, change, spread
from bench.services import stack
from bench.settings import Settings
from bench.stack import AGAIN, CONNECTIONS, NAMES, NOBODY, PAGES, WATCHERS, Page, saturate, watching

TITLE = "The same stack, saturated"
NOTES = [
    f"{CONNECTIONS} clients that ask again as soon as they are answered, on the machine of the service. What limits "
    "the quick page is then the CPUs, which clients, service, agent and embedded store share: what Underspan uses is "
    "missing in what is answered. The page of 200 ms is limited by the number of threads. No figure here has a target, "
    "since a saturated service is late already.",
    "Each round begins and ends with nobody, and a figure is compared with the mean of that round's two. Told are the "
    "median of the rounds and, in brackets, the interval that has the true one with 95 % confidence. *Nobody again* is "
    "the second against the first.",
]


@dataclass
class Turns:
    """What was seen of one page, round by round."""

    seen: dict[str, list[dict]] = field(default_factory=dict)

    def ratios(self, who: str, figure: Callable[[dict], float]) -> list[float]:
        """In units of nobody's of the same round; of nobody again, in units of the first."""
        nobody = zip(self.seen[NOBODY], self.seen[AGAIN])
        bases = [figure(one) if who == AGAIN else (figure(one) * figure(two)) ** 0.5 for one, two in nobody]
        return [figure(one) / base for one, base in zip(self.seen[who], bases)]


def run(folder: Path, settings: Settings) -> list[Row]:
    turns = {page: Turns() for page in PAGES}
    with stack(folder) as (service, worker):
        saturate(service.port, PAGES[0], settings)  # warm: connections, caches, bytecode
        for round_number in range(settings.stack_rounds):
            for who in turns_of(round_number):
                with watching(who, folder / f"{who}{round_number}", worker):
                    for page in PAGES:
                        seen = saturate(service.port, page, settings)
                        turns[page].seen.setdefault(who, []).append(seen)
    return [row for page in PAGES for row in rows(page, turns[page])]


def turns_of(round_number: int) -> tuple[str, ...]:
    """Who watches in this round, one after another: every second round plays the watchers backwards."""
    return (NOBODY, *WATCHERS[:: -1 if round_number % 2 else 1], AGAIN)


def rows(page: Page, turns: Turns) -> list[Row]:
    base = turns.seen[NOBODY]
    table = [
        Row(f"{page.name}: throughput, nobody watching", f"{spread([one['rate'] for one in base])} requests/s"),
        Row(f"{page.name}: p99, nobody watching", f"{spread([one['p99'] / 1e6 for one in base], '{:.1f}')} ms"),
        Row(
            f"{page.name}: CPU a request, nobody watching", f"{spread([one['cpu'] * 1e3 for one in base], '{:.2f}')} ms"
        ),
    ]
    for who in (*WATCHERS, AGAIN):
        for what, key in ("throughput", "rate"), ("p99", "p99"), ("CPU a request", "cpu"):
            ratios = turns.ratios(who, lambda one, key=key: one[key])
            table.append(Row(f"{page.name}: {what}, {NAMES[who]}", change(ratios)))
    return table
