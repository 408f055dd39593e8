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
    "counting itself is part of it: an empty program says how much, and what remains without it is held against the "
    "target. In the storms of watched threads both sides of each switch are watched; the real service shows what a "
    "switch costs on average. Programs that ran less than a fiftieth as often as the busiest are left out.",
]
SWITCH_TARGET_NS = 250
PAIRS = 4
CONNECTIONS = 16
PRODUCTS = "/products/7/"

# program → (nanoseconds a run, runs)
Costs = dict[str, list[bpf.Cost]]


def run(folder: Path, settings: Settings) -> list[Row]:
    with Store(folder) as store:
        empty = empty_program(store, settings)
        rows = [Row("pipe storm: an empty program, for comparison", f"{empty.each:.0f} ns, {empty.runs:,} runs")]
        for way in ("pipe", "futex"):
            rows += storm_rows(store, settings, way, empty)
        costs: Costs = {}
        for _ in range(settings.storm_repeats):
            with workload.gil("sleep", 4, settings.gil_acquisitions // 10) as threads:
                add(costs, measured(store, ["--pid", str(threads.pid)], threads.go))
        rows += cost_rows("GIL storm, 4 Python threads", costs, empty)
        costs = {}
        with nginx(folder) as port:
            for _ in range(settings.storm_repeats):
                add(costs, measured(store, ["--comm", "nginx"], lambda: keep_alive_storm(port, settings)))
        rows += cost_rows(f"nginx, {CONNECTIONS} kept-alive connections", costs, empty)
        costs = {}
        with stack(folder) as (service, _worker):
            keep_alive_storm(service.port, settings, PRODUCTS)  # warm
            for _ in range(settings.storm_repeats):
                add(costs, measured(store, [], lambda: keep_alive_storm(service.port, settings, PRODUCTS)))
        return rows + cost_rows("nginx → gunicorn → Django → PostgreSQL", costs, empty)


def empty_program(store: Store, settings: Settings) -> bpf.Cost:
    """What a program measures that does nothing: part of every other figure."""
    with bystander() as pid, Agent(store, "--measure-bpf", "--pid", pid):  # the agent switches the statistics on
        with Bpftrace(store.folder, "tracepoint:sched:sched_switch { }") as empty:
            with workload.switches(store.folder, "pipe", PAIRS, settings.storm_s) as storm:
                before = bpf.costs(empty.pid)
                storm.go()
                return bpf.difference(before, bpf.costs(empty.pid))["sched_switch"]


def keep_alive_storm(port: int, settings: Settings, path: str = "/") -> None:
    workload.wrk(port, path, max(1, round(settings.storm_s)), CONNECTIONS, keep_alive=True)


def storm_rows(store: Store, settings: Settings, way: str, empty: bpf.Cost) -> list[Row]:
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
        rows += cost_rows(f"{way} storm, {who} threads", found, empty)
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
    """The programs' cost during one load."""
    with Agent(store, "--measure-bpf", *options) as agent:
        before = bpf.costs(agent.pid)
        load()
        return bpf.difference(before, bpf.costs(agent.pid))


def add(costs: Costs, found: dict[str, bpf.Cost]) -> None:
    for name, cost in found.items():
        costs.setdefault(name, []).append(cost)


def cost_rows(storm: str, costs: Costs, empty: bpf.Cost) -> list[Row]:
    """The programs that ran often, most costly in sum first."""
    busiest = max(sum(cost.runs for cost in each) for each in costs.values())
    often = {name: each for name, each in costs.items() if sum(cost.runs for cost in each) > busiest / 50}
    rows = []
    for name, each in sorted(often.items(), key=lambda item: -sum(cost.ns for cost in item[1])):
        figure = f"{spread([cost.each for cost in each])} ns, {sum(cost.runs for cost in each):,} runs"
        if name == "ledger_switch":
            value = median([cost.each for cost in each]) - empty.each
            figure += f"; {value:.0f} ns without the counting"
            rows.append(at_most(f"{storm}: `{name}`", value, SWITCH_TARGET_NS, figure, f"≤ {SWITCH_TARGET_NS} ns"))
        else:
            rows.append(Row(f"{storm}: `{name}`", figure))
    return rows
