"""What timing packets at seven points of the receive stack costs, at the highest rate that veth makes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench import bpf, machine, workload
from bench.figures import Row, at_most, change, held_below, spread
from bench.observers import BenchError, Bpftrace
from bench.settings import Settings

TITLE = "Packets: the receive stack's histograms"
NOTES = [
    "Two network namespaces joined by veth. The flood is one thread that sends datagrams of 32 bytes as fast as it can "
    "and one that reads them; the stream is the same over TCP, each message in a segment of its own; the round trips "
    "are one message to and fro, again and again. With and without `underspan netstack` by turns, changing who begins; "
    "a ratio is against the run beside it, and told are the median and the interval that has the true one with 95 % "
    "confidence.",
    "Nanoseconds a point are the kernel's own count of each program's run time (`bpf_stats_enabled`), in runs of their "
    "own: of flood and stream, the highest rates that this machine makes on veth, and, for comparison, of the round "
    "trips, between which each CPU does something else, so that less is in its caches. The counting itself is part of "
    "it: an empty program at the same packets says how much, and what remains without it is held against the target.",
]
ADDRESS = "10.80.0.2"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
POINT_NS, P99_PERCENT = 150, 1
EMPTY = "netif_receive_skb"
# As the kernel cuts them: 15 characters.
POINTS = {
    "netstack_pre_routing": "ip-start",
    "netstack_ip_rcv_core": "ip-start",
    "netstack_local_in": "tcp-start and udp-start",
    "netstack_tcp_v4_rcv": "tcp-start",
    "netstack_udp_rcv": "udp-start",
    "netstack_enqueued": "tcp- and udp-socket-enqueued",
    "netstack_tcp_queue_rcv": "tcp-socket-enqueued",
    "netstack_udp_enqueue": "udp-socket-enqueued",
    "netstack_read": "tcp-socket-read",
    "netstack_tcp_recv_timestamp": "tcp-socket-read",
    "netstack_datagram_read": "udp-socket-read",
    "netstack_skb_consume_udp": "udp-socket-read",
    "netstack_arrives": "a packet of this host's own arrives",
    "netstack_segment": "a segment's place in its stream",
}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def wire() -> Iterator[tuple[str, str]]:
    """The receiving and the sending namespace."""
    receiver, sender = names = [f"usbench-{os.getpid()}-{end}" for end in "rs"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", receiver, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", sender)
        for name, address in ((receiver, ADDRESS), (sender, "10.80.0.1")):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        yield receiver, sender
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def watching(receiver: str) -> Iterator[int]:
    """`underspan netstack` in the receiving namespace; its pid."""
    program = os.environ.get("UNDERSPAN", str(machine.ROOT / "target/release/underspan"))
    argv = [program, "netstack", "--netns", receiver, "--interval", "1h"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            if not process.stdout.readline():
                raise BenchError("underspan netstack ended before it began")
            time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()


def play(folder: Path, names: tuple[str, str], way: str, seconds: float) -> dict:
    receiver, sender = (f"/run/netns/{name}" for name in names)
    binary = str(workload.compiled(folder, "packets"))
    with workload.Workload([binary, way, receiver, sender, ADDRESS, str(seconds)]) as program:
        return program.go()


@contextmanager
def statistics() -> Iterator[None]:
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def points(folder: Path, names: tuple[str, str], ways: tuple[str, ...], seconds: float) -> dict[str, bpf.Cost]:
    """Run time of each program while such packets pass."""
    with watching(names[0]) as pid, Bpftrace(folder, f"tracepoint:net:{EMPTY} {{ }}") as empty, statistics():
        before = bpf.costs(pid) | bpf.costs(empty.pid)
        for way in ways:
            play(folder, names, way, seconds)
        return bpf.difference(before, bpf.costs(pid) | bpf.costs(empty.pid))


def told(costs: dict[str, bpf.Cost], where: str, limit: int | None) -> list[Row]:
    """A row for each point, against the limit if there is one."""

    def of(name: str) -> bpf.Cost | None:
        return next((cost for known, cost in costs.items() if known[:15] == name[:15]), None)

    counting = of(EMPTY)
    if counting is None or not counting.runs:
        raise BenchError("the empty program saw no packet: what the counting costs is not known")
    rows = [Row(f"{where}: an empty program, for comparison", f"{counting.each:.0f} ns, {counting.runs:,} packets")]
    for name, what in POINTS.items():
        cost = of(name)
        if not cost or not cost.runs:
            continue
        value = cost.each - counting.each
        figure = f"{cost.each:.0f} ns, {cost.runs:,} packets; {value:.0f} ns without the counting"
        row = f"{where}: each packet at {what}"
        rows.append(at_most(row, value, limit, figure, f"≤ {limit} ns") if limit else Row(row, figure))
    return rows


def run(folder: Path, settings: Settings) -> list[Row]:
    seconds = settings.storm_s
    one_way, to_and_fro = ("sent", "received"), ("rate", "p99_ns")
    ways = {"flood": one_way, "stream": one_way, "udp": to_and_fro, "tcp": to_and_fro}
    off: dict[str, list[dict]] = {way: [] for way in ways}
    on: dict[str, list[dict]] = {way: [] for way in ways}
    with wire() as names:
        play(folder, names, "flood", 0.5)  # warm: neighbours are known, code is in the caches
        for pair in range(settings.pairs):
            for way in ways:
                for watched in (pair % 2 == 0, pair % 2 == 1):
                    with watching(names[0]) if watched else nullcontext():
                        (on if watched else off)[way].append(play(folder, names, way, seconds))
        rows = told(points(folder, names, ("flood", "stream"), seconds), "Flood and stream", POINT_NS)
        rows += told(points(folder, names, ("udp", "tcp"), seconds), "Round trips", None)
    for way, figures in ways.items():
        name = way.capitalize() if figures == one_way else f"{way.upper()} round trips"
        if figures == one_way:
            rows.append(Row(f"{name}: packets a second, unwatched", spread([one["sent"] for one in off[way]])))
        for figure in figures:
            ratios = [with_us[figure] / without[figure] for without, with_us in zip(off[way], on[way])]
            what = {"sent": "packets a second", "received": "of them read", "rate": "a second", "p99_ns": "p99"}[figure]
            if figure == "p99_ns":
                base = spread([one[figure] / 1e3 for one in off[way]], "{:.1f}")
                rows.append(Row(f"{name}: p99, unwatched", f"{base} µs"))
                rows.append(held_below(f"{name}: {what}", ratios, 1 + P99_PERCENT / 100, f"≤ +{P99_PERCENT} %"))
            else:
                rows.append(Row(f"{name}: {what}", change(ratios)))
    return rows
