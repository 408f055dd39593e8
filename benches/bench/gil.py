"""What one GIL acquisition costs with nobody watching, with Underspan, and with uprobes on take_gil and drop_gil."""

from __future__ import annotations

from pathlib import Path

from bench import workload
from bench.figures import Row, at_least, median, spread
from bench.observers import Agent, Nobody, Published, Store
from bench.settings import Settings

TITLE = "GIL events: Underspan and the published way"
NOTES = [
    "The published way is [published.bt](../benches/workloads/published.bt): bpftrace with uprobes on `take_gil`, "
    "`drop_gil` and `gc_collect_main`, system call tracepoints for the handoff, and the scheduler's tracepoints. Cost "
    "is what an acquisition adds to the CPU time that the watched process is charged with, its probes included; each "
    "round runs all three observers one after another. Where Underspan's cost is less than the noise (the median "
    "distance of the rounds from their median), the ratio is against the noise and says *at least*.",
]
TIMES_CHEAPER = 10
# Below this a difference between runs cannot be told from noise.
RESOLUTION_NS = 20

# how threads give the GIL away, threads, share of the acquisitions to make, what it stands for
CASES = (
    ("write", 1, 1.0, "1 thread, each write gives the GIL away"),
    ("write", 4, 1.0, "4 threads contend, each write gives the GIL away"),
    ("sleep", 4, 0.1, "4 threads, each acquisition after a sleep"),
)
OBSERVERS = ("nobody", "underspan", "published")


def run(folder: Path, settings: Settings) -> list[Row]:
    with Store(folder) as store:
        return [row for case in CASES for row in case_rows(store, settings, *case)]


def case_rows(store: Store, settings: Settings, way: str, threads: int, share: float, what: str) -> list[Row]:
    cpu: dict[str, list[float]] = {who: [] for who in OBSERVERS}
    wall: dict[str, list[float]] = {who: [] for who in OBSERVERS}
    for _ in range(settings.gil_repeats):
        for who in OBSERVERS:
            with workload.gil(way, threads, int(settings.gil_acquisitions * share)) as program:
                with watching(who, store, program.pid):
                    result = program.go()
            cpu[who].append(result["cpu_s"] * 1e9 / result["acquisitions"])
            wall[who].append(result["seconds"] * 1e9 / result["acquisitions"])
    ours, theirs = ([each - base for each, base in zip(cpu[who], cpu["nobody"])] for who in OBSERVERS[1:])
    # Where ours drowns in the noise, the noise takes its place, and the ratio is a lower bound.
    noise = max(RESOLUTION_NS, median([abs(each - median(ours)) for each in ours]))
    times = median(theirs) / max(median(ours), noise)
    bound = "at least " if median(ours) < noise else ""
    rows = [
        Row(f"{what}: {who}, CPU and wall time of an acquisition", f"{spread(cpu[who])} ns and {spread(wall[who])} ns")
        for who in OBSERVERS
    ]
    rows += [
        Row(f"{what}: Underspan adds", f"{spread(ours)} ns"),
        Row(f"{what}: the published way adds", f"{spread(theirs)} ns"),
        at_least(
            f"{what}: Underspan is cheaper by", times, TIMES_CHEAPER, f"{bound}{times:.0f} ×", f"≥ {TIMES_CHEAPER} ×"
        ),
    ]
    return rows


def watching(who: str, store: Store, pid: int) -> Nobody | Agent | Published:
    """The observer of one process."""
    if who == "underspan":
        return Agent(store, "--pid", str(pid))
    if who == "published":
        return Published(store.folder, pid)
    return Nobody()
