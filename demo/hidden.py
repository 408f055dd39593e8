#!/usr/bin/env python3
"""The hidden half: a Go consumer whose CPU profile shows decoding, and which waits. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from harness import report, stage
from harness.consumption import Consumption, Scene
from harness.processes import Processes
from harness.stories import Check
from harness.underspan import Underspan

# What Underspan sees from outside may differ so much from the consumer's own clocks: twice what
# some 2,000 looks leave to chance.
CPU_POINTS, WAIT_POINTS = 0.05, 0.05


def show(before: Scene, after: Scene) -> None:
    print(f"\n  {'':<54}{'eight records a poll':>20}{'a hundred':>14}")
    for name, text in (
        ("decoding, of the CPU profile", lambda scene: f"{scene.seen.decoding:.1%}"),
        ("  by the clock of the consumer's thread", lambda scene: f"{scene.own.decoding:.1%}"),
        ("  by Go's own profiler", lambda scene: f"{scene.profiled:.1%}"),
        ("waiting in poll, of its goroutine's wall-clock time", lambda scene: f"{scene.seen.waiting:.1%}"),
        ("  by the consumer's own clock", lambda scene: f"{scene.own.waiting:.1%}"),
        ("records a second", lambda scene: f"{scene.records_per_second:,.0f}"),
    ):
        print(f"  {name:<54}{text(before):>20}{text(after):>14}")
    print()


def judge(before: Scene, after: Scene, difference: list[float]) -> list[Check]:
    seen, own = before.seen, before.own
    checks = [
        Check(seen.decoding > 0.35, f"the CPU profile shows decoding: {seen.decoding:.0%} (over 35 %)"),
        Check(seen.waiting > 0.25, f"and not that it waits in poll {seen.waiting:.0%} of its time (over 25 %)"),
    ]
    for name, scene in (("before", before), ("after", after)):
        seen, own = scene.seen, scene.own
        off = abs(seen.decoding - own.decoding) * 100
        checks.append(
            Check(off <= CPU_POINTS * 100, f"{name}: decoding as its thread's clock has it (off by {off:.1f} points)")
        )
        off = abs(seen.waiting - own.waiting) * 100
        checks.append(
            Check(off <= WAIT_POINTS * 100, f"{name}: waiting as its own clock has it (off by {off:.1f} points)")
        )
    same = [abs(share - scene.seen.waiting) < 0.01 for share, scene in zip(difference, (before, after))]
    return checks + [
        Check(after.seen.waiting < before.seen.waiting / 3, "batching takes most of the wait away"),
        Check(len(same) == 2 and all(same), "the difference graph has both sides of it"),
    ]


def keep(underspan: Underspan, folder: Path) -> None:
    print("\n  Still up, until Ctrl-C:")
    for words in (["flame", "--kind", "goroutine", "-o", "goroutines.svg"], ["sql", "SELECT * FROM goroutine LIMIT 5"]):
        print("   ", " ".join(repr(word) if " " in word else word for word in underspan.command(*words)))
    print(f"    logs: {folder}/logs", flush=True)
    stage.stay_up()


def play(folder: Path, processes: Processes, arguments: argparse.Namespace) -> bool:
    underspan = Underspan(folder, processes)
    consumption = Consumption(folder, processes, underspan)
    consumption.prepare()
    underspan.start("--comm", "consumer", "--goroutine-hz", "100", "--on-cpu-hz", "397")
    before = consumption.play("consumer", 8, arguments.seconds)
    after = consumption.play("consumer-batched", 100, arguments.seconds)
    show(before, after)
    fine = report.verdict(judge(before, after, consumption.difference(before, after)))
    print("\n  The flame graphs:")
    for picture in consumption.pictures(before, after, arguments.output):
        print(f"    {picture}")
    if arguments.keep:
        keep(underspan, folder)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="how long each run is watched")
    parser.add_argument("--output", type=Path, default=Path("hidden-half"), help="folder for the flame graphs")
    parser.add_argument("--keep", action="store_true", help="keep Underspan up afterwards, until Ctrl-C")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("This watches with BPF programs, which only root may load: run `sudo make demo-hidden`.", file=sys.stderr)
        return 2
    return stage.run("hidden", lambda folder, processes: play(folder, processes, arguments))


if __name__ == "__main__":
    sys.exit(main())
