"""What stacks cost at a given rate of context switches: nobody, Underspan, bcc's offcputime, py-spy, in turn."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench import machine
from bench.figures import Row, change, held_above, held_below, median, spread
from bench.observers import Nobody, Offcputime, PySpy, Underspan
from bench.settings import Settings
from bench.workload import Handoffs

TITLE = "Stacks, by the rate of context switches"
NOTES = [
    "A Python service whose threads hand requests to and fro, over futexes and eventfds, and compute in between; ten "
    "handoffs a request. How much they compute is measured at the start and then kept, so that with nobody watching "
    "both CPUs are just busy at the given rate (*saturated*), or busy for 70 % of the time (*paced*: requests come at "
    "random times that are the same for all observers, and latency counts from the moment a request was due). Each "
    "round plays all rates with one observer after another, in an order that changes; a ratio is against nobody of the "
    "same round, and *nobody again* is a round's nobody against the next round's. Underspan is the agent with its "
    "default options on that process, and the embedded store on the same machine. offcputime is bcc's, in its build "
    "without kernel headers and kprobes (libbpf-tools); it walks frame pointers, and knows no Python. py-spy takes a "
    "hundred stacks a second, of waiting threads too; it knows no native frames.",
    "There is no PMU on this machine, so CPU time stands for cycles: that of the service as the kernel charges it, in "
    "which probes are included, for each request; then together with the observer's processes (the store too). What a "
    "probe takes while a CPU goes idle is charged to nobody: only saturated throughput has it all.",
]
RATES = (10_000, 50_000, 100_000)  # context switches a second
BUSY = 0.7  # of the machine, when paced
HANDOFFS = 10  # a request
WARM_S = 0.7
TARGET_RATE, TARGET_PERCENT = RATES[-1], 2
NAMES = {"nobody": "nobody", "underspan": "Underspan", "offcputime": "offcputime", "py-spy": "py-spy"}
AGAIN = "nobody again"


@dataclass(frozen=True)
class Load:
    """What the service is told to do for one rate."""

    switches: int
    saturated_work: int
    paced_work: int
    requests: float  # a second, when paced


@dataclass(frozen=True)
class Sample:
    """One observer's turn at one rate."""

    saturated: dict
    paced: dict
    observer_s: float  # CPU time of the observer's processes while paced

    @property
    def throughput(self) -> float:
        return self.saturated["requests"] / self.saturated["seconds"]

    @property
    def p99(self) -> float:
        return self.paced["p99"]

    @property
    def cpu(self) -> float:
        return self.paced["cpu_s"] / self.paced["requests"]

    @property
    def all_cpu(self) -> float:
        return (self.paced["cpu_s"] + self.observer_s) / self.paced["requests"]


Samples = dict[str, list[Sample]]


def run(folder: Path, settings: Settings) -> list[Row]:
    with Handoffs(folder) as service:
        loads = [load(service, rate, settings) for rate in RATES]
    samples: dict[int, Samples] = {rate: {who: [] for who in NAMES} for rate in RATES}
    lost: dict[str, Counter] = {who: Counter() for who in NAMES}
    for number in range(settings.stacks_rounds):
        order = list(NAMES)[number % len(NAMES) :] + list(NAMES)[: number % len(NAMES)]
        for who in order:
            with Handoffs(folder) as service:
                turn = Turn(folder / f"{who}{number}", who, service)
                for rate, sample in turn.play(loads, settings):
                    samples[rate][who].append(sample)
                lost[who] += turn.lost
    rows = []
    for rate in RATES:
        rows += rate_rows(f"{rate:,} switches/s", rate, samples[rate])
    return rows + [lost_row(who, lost[who]) for who in NAMES if who != "nobody"]


def load(service: Handoffs, rate: int, settings: Settings) -> Load:
    """How much to compute for each handoff, so that the machine is as busy as it should be at this rate."""
    budget = (os.cpu_count() or 1) / rate

    def work_for(seconds: float, requests: float) -> int:
        """The CPU time of a handoff grows evenly with the work: a straight line through two measurements."""
        few, many = 1, 100
        cost = {}
        for work in (few, many):
            done = service.play(work, requests, settings.stacks_saturated_s)
            cost[work] = done["cpu_s"] / done["switches"]
        slope = (cost[many] - cost[few]) / (many - few)
        return max(0, round(few + (seconds - cost[few]) / slope))

    # A paced request has one more switch, when it waits to be due; the first guess shows how many there are.
    saturated, paced = work_for(budget, 0), work_for(budget * BUSY, rate / 5 / (HANDOFFS + 1))
    guess = rate / (HANDOFFS + 1)
    done = service.play(paced, guess, settings.stacks_paced_s)
    return Load(rate, saturated, paced, guess * rate / (done["switches"] / done["seconds"]))


class Turn:
    """One observer, all rates."""

    def __init__(self, folder: Path, who: str, service: Handoffs) -> None:
        self._folder = folder
        self._who = who
        self._service = service
        self.lost: Counter = Counter()

    def play(self, loads: list[Load], settings: Settings) -> list[tuple[int, Sample]]:
        samples = []
        with self._observer() as observer:
            if self._who != "nobody":
                time.sleep(1)  # an observer that has just started looks around first
            # It reads symbols and unwind tables when it first sees a stack: that is for once.
            self._service.play(loads[0].paced_work, loads[0].requests, WARM_S)
            pids = self._pids(observer)
            for each in loads:
                saturated = self._service.play(each.saturated_work, 0, settings.stacks_saturated_s)
                before = sum(map(machine.process_cpu_s, pids))
                paced = self._service.play(each.paced_work, each.requests, settings.stacks_paced_s)
                spent = sum(map(machine.process_cpu_s, pids)) - before
                samples.append((each.switches, Sample(saturated, paced, spent)))
            if isinstance(observer, Underspan):
                time.sleep(2.5)  # rows are written once a second
                self.lost = underspan_lost(observer, self._service.pid)
        if isinstance(observer, Offcputime):
            self.lost = offcputime_lost(observer.said())
        elif isinstance(observer, PySpy):
            self.lost = py_spy_lost(observer.said())
        return samples

    def _observer(self) -> Nobody | Underspan | Offcputime | PySpy:
        pid = self._service.pid
        if self._who == "underspan":
            return Underspan(self._folder, "--pid", str(pid))
        if self._who == "offcputime":
            return Offcputime(self._folder, pid)
        if self._who == "py-spy":
            return PySpy(self._folder, pid)
        return Nobody()

    def _pids(self, observer) -> list[int]:
        if isinstance(observer, Underspan):
            return [observer.agent.pid, observer.store.pid]
        return [] if isinstance(observer, Nobody) else [observer.pid]


def underspan_lost(observer: Underspan, pid: int) -> Counter:
    """What it counts as lost, and how much of the time off the CPU its samples stand for."""
    store = observer.store
    lost = Counter()
    for row in store.rows("SELECT tracker, reason, sum(count) AS n FROM lost_events GROUP BY tracker, reason"):
        lost[f"{row['tracker']} {row['reason']}"] += int(row["n"])
    # The main thread waits still.
    threads = f"pid = {pid} AND tid != pid"
    sampled = store.rows(f"SELECT count() AS n, sum(weight_ns) AS ns FROM off_cpu WHERE {threads}")[0]
    told = store.rows(f"SELECT sum(duration_ns - running_ns - gc_run_ns) AS ns FROM thread_states WHERE {threads}")[0]
    lost[SAMPLES] = int(sampled["n"])
    lost[SAMPLED_NS] = int(sampled["ns"])
    lost[TOLD_NS] = int(told["ns"])
    return lost


SAMPLES, SAMPLED_NS, TOLD_NS = "samples", "ns in samples", "ns"


def offcputime_lost(said: str) -> Counter:
    """Its entries, and those whose stack it says it has not got."""
    lost = Counter()
    for entry in re.split(r"\n\n", said):
        found = re.search(r"^\s+-\s+.*\(\d+\)\n\s+(\d+)$", entry, re.MULTILINE)
        if not found:
            continue
        lost[SAMPLES] += 1
        lost[TOLD_NS] += int(found[1]) * 1000
        if "[Missed " in entry:
            lost["[Missed … Stack]"] += 1
        else:
            lost[SAMPLED_NS] += int(found[1]) * 1000
    return lost


def py_spy_lost(said: str) -> Counter:
    lost = Counter()
    found = re.search(r"Samples: (\d+) Errors: (\d+)", said)
    if found:
        lost[SAMPLES], lost["errors"] = int(found[1]), int(found[2])
    lost["behind in sampling"] = len(re.findall(r"behind in sampling", said))
    return lost


def lost_row(who: str, lost: Counter) -> Row:
    samples, sampled, told = lost.pop(SAMPLES, 0), lost.pop(SAMPLED_NS, 0), lost.pop(TOLD_NS, 0)
    figure = f"{samples:,} {'stacks of a thread' if who == 'offcputime' else 'samples'}"
    if told:
        figure += f", which stand for {sampled / told * 100:.2f} % of the time off the CPU"
    reasons = ", ".join(f"{what} {count:,}" for what, count in sorted(lost.items()) if count)
    return Row(f"What {NAMES[who]} lost, all rounds", f"{figure}; lost: {reasons or 'nothing'}")


def ratios(samples: Samples, who: str, figure: Callable[[Sample], float]) -> list[float]:
    """Round by round: an observer's figure in units of nobody's."""
    base = samples["nobody"]
    others = base[1:] if who == AGAIN else samples[who]
    return [figure(one) / figure(other) for one, other in zip(others, base)]


def rate_rows(load: str, rate: int, samples: Samples) -> list[Row]:
    base = samples["nobody"]
    made = [median([turn["switches"] / turn["seconds"] for turn in turns]) for turns in turns_of(base)]
    rows = [
        Row(
            f"{load}: nobody watching",
            f"saturated {spread([one.throughput for one in base])} requests/s ({made[0]:,.0f} switches/s); paced "
            f"({made[1]:,.0f} switches/s) p99 {spread([one.p99 / 1e6 for one in base], '{:.2f}')} ms, "
            f"CPU {spread([one.cpu * 1e6 for one in base])} µs a request",
        )
    ]
    for who in [*list(NAMES)[1:], *([AGAIN] if len(base) > 1 else [])]:
        targets = who == "underspan" and rate == TARGET_RATE
        rows += observer_rows(f"{load}: {NAMES.get(who, who)}", samples, who, targets)
    return rows


def turns_of(samples: list[Sample]) -> tuple[list[dict], list[dict]]:
    return [one.saturated for one in samples], [one.paced for one in samples]


def observer_rows(what: str, samples: Samples, who: str, targets: bool) -> list[Row]:
    throughput = ratios(samples, who, lambda one: one.throughput)
    p99 = ratios(samples, who, lambda one: one.p99)
    cpu = ratios(samples, who, lambda one: one.cpu)
    everything = ratios(samples, who, lambda one: one.all_cpu)
    cpu_figure = change(cpu)
    if who != AGAIN:
        cpu_figure += f"; with the observer's own processes {change(everything)}"
    names = (f"{what}, throughput", f"{what}, p99", f"{what}, CPU a request")
    if not targets:
        return [
            Row(names[0], change(throughput)),
            Row(names[1], change(p99)),
            Row(names[2], cpu_figure),
        ]
    limit = TARGET_PERCENT / 100
    return [
        held_above(names[0], throughput, 1 - limit, f"≥ −{TARGET_PERCENT} %"),
        held_below(names[1], p99, 1 + limit, f"≤ +{TARGET_PERCENT} %"),
        replace(held_below(names[2], cpu, 1 + limit, f"≤ +{TARGET_PERCENT} %"), figure=cpu_figure),
    ]
