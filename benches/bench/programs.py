"""Nanoseconds for each BPF program, under storms of what triggers it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bench import bpf, workload
from bench.figures import Row, at_most, median, spread
from bench.observers import Agent, Bpftrace, Nobody, Store, bystander
from bench.services import nginx, stack
from bench.settings import Settings

TITLE = "BPF programs"
NOTES = [
    "Run time is what the kernel counts while BPF statistics are on, which they are for this measurement only. The "
    "counting itself is part of it: an empty program at the same switches says how much, and what remains without it "
    "is held against the target. In the storms of watched threads both sides of each switch are watched; the real "
    "service shows what a switch costs on average. Programs that ran less than a fiftieth as often as the busiest are "
    "left out.",
]
SWITCH_TARGET_NS = 250
EMPTY = "sched_switch"  # what bpftrace calls its program there
PAIRS = 4
CONNECTIONS = 16
PRODUCTS = "/products/7/"

# program → (nanoseconds a run, runs)
Costs = dict[str, list[bpf.Cost]]


def run(folder: Path, settings: Settings) -> list[Row]:
    rows = []
    with Store(folder) as store:
        for way in ("pipe", "futex"):
            rows += storm_rows(store, settings, way)
        costs: Costs = {}
        for _ in range(settings.storm_repeats):
            with workload.gil("sleep", 4, settings.gil_acquisitions // 10) as threads:
                add(costs, measured(store, ["--pid", str(threads.pid)], threads.go))
        rows += cost_rows("GIL storm, 4 Python threads", costs)
        costs = {}
        with nginx(folder) as port:
            for _ in range(settings.storm_repeats):
                add(costs, measured(store, ["--comm", "nginx"], lambda: keep_alive_storm(port, settings)))
        rows += cost_rows(f"nginx, {CONNECTIONS} kept-alive connections", costs)
        costs = {}
        with stack(folder) as (service, _worker):
            keep_alive_storm(service.port, settings, PRODUCTS)  # warm
            for _ in range(settings.storm_repeats):
                add(costs, measured(store, [], lambda: keep_alive_storm(service.port, settings, PRODUCTS)))
        return rows + cost_rows("nginx → gunicorn → Django → PostgreSQL", costs)


def keep_alive_storm(port: int, settings: Settings, path: str = "/") -> None:
    workload.wrk(port, path, max(1, round(settings.storm_s)), CONNECTIONS, keep_alive=True)


def storm_rows(store: Store, settings: Settings, way: str) -> list[Row]:
    """One kind of storm: what the programs cost with its threads watched or not, and what it costs the storm."""
    rates: dict[str, list[float]] = {"nobody": [], "unwatched": [], "watched": []}
    costs: dict[str, Costs] = {"unwatched": {}, "watched": {}}
    with bystander() as somebody:
        for _ in range(settings.storm_repeats):
            for who, rate in rates.items():
                with workload.switches(store.folder, way, PAIRS, settings.storm_s) as storm:
                    pid = str(storm.pid) if who == "watched" else somebody
                    with Nobody() if who == "nobody" else Agent(store, "--pid", pid):
                        result = storm.go()
                    rate.append(result["switches"] / result["seconds"])
            for who, found in costs.items():
                with workload.switches(store.folder, way, PAIRS, settings.storm_s) as storm:
                    pid = str(storm.pid) if who == "watched" else somebody
                    add(found, measured(store, ["--pid", pid], storm.go))
    rows = []
    for who, found in costs.items():
        rows += cost_rows(f"{way} storm, {who} threads", found)
        rows.append(added_row(f"{way} storm, {who} threads", rates[who], rates["nobody"]))
    return rows


def added_row(what: str, rates: list[float], without: list[float]) -> Row:
    """Every CPU is busy switching, so a switch takes their time divided by the rate."""
    budget = (os.cpu_count() or 1) * 1e9
    added = [budget / rate - budget / base for rate, base in zip(rates, without)]
    base = median(without)
    figure = f"{spread(added)} ns more than {budget / base:,.0f} ns ({base:,.0f} switches/s with nobody watching)"
    return Row(f"{what}: CPU time of a switch, the kernel's trampolines included", figure)


def measured(store: Store, options: list[str], load: Callable[[], object]) -> dict[str, bpf.Cost]:
    """The programs' cost during one load, and that of an empty one in their midst."""
    with Agent(store, "--measure-bpf", *options) as agent:  # it switches the statistics on
        with Bpftrace(store.folder, f"tracepoint:sched:{EMPTY} {{ }}") as empty:
            before = bpf.costs(agent.pid) | bpf.costs(empty.pid)
            load()
            return bpf.difference(before, bpf.costs(agent.pid) | bpf.costs(empty.pid))


def add(costs: Costs, found: dict[str, bpf.Cost]) -> None:
    for name, cost in found.items():
        costs.setdefault(name, []).append(cost)


def cost_rows(storm: str, costs: Costs) -> list[Row]:
    """The programs that ran often, most costly in sum first."""
    busiest = max(sum(cost.runs for cost in each) for each in costs.values())
    often = {name: each for name, each in costs.items() if sum(cost.runs for cost in each) > busiest / 50}
    empty = median([cost.each for cost in costs[EMPTY]])
    rows = []
    for name, each in sorted(often.items(), key=lambda item: -sum(cost.ns for cost in item[1])):
        figure = f"{spread([cost.each for cost in each])} ns, {sum(cost.runs for cost in each):,} runs"
        if name == EMPTY:
            rows.append(Row(f"{storm}: an empty program, for comparison", figure))
        elif name == "ledger_switch":
            value = median([cost.each for cost in each]) - empty
            figure += f"; {value:.0f} ns without the counting"
            rows.append(at_most(f"{storm}: `{name}`", value, SWITCH_TARGET_NS, figure, f"≤ {SWITCH_TARGET_NS} ns"))
        else:
            rows.append(Row(f"{storm}: `{name}`", figure))
    return rows
