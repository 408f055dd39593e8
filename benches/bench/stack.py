"""Throughput, latency and CPU of the demo's stack: nobody watching, Underspan, the published way, in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench import machine, workload
from bench.figures import IN_NOISE, MISSED, Row, at_least, at_most, change, median, spread
from bench.observers import Nobody, Published, Underspan
from bench.services import stack
from bench.settings import Settings

TITLE = "nginx → gunicorn → Django → PostgreSQL"
NOTES = [
    "Each round runs nobody, Underspan (agent and embedded store on the same machine, default rules, everything on) "
    "and the published way (bpftrace on the gunicorn worker) one after another; a ratio is against nobody of the same "
    "round. *Nobody again* compares each round's nobody with the next one's: what differs there is the machine, not an "
    "observer, and a p99 that differs by less is *within the noise*. CPU is that of the whole machine, clients, agent "
    "and store included, divided by the requests answered.",
]
PATH = "/products/7/"
STEADY_PATH = "/products/{n}/"
CONNECTIONS = 16
STEADY_SHARE = 0.7
OBSERVERS = ("nobody", "underspan", "published")
NAMES = {"nobody": "nobody", "underspan": "Underspan", "published": "published way", "again": "nobody again"}


@dataclass(frozen=True)
class Sample:
    """One observer's turn."""

    saturated: dict
    saturated_cpu: float  # seconds a request
    steady: dict
    steady_cpu: float


def run(folder: Path, settings: Settings) -> list[Row]:
    with stack(folder) as (service, worker):
        saturate(service.port, settings.saturation_s)  # warm: connections, caches, bytecode
        peak = [saturate(service.port, settings.saturation_s)[0]["rate"] for _ in range(1 if settings.quick else 3)]
        rate = round(STEADY_SHARE * median(peak))
        samples: dict[str, list[Sample]] = {who: [] for who in OBSERVERS}
        for round_number in range(settings.pairs):
            for who in OBSERVERS:
                with watching(who, folder / f"{who}{round_number}", worker):
                    samples[who].append(turn(folder, service.port, rate, settings))
    samples["again"] = samples["nobody"][1:]
    return saturation_rows(samples) + steady_rows(samples, rate)


def turn(folder: Path, port: int, rate: float, settings: Settings) -> Sample:
    time.sleep(1)  # an observer that has just started looks around first
    saturated, saturated_cpu = saturate(port, settings.saturation_s)
    before = machine.busy_s()
    steady = workload.open_loop(folder, port, STEADY_PATH, rate, settings.steady_s)
    return Sample(saturated, saturated_cpu, steady, (machine.busy_s() - before) / steady["answered"])


def saturate(port: int, seconds: int) -> tuple[dict, float]:
    """As many requests as it answers. Returns what wrk saw, and the machine's CPU seconds for each."""
    before = machine.busy_s()
    seen = workload.wrk(port, PATH, seconds, CONNECTIONS, keep_alive=False)
    return seen, (machine.busy_s() - before) / seen["answered"]


def watching(who: str, folder: Path, worker: int) -> Nobody | Underspan | Published:
    if who == "underspan":
        return Underspan(folder)
    if who == "published":
        return Published(folder, worker)
    return Nobody()


def ratios(samples: dict[str, list[Sample]], who: str, figure) -> list[float]:
    """Round by round: an observer's figure in units of nobody's."""
    return [figure(one) / figure(base) for one, base in zip(samples[who], samples["nobody"])]


def others(samples: dict[str, list[Sample]]) -> list[str]:
    return [who for who in samples if who != "nobody" and samples[who]]


def saturation_rows(samples: dict[str, list[Sample]]) -> list[Row]:
    base = samples["nobody"]
    rows = [
        Row("Saturation: throughput, nobody watching", f"{spread([one.saturated['rate'] for one in base])} requests/s"),
        Row("Saturation: p50, nobody watching", f"{spread([one.saturated['p50'] / 1e6 for one in base], '{:.1f}')} ms"),
        Row("Saturation: p99, nobody watching", f"{spread([one.saturated['p99'] / 1e6 for one in base], '{:.1f}')} ms"),
    ]
    for who in others(samples):
        for what, figure in (
            ("throughput", lambda one: one.saturated["rate"]),
            ("p50", lambda one: one.saturated["p50"]),
            ("p99", lambda one: one.saturated["p99"]),
            ("CPU a request", lambda one: one.saturated_cpu),
        ):
            rows.append(Row(f"Saturation: {what}, {NAMES[who]}", change(ratios(samples, who, figure))))
    return rows


def steady_rows(samples: dict[str, list[Sample]], rate: float) -> list[Row]:
    base = samples["nobody"]
    load = f"{rate} requests/s (70 %)"
    rows = [
        Row(f"{load}: p50, nobody watching", f"{spread([one.steady['p50'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(f"{load}: p99, nobody watching", f"{spread([one.steady['p99'] / 1e6 for one in base], '{:.2f}')} ms"),
        Row(
            f"{load}: CPU a request, nobody watching", f"{spread([one.steady_cpu * 1e3 for one in base], '{:.2f}')} ms"
        ),
    ]
    for who in others(samples):
        answered = ratios(samples, who, lambda one: one.steady["answered"] / one.steady["seconds"])
        tail = ratios(samples, who, lambda one: one.steady["p99"])
        throughput, p99 = f"{load}: throughput, {NAMES[who]}", f"{load}: p99, {NAMES[who]}"
        if who == "underspan":
            rows.append(at_least(throughput, median(answered), 0.98, change(answered), "≥ −2 %"))
            row = at_most(p99, median(tail), 1.02, change(tail), "≤ +2 %")
            noise = median([abs(ratio - 1) for ratio in ratios(samples, "again", lambda one: one.steady["p99"])] or [0])
            rows.append(replace(row, verdict=IN_NOISE) if row.verdict == MISSED and median(tail) - 1 < noise else row)
        else:
            rows += [Row(throughput, change(answered)), Row(p99, change(tail))]
        rows.append(Row(f"{load}: p50, {NAMES[who]}", change(ratios(samples, who, lambda one: one.steady["p50"]))))
        cpu = ratios(samples, who, lambda one: one.steady_cpu)
        rows.append(Row(f"{load}: CPU a request, {NAMES[who]}", change(cpu)))
    return rows
