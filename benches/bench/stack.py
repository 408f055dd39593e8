"""Throughput, latency and CPU of the demo's stack: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench import machine, workload
from bench.figures import IN_NOISE, MISSED, Row, at_least, at_most, change, median, spread
from bench.observers import Published, Underspan
from bench.services import stack
from bench.settings import Settings

TITLE = "nginx → gunicorn → Django → PostgreSQL"
NOTES = [
    "Everything is on the same machine: clients, service, agent and embedded store, with default rules and everything "
    "on. The published way is bpftrace on the gunicorn worker. *Store stopped* is the agent without that CPU time, as "
    "if that were on another machine: its rows go to the spool on disk. Each has settled before its turn, turns are "
    "short and many, and every second round plays them backwards. A ratio is against nobody of the same round; the one "
    "told is the median. *Nobody again* compares each round's nobody with the next one's: what differs there is the "
    "machine, and a p99 that differs by less is *within the noise*. CPU is that of the whole machine divided by the "
    "requests answered.",
]
PATH = "/products/7/"
STEADY_PATH = "/products/{n}/"
CONNECTIONS = 16
STEADY_SHARE = 0.7
OBSERVERS = ("nobody", "underspan", "stopped", "published")
NAMES = {
    "nobody": "nobody",
    "underspan": "Underspan",
    "stopped": "Underspan, store stopped",
    "published": "published way",
    "again": "nobody again",
}
Turns = dict[str, list[dict]]


def run(folder: Path, settings: Settings) -> list[Row]:
    with stack(folder) as (service, worker):
        saturate(service.port, settings.saturation_s)  # warm: connections, caches, bytecode
        peak = [saturate(service.port, settings.saturation_s)["rate"] for _ in range(1 if settings.quick else 3)]
        rate = round(STEADY_SHARE * median(peak))
        saturated, steady = ({who: [] for who in OBSERVERS} for _ in range(2))
        for round_number in range(settings.stack_rounds):
            for who in OBSERVERS[:: -1 if round_number % 2 else 1]:
                with watching(who, folder / f"{who}{round_number}", worker):
                    saturated[who].append(saturate(service.port, settings.saturation_s))
                    steady[who].append(paced(folder, service.port, rate, settings))
    for turns in saturated, steady:
        turns["again"] = turns["nobody"][1:]
    return saturation_rows(saturated) + steady_rows(steady, rate)


def paced(folder: Path, port: int, rate: float, settings: Settings) -> dict:
    """So many requests a second. Returns what the clients saw, and the machine's CPU seconds for each."""
    before = machine.busy_s()
    seen = workload.open_loop(folder, port, STEADY_PATH, rate, settings.steady_s)
    return seen | {"cpu": (machine.busy_s() - before) / seen["answered"]}


def saturate(port: int, seconds: float) -> dict:
    """As many requests as it answers. Returns what wrk saw, and the machine's CPU seconds for each."""
    before = machine.busy_s()
    seen = workload.wrk(port, PATH, seconds, CONNECTIONS, keep_alive=False)
    return seen | {"cpu": (machine.busy_s() - before) / seen["answered"]}


@contextlib.contextmanager
def watching(who: str, folder: Path, worker: int) -> Iterator[None]:
    if who == "nobody":
        yield
    elif who == "published":
        with Published(folder, worker):
            yield
    else:
        with Underspan(folder) as underspan:
            underspan.settle()
            with underspan.store.stopped() if who == "stopped" else contextlib.nullcontext():
                yield


def ratios(samples: Turns, who: str, figure) -> list[float]:
    """Round by round: an observer's figure in units of nobody's."""
    return [figure(one) / figure(base) for one, base in zip(samples[who], samples["nobody"])]


def others(samples: Turns) -> list[str]:
    return [who for who in samples if who != "nobody" and samples[who]]


def saturation_rows(samples: Turns) -> list[Row]:
    base = samples["nobody"]
    rows = [
        Row("Saturation: throughput, nobody watching", f"{spread([one['rate'] for one in base])} requests/s"),
        Row("Saturation: p50, nobody watching", f"{spread([one['p50'] / 1e6 for one in base], '{:.1f}')} ms"),
        Row("Saturation: p99, nobody watching", f"{spread([one['p99'] / 1e6 for one in base], '{:.1f}')} ms"),
    ]
    for who in others(samples):
        for what, key in ("throughput", "rate"), ("p50", "p50"), ("p99", "p99"), ("CPU a request", "cpu"):
            figure = change(ratios(samples, who, lambda one, key=key: one[key]))
            rows.append(Row(f"Saturation: {what}, {NAMES[who]}", figure))
    return rows


def steady_rows(samples: Turns, rate: float) -> list[Row]:
    base = samples["nobody"]
    load = f"{rate} requests/s (70 %)"
    rows = [
        Row(f"{load}: p50, nobody watching", f"{spread([one['p50'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: p99, nobody watching", f"{spread([one['p99'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: CPU a request, nobody watching", f"{spread([one['cpu'] * 1e3 for one in base], '{:.2f}')} ms"),
    ]
    noise = median([abs(ratio - 1) for ratio in ratios(samples, "again", lambda one: one["p99"])] or [0])
    for who in others(samples):
        answered = ratios(samples, who, lambda one: one["answered"] / one["seconds"])
        tail = ratios(samples, who, lambda one: one["p99"])
        throughput, p99 = f"{load}: throughput, {NAMES[who]}", f"{load}: p99, {NAMES[who]}"
        if who in ("underspan", "stopped"):
            rows.append(at_least(throughput, median(answered), 0.98, change(answered), "≥ −2 %"))
            row = at_most(p99, median(tail), 1.02, change(tail), "≤ +2 %")
            rows.append(replace(row, verdict=IN_NOISE) if row.verdict == MISSED and median(tail) - 1 < noise else row)
        else:
            rows += [Row(throughput, change(answered)), Row(p99, change(tail))]
        rows.append(Row(f"{load}: p50, {NAMES[who]}", change(ratios(samples, who, lambda one: one["p50"]))))
        rows.append(Row(f"{load}: CPU a request, {NAMES[who]}", change(ratios(samples, who, lambda one: one["cpu"]))))
    return rows
