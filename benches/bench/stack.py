"""Throughput, latency and CPU of the demo's stack: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench import machine, workload
from bench.figures import Row, change, held_above, held_below, median, spread
from bench.observers import Published, Underspan
from bench.services import stack
from bench.settings import Settings

TITLE = "nginx → gunicorn → Django → PostgreSQL"
NOTES = [
    "Everything is on the same machine: clients, service, agent and embedded store, with default rules and everything "
    "on. The published way is bpftrace on the gunicorn worker. *Store stopped* is the agent without that CPU time, as "
    "if that were on another machine: its rows go to the spool on disk. Each has settled before its turn, but sees the "
    "load in it for the first time: the names of all stacks are looked up anew.",
    "The quick page is all CPU, and little of it: each of its requests is some twenty context switches, nine receives "
    "and seven sends, which is the hardest case there is. The page of 200 ms waits for the database, as most pages of "
    "most services do, and its limit is the number of threads.",
    "The machine's own speed changes within a minute. So each figure of a watcher is compared with nobody's right "
    "before it or, in every second round, right after it, at one rate: 70 % of what was answered just before the two. "
    "Told are the median of those ratios and, in brackets, the interval that has the true one with 95 % confidence. A "
    "target is met or missed if all of that interval is on one side of it. *Nobody again* is nobody compared with "
    "nobody, as far apart: the machine. CPU is that of the whole machine, clients included, divided by the requests "
    "answered.",
]
CONNECTIONS = 16
STEADY_SHARE = 0.7
# About how long a watcher needs until it has settled.
SETTLED_S = 5
# What saturates leaves as many requests as connections, which the service still answers.
DRAINED_S = 1
NOBODY, AGAIN = "nobody", "again"
WATCHERS = ("underspan", "stopped", "published")
NAMES = {
    "underspan": "Underspan",
    "stopped": "Underspan, store stopped",
    "published": "published way",
    AGAIN: "nobody again",
}


@dataclass(frozen=True)
class Page:
    """What is asked for. `{n}` becomes another number each time."""

    name: str
    path: str


PAGES = (Page("quick page", "/products/{n}/"), Page("page of 200 ms", "/checkout/"))


@dataclass(frozen=True)
class Pair:
    """What the clients saw while nobody watched and while somebody did, one right after the other, at one rate."""

    rate: float
    nobody: dict
    watched: dict

    def ratio(self, figure: Callable[[dict], float]) -> float:
        return figure(self.watched) / figure(self.nobody)


def run(folder: Path, settings: Settings) -> list[Row]:
    pairs: dict[tuple[Page, str], list[Pair]] = {}
    with stack(folder) as (service, worker):
        saturate(service.port, PAGES[0], settings)  # warm: connections, caches, bytecode
        for number in range(settings.stack_rounds):
            for page, who in product(PAGES, (*WATCHERS, AGAIN)):
                order = (NOBODY, who)[:: -1 if number % 2 else 1]
                place = folder / f"{who}{number}-{PAGES.index(page)}"
                pairs.setdefault((page, who), []).append(pair(place, service.port, worker, page, order, settings))
    return [row for page in PAGES for row in rows(page, {who: pairs[page, who] for who in (*WATCHERS, AGAIN)})]


def pair(folder: Path, port: int, worker: int, page: Page, order: tuple[str, str], settings: Settings) -> Pair:
    """Nobody and somebody, in that order or the other."""
    rate = STEADY_SHARE * saturate(port, page, settings)["rate"]
    seen = {}
    for who in order:
        with watching(who, folder, worker):
            seen[who] = paced(folder.parent, port, page, rate, settings)
    nobody = seen.pop(NOBODY)
    return Pair(rate, nobody, *seen.values())


def saturate(port: int, page: Page, settings: Settings) -> dict:
    """As many requests as it answers. Returns what the clients saw, and the machine's CPU seconds for each request.
    Nothing of that load is left then."""
    before = machine.busy_s()
    path = page.path.replace("{n}", "7")
    seen = workload.wrk(port, path, settings.saturation_s, CONNECTIONS, keep_alive=False)
    cpu = machine.busy_s() - before
    time.sleep(DRAINED_S)
    return seen | {"cpu": cpu / seen["answered"]}


def paced(folder: Path, port: int, page: Page, rate: float, settings: Settings) -> dict:
    """So many requests a second. Returns what the clients saw, and the machine's CPU seconds for each."""
    before = machine.busy_s()
    seen = workload.open_loop(folder, port, page.path, rate, settings.steady_s)
    return seen | {"cpu": (machine.busy_s() - before) / seen["answered"]}


@contextlib.contextmanager
def watching(who: str, folder: Path, worker: int) -> Iterator[None]:
    if who == NOBODY:
        yield
    elif who == AGAIN:
        time.sleep(SETTLED_S)
        yield
    elif who == "published":
        with Published(folder, worker):
            yield
    else:
        with Underspan(folder) as underspan:
            underspan.settle()
            with underspan.store.stopped() if who == "stopped" else contextlib.nullcontext():
                yield


def rows(page: Page, pairs: dict[str, list[Pair]]) -> list[Row]:
    every = [pair for some in pairs.values() for pair in some]
    base = [pair.nobody for pair in every]
    load = f"{page.name}, {median([pair.rate for pair in every]):.0f} requests/s (70 %)"
    table = [
        Row(f"{load}: p50, nobody watching", f"{spread([one['p50'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: p99, nobody watching", f"{spread([one['p99'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: CPU a request, nobody watching", f"{spread([one['cpu'] * 1e3 for one in base], '{:.2f}')} ms"),
    ]
    for who, some in pairs.items():
        held = who in ("underspan", "stopped")
        answered = [pair.ratio(lambda one: one["answered"] / one["seconds"]) for pair in some]
        tail = [pair.ratio(lambda one: one["p99"]) for pair in some]
        what = f"{load}: throughput, {NAMES[who]}"
        table.append(held_above(what, answered, 0.98, "≥ −2 %") if held else Row(what, change(answered)))
        what = f"{load}: p99, {NAMES[who]}"
        table.append(held_below(what, tail, 1.02, "≤ +2 %") if held else Row(what, change(tail)))
        for what, key in ("p50", "p50"), ("CPU a request", "cpu"):
            ratios = [pair.ratio(lambda one, key=key: one[key]) for pair in some]
            table.append(Row(f"{load}: {what}, {NAMES[who]}", change(ratios)))
    return table
