"""What the demo's stack answers at the most: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

from pathlib import Path

from bench.figures import Row, change, spread
from bench.services import stack
from bench.settings import Settings
from bench.stack import AGAIN, CONNECTIONS, NAMES, NOBODY, PAGES, WATCHERS, Page, Turns, saturate, turns_of, watching

TITLE = "The same stack, saturated"
NOTES = [
    f"{CONNECTIONS} clients that ask again as soon as they are answered, on the machine of the service. What limits "
    "the quick page is then the CPUs, which clients, service, agent and embedded store share: what Underspan uses is "
    "missing in what is answered. The page of 200 ms is limited by the number of threads. Rounds, ratios and intervals "
    "are those of the table above; no figure here has a target, since a saturated service is late already.",
]


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
