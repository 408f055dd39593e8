"""What the agent itself uses while a service answers 500 requests a second."""

from __future__ import annotations

import time
from pathlib import Path

from bench import bpf, machine, workload
from bench.figures import Row, at_most, median, percentile, spread
from bench.observers import BenchError, Underspan
from bench.services import gunicorn
from bench.settings import Settings

TITLE = "The agent at 500 requests a second"
NOTES = [
    "One gunicorn worker with 8 threads answers at once; each request has a connection of its own, and comes at a "
    "fixed time. Processes are chosen by the default rules. CPU and memory of the agent are its own rows in "
    "`agent_stats`, checked against /proc; start-up is left out of CPU and included in the peak.",
]
RATE = 500
CPU_TARGET_PERCENT = 2.0
RSS_TARGET_MB = 60
MB = 1_000_000


def run(folder: Path, settings: Settings) -> list[Row]:
    with gunicorn(folder) as port:
        workload.open_loop(folder, port, "/", RATE, 2)  # warm
        with Underspan(folder / "plain") as underspan:
            rows = resources(underspan, folder, port, settings)
        with Underspan(folder / "measured", "--measure-bpf") as underspan:
            before, start = bpf.costs(underspan.agent.pid), time.monotonic()
            clients = workload.open_loop(folder, port, "/", RATE, min(10, settings.cost_s))
            seconds = time.monotonic() - start
            spent = bpf.difference(before, bpf.costs(underspan.agent.pid))
    total, runs = sum(cost.ns for cost in spent.values()), sum(cost.runs for cost in spent.values())
    rows.append(
        Row(
            "BPF programs, all CPUs together (in the time of whoever they interrupt)",
            f"{total / seconds / 1e7:.2f} % of one CPU: {runs / clients['answered']:.0f} runs and "
            f"{total / clients['answered'] / 1e3:.1f} µs a request",
        )
    )
    return rows


def resources(underspan: Underspan, folder: Path, port: int, settings: Settings) -> list[Row]:
    agent, store = underspan.agent.pid, underspan.store.pid
    time.sleep(2)  # it has just looked at every process
    idle_s = min(10, settings.cost_s)
    before = machine.process_cpu_s(agent)
    time.sleep(idle_s)
    idle = (machine.process_cpu_s(agent) - before) / idle_s * 100
    begin, start = time.time_ns(), time.monotonic()
    cpu = {pid: machine.process_cpu_s(pid) for pid in (agent, store)}
    clients = workload.open_loop(folder, port, "/", RATE, settings.cost_s)
    seconds, end = time.monotonic() - start, time.time_ns()
    used = {pid: (machine.process_cpu_s(pid) - before) / seconds * 100 for pid, before in cpu.items()}
    peak = machine.peak_rss(agent) / MB
    time.sleep(2)
    rows = underspan.store.rows(
        "SELECT cpu_ns / duration_ns * 100 AS cpu, rss_bytes AS rss, rows, events, watched_processes FROM agent_stats "
        f"WHERE start_time >= fromUnixTimestamp64Nano({begin}) AND start_time < fromUnixTimestamp64Nano({end})"
    )
    requests = int(
        underspan.store.rows(
            f"SELECT count() AS n FROM requests WHERE local LIKE '%:{port}' AND "
            f"start_time >= fromUnixTimestamp64Nano({begin}) AND start_time < fromUnixTimestamp64Nano({end})"
        )[0]["n"]
    )
    if len(rows) < 2:
        raise BenchError("the agent wrote no agent_stats")
    share = [float(row["cpu"]) for row in rows]
    rss = [int(row["rss"]) / MB for row in rows]
    events = median([float(row["events"]) for row in rows])
    watched = max(int(row["watched_processes"]) for row in rows)
    return [
        Row(
            "Load",
            f"{clients['answered']} of {clients['sent']} requests answered at {RATE}/s, {requests} have a row; "
            f"{watched} processes watched, {events:,.0f} events/s",
        ),
        at_most(
            "Agent: CPU, by `agent_stats`, second by second",
            median(share),
            CPU_TARGET_PERCENT,
            f"{spread(share, '{:.2f}')} % of one CPU, p95 {percentile(share, 95):.2f} %",
            f"≤ {CPU_TARGET_PERCENT:.0f} %",
        ),
        at_most(
            "Agent: CPU, by /proc, over the whole run",
            used[agent],
            CPU_TARGET_PERCENT,
            f"{used[agent]:.2f} % of one CPU",
            f"≤ {CPU_TARGET_PERCENT:.0f} %",
        ),
        at_most(
            "Agent: resident memory, by `agent_stats`",
            max(rss),
            RSS_TARGET_MB,
            f"{spread(rss, '{:.1f}')} MB; peak since start {peak:.1f} MB",
            f"≤ {RSS_TARGET_MB} MB",
        ),
        Row("Agent: CPU while nobody asks the service anything", f"{idle:.2f} % of one CPU"),
        Row(
            "Embedded store: CPU, by /proc (not the agent; a server elsewhere takes this away)", f"{used[store]:.2f} %"
        ),
    ]
