"""Throughput, latency and CPU of the demo's stack: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    "if that were on another machine: its rows go to the spool on disk. Each has settled before its turn.",
    "The quick page is all CPU, and little of it: each of its requests is some twenty context switches, nine receives "
    "and seven sends, which is the hardest case there is. The page of 200 ms waits for the database, as most pages of "
    "most services do, and its limit is the number of threads.",
    "Each round begins and ends with nobody, and its rate is 70 % of what was answered at its beginning: the machine's "
    "own speed changes between rounds. A figure is compared with the mean of that round's two; told are the median of "
    "the rounds and, in brackets, the interval that has the true median with 95 % confidence. A target is met or "
    "missed if all of that interval is on one side of it. *Nobody again* is the second against the first: the machine. "
    "CPU is that of the whole machine, clients included, divided by the requests answered.",
]
CONNECTIONS = 16
STEADY_SHARE = 0.7
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


@dataclass
class Turns:
    """What was seen of one page, round by round."""

    rates: list[float] = field(default_factory=list)
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
            for page in PAGES:
                turns[page].rates.append(STEADY_SHARE * saturate(service.port, page, settings)["rate"])
            for who in turns_of(round_number):
                with watching(who, folder / f"{who}{round_number}", worker):
                    for page in PAGES:
                        seen = paced(folder, service.port, page, turns[page].rates[-1], settings)
                        turns[page].seen.setdefault(who, []).append(seen)
    return [row for page in PAGES for row in rows(page, turns[page])]


def turns_of(round_number: int) -> tuple[str, ...]:
    """Who watches in this round, one after another: every second round plays the watchers backwards."""
    return (NOBODY, *WATCHERS[:: -1 if round_number % 2 else 1], AGAIN)


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
    if who in (NOBODY, AGAIN):
        yield
    elif who == "published":
        with Published(folder, worker):
            yield
    else:
        with Underspan(folder) as underspan:
            underspan.settle()
            with underspan.store.stopped() if who == "stopped" else contextlib.nullcontext():
                yield


def rows(page: Page, turns: Turns) -> list[Row]:
    base = turns.seen[NOBODY]
    load = f"{page.name}, {median(turns.rates):.0f} requests/s (70 %)"
    table = [
        Row(f"{load}: p50, nobody watching", f"{spread([one['p50'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: p99, nobody watching", f"{spread([one['p99'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: CPU a request, nobody watching", f"{spread([one['cpu'] * 1e3 for one in base], '{:.2f}')} ms"),
    ]
    for who in (*WATCHERS, AGAIN):
        held = who in ("underspan", "stopped")
        answered = turns.ratios(who, lambda one: one["answered"] / one["seconds"])
        tail = turns.ratios(who, lambda one: one["p99"])
        what = f"{load}: throughput, {NAMES[who]}"
        table.append(held_above(what, answered, 0.98, "≥ −2 %") if held else Row(what, change(answered)))
        what = f"{load}: p99, {NAMES[who]}"
        table.append(held_below(what, tail, 1.02, "≤ +2 %") if held else Row(what, change(tail)))
        for what, key in ("p50", "p50"), ("CPU a request", "cpu"):
            ratios = turns.ratios(who, lambda one, key=key: one[key])
            table.append(Row(f"{load}: {what}, {NAMES[who]}", change(ratios)))
    return table
