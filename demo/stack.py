#!/usr/bin/env python3
"""Packets that are late in the kernel, and which stage makes them so. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness import report, stage
from harness.processes import DemoError, Processes
from harness.progress import step
from harness.stories import Check

HERE = Path(__file__).resolve().parent
ADDRESS, PORT = "10.79.0.2", 8000
# 25 ms a request: one worker serves 40 a second.
RATE, FEW, ENOUGH = 60, 1, 5
WARM_UP_S = 2
TRIES = 4
RULES = 10_000
POINTS = ("ip-start", "tcp-start", "tcp-socket-enqueued", "tcp-socket-read")


@dataclass(frozen=True)
class Table:
    """What `underspan netstack --json` said of a scene."""

    histograms: dict[str, dict]
    verdicts: list[str]
    lost: list[dict]

    def average(self, point: str) -> float:
        """Milliseconds."""
        return self.histograms[point]["average_ns"] / 1e6

    def says(self, *words: str) -> bool:
        return any(all(word in verdict for word in words) for verdict in self.verdicts)


class Wire:
    """Two network namespaces of the demo's own, joined by veth: nothing of the host's is touched."""

    def __init__(self, processes: Processes) -> None:
        self._run = processes.run
        self.server, self.client = (f"underspan-{os.getpid()}-{end}" for end in ("server", "client"))

    def __enter__(self) -> Wire:
        for name in (self.server, self.client):
            self._run(["ip", "netns", "add", name])
        veth = ["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", self.client]
        self._run(["ip", "-n", self.server, *veth])
        for name, address in ((self.server, f"{ADDRESS}/24"), (self.client, "10.79.0.1/24")):
            self._run(["ip", "-n", name, "address", "add", address, "dev", "wire"])
            self._run(["ip", "-n", name, "link", "set", "wire", "up"])
            self._run(["ip", "-n", name, "link", "set", "lo", "up"])
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.server, self.client):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def rules(self, folder: Path) -> None:
        """As many rules as it takes, none of which ever matches."""
        rules = "\n".join(f"ip saddr 192.0.2.{n % 250} tcp dport {n} drop" for n in range(RULES))
        file = folder / "rules.nft"
        file.write_text(f"table inet useless {{\nchain in {{\ntype filter hook input priority 0;\n{rules}\n}}\n}}\n")
        self._run(["ip", "netns", "exec", self.server, "nft", "-f", file])

    def no_rules(self) -> None:
        self._run(["ip", "netns", "exec", self.server, "nft", "delete", "table", "inet", "useless"])

    def answers(self) -> bool:
        """Whether somebody listens there."""
        listening = self._run(["ip", "netns", "exec", self.server, "cat", "/proc/net/tcp"])
        return f":{PORT:04X} 00000000:0000 0A" in listening


class Scenes:
    """The same load on the same server, under different conditions."""

    def __init__(self, folder: Path, processes: Processes, wire: Wire, program: Path, seconds: float) -> None:
        self._folder, self._processes, self._wire = folder, processes, wire
        self._program, self._seconds = program, seconds

    def play_quietly(self, what: str, workers: int) -> Table:
        """A scene in which nothing should be late: again if something else kept the machine busy."""
        for _ in range(TRIES - 1):
            table = self.play(what, workers)
            if not table.verdicts:
                return table
            print("    Other work may have kept the workers from the CPUs: the same again.\n")
        return self.play(what, workers)

    def play(self, what: str, workers: int) -> Table:
        inside = ["ip", "netns", "exec"]
        gunicorn = [sys.executable, "-m", "gunicorn", "--workers", str(workers), "--bind", f"{ADDRESS}:{PORT}"]
        server = self._processes.start(
            f"server-{workers}", [*inside, self._wire.server, *gunicorn, "server:application"], cwd=HERE / "late"
        )
        server.wait_until(self._wire.answers, 30)
        time.sleep(WARM_UP_S)  # until all workers are up
        load = [ADDRESS, str(PORT), str(RATE), str(self._seconds + WARM_UP_S)]
        clients = self._processes.start(
            "clients", [*inside, self._wire.client, sys.executable, HERE / "late" / "clients.py", *load]
        )
        interval = ["--interval", f"{self._seconds}s", "--count", "1", "--json"]
        if workers > FEW:
            time.sleep(WARM_UP_S / 2)  # each worker's first request takes longer
        with step(f"{what}: {RATE} requests a second for {self._seconds:.0f} s"):
            said = json.loads(
                self._processes.run(
                    [self._program, "netstack", "--netns", self._wire.server, *interval], timeout=self._seconds + 30
                )
            )
        clients.stop()
        server.stop()
        table = Table({one["point"]: one for one in said["histograms"]}, said["verdicts"], said["lost"])
        missing = [point for point in POINTS if point not in table.histograms]
        if missing:
            raise DemoError(f"no packet passed {', '.join(missing)}; see {self._folder}/logs")
        show(table)
        return table


def duration(ns: float | None) -> str:
    if ns is None:
        return "longer"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def show(table: Table) -> None:
    print(f"\n    {'age of packets at':<24}{'packets':>9}{'average':>12}{'p50':>12}{'p99':>12}")
    for point in POINTS:
        one = table.histograms[point]
        times = "".join(f"{duration(one[name]):>12}" for name in ("average_ns", "p50_ns", "p99_ns"))
        print(f"    {point:<24}{one['count']:>9}{times}")
    for lost in table.lost:
        print(f"    not timed: {lost['count']} packets ({lost['reason']})")
    for verdict in table.verdicts or ["no stage is late"]:
        print(f"\n    → {verdict}")
    print()


def judge(few: Table, enough: Table, firewall: Table, without: Table) -> list[Check]:
    read, enqueued = few.average("tcp-socket-read"), few.average("tcp-socket-enqueued")
    slower = firewall.average("tcp-start") - firewall.average("ip-start")
    faster = without.average("tcp-start") - without.average("ip-start")
    return [
        Check(
            few.says("tcp-socket-read", "the application reads late"),
            f"too few workers: enqueued after {enqueued:.3f} ms, read after {read:.0f} ms: the application reads late",
        ),
        Check(
            enough.average("tcp-socket-read") < read / 10 and not enough.says("the application"),
            f"more workers: read after {enough.average('tcp-socket-read'):.2f} ms: gone",
        ),
        Check(
            firewall.says("between ip-start and tcp-start", "the firewall"),
            f"{RULES:,} useless rules: {slower:.3f} ms between ip-start and tcp-start: the firewall",
        ),
        Check(
            faster < slower / 5 and not without.says("the firewall"),
            f"rules removed: {faster * 1e3:.1f} µs there: gone",
        ),
    ]


def play(folder: Path, processes: Processes, arguments: argparse.Namespace) -> bool:
    with Wire(processes) as wire:
        try:
            scenes = Scenes(folder, processes, wire, arguments.program, arguments.seconds)
            report.heading("A web server with too few workers, and one behind a firewall")
            few = scenes.play("too few workers", FEW)
            enough = scenes.play_quietly("more workers", ENOUGH)
            wire.rules(folder)
            firewall = scenes.play(f"{RULES:,} useless firewall rules", ENOUGH)
            wire.no_rules()
            without = scenes.play_quietly("rules removed", ENOUGH)
        finally:
            # Nothing may be left in the namespaces when they go.
            processes.stop_all()
    return report.verdict(judge(few, enough, firewall, without))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="how long each scene is watched")
    program = HERE.parent / "target" / "release" / "underspan"
    parser.add_argument("--program", type=Path, default=program, help="the underspan to ask")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("This makes network namespaces and loads BPF programs: run `sudo make demo-stack`.", file=sys.stderr)
        return 2
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if not shutil.which(tool):
            print(f"There is no {tool}: apt-get install {package}", file=sys.stderr)
            return 2
    return stage.run("stack", lambda folder, processes: play(folder, processes, arguments))


if __name__ == "__main__":
    sys.exit(main())
