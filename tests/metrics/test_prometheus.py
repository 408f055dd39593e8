"""What a real Prometheus says, asked by its HTTP API, is what the rows in the store say."""

from __future__ import annotations

import bisect
import concurrent.futures
import contextlib
import math
import re
import socket
import subprocess
import time
import urllib.request

import pytest
from common.cgroup import Cgroup, throttled_ns
from common.ports import any_ports
from common.services import ask, serving
from prometheus import running

# A histogram, and the rows it is of.
HISTOGRAMS = {
    "underspan_request_duration_seconds": "SELECT duration_ns AS ns FROM requests WHERE pid = {pid}",
    "underspan_request_handoff_seconds": "SELECT handoff_ns AS ns FROM requests WHERE pid = {pid}",
    "underspan_tcp_accept_queue_seconds": "SELECT duration_ns AS ns FROM tcp_accept WHERE pid = {pid}",
    "underspan_tcp_connect_seconds": "SELECT duration_ns AS ns FROM tcp_connect WHERE pid = {pid}",
    "underspan_tcp_stall_seconds": "SELECT duration_ns AS ns FROM tcp_loss WHERE pid = {pid}",
    "underspan_gil_wait_seconds": "SELECT duration_ns AS ns FROM gil_wait WHERE pid = {pid}",
    "underspan_gc_pause_seconds": "SELECT duration_ns AS ns FROM gc_pause WHERE pid = {pid}",
}
QUANTILES = (0.1, 0.5, 0.9, 0.99)
# Native buckets grow by 2^(1/8).
NATIVE_FACTOR = 2 ** (1 / 8) * 1.0001
# Names that are node_exporter's, whose own check makes the same exception.
NODE_EXPORTERS = re.compile(r"^node_netstat_\w+ metric names should be written in 'snake_case'")


class Watched:
    """A service that was asked, what was recorded, and two Prometheus that looked on."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def rows(self, table_query: str) -> list[int]:
        """Nanoseconds, ascending."""
        found = self.underspan.sql(self.data, table_query.format(pid=self.pid))
        return sorted(int(row["ns"]) for row in found)


def ask_for_everything(port: int) -> None:
    """Requests that last and wait, for known reasons and spread over orders of magnitude."""
    with socket.create_server(("127.0.0.1", 0)) as peer, concurrent.futures.ThreadPoolExecutor(
        4
    ) as pool:
        paths = [f"/sleep/{2 ** (number % 8)}" for number in range(80)]
        paths += ["/collect"] * 12
        paths += [f"/connect/{peer.getsockname()[1]}"] * 20
        paths += [f"/stall/{20 * 2 ** (number % 4)}" for number in range(8)]
        list(pool.map(ask, [port] * len(paths), paths))
        # Several at once hold the GIL in turn.
        list(pool.map(ask, [port] * 12, ["/spin/60"] * 12))


def packets_over_ipv6() -> None:
    """TCP segments that only these tests send: others are busy on IPv4. Half are read late."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        sender = socket.create_connection(server.getsockname()[:2])
        reader, _ = server.accept()
        with sender, reader:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(100):
                sender.sendall(b"x" * 100)
                time.sleep(0.02 if number % 2 else 0)
                reader.recv(100, socket.MSG_WAITALL)


@pytest.fixture(scope="module")
def watched(underspan, tmp_path_factory):
    """All of it, once."""
    folder = tmp_path_factory.mktemp("metrics")
    data = folder / "data"
    options = ["--netstack", "--keep-root", "--data", data, "--metrics", "127.0.0.1:0", *any_ports()]
    with contextlib.ExitStack() as stack:
        cgroup = stack.enter_context(Cgroup("metrics"))
        cgroup.limit(0.1)
        pid, port = stack.enter_context(serving("waiting.py"))
        cgroup.add(pid)
        going = stack.enter_context(underspan.going("up", "--pid", pid, *options))
        agent = re.search(r"http://([\d.:]+)/metrics", going.wait_for("metrics at"))[1]
        server = re.search(r"http://([\d.:]+)", going.wait_for("API at"))[1]
        going.wait_for("watching;")
        targets = {"agent": agent, "server": server}
        natives = stack.enter_context(running(folder, targets, native=True))
        classics = stack.enter_context(running(folder, targets, native=False))
        ask_for_everything(port)
        packets_over_ipv6()
        # Until nothing is on its way any more: to the store, and to Prometheus.
        time.sleep(6)
        yield Watched(
            cgroup=cgroup,
            underspan=underspan,
            data=data,
            pid=pid,
            agent=agent,
            server=server,
            natives=natives,
            classics=classics,
        )


def exact(sorted_ns: list[int], quantile: float) -> tuple[float, float]:
    """The values next to a quantile, in seconds: between them every definition of it lies."""
    rank = quantile * (len(sorted_ns) - 1)
    low, high = math.floor(rank), math.ceil(quantile * len(sorted_ns))
    low = max(0, min(low, high - 1))
    high = min(max(high, low), len(sorted_ns) - 1)
    return sorted_ns[low] / 1e9, sorted_ns[high] / 1e9


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_native_histograms_answer_quantiles_within_a_bucket(watched, name):
    ns = watched.rows(HISTOGRAMS[name])
    assert len(ns) >= 5, f"{name}: the service was to cause some"
    selector = f'{name}{{job="agent"}}'
    assert watched.natives.value(f"sum(histogram_count({selector}))") == len(ns)
    assert watched.natives.value(f"sum(histogram_sum({selector}))") == pytest.approx(sum(ns) / 1e9)
    for quantile in QUANTILES:
        said = watched.natives.value(f"histogram_quantile({quantile}, sum({selector}))")
        low, high = exact(ns, quantile)
        assert low / NATIVE_FACTOR <= said <= high * NATIVE_FACTOR, f"{name}, {quantile}"
        print(f"{name} {quantile}: native {said:.6f} s, rows {low:.6f} to {high:.6f} s")


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_classic_histograms_answer_quantiles_within_a_bucket(watched, name):
    ns = watched.rows(HISTOGRAMS[name])
    selector = f'{name}_bucket{{job="agent"}}'
    counts = watched.classics.values(f"sum by (le) ({selector})")
    bounds = sorted(float(labels["le"]) for labels, _ in counts)
    for labels, count in counts:
        limit = float(labels["le"])
        assert count == sum(one / 1e9 <= limit for one in ns), f"{name}, up to {limit} s"
    count_selector = selector.replace("_bucket", "_count")
    assert watched.classics.value(f"sum({count_selector})") == len(ns)
    for quantile in QUANTILES:
        said = watched.classics.value(f"histogram_quantile({quantile}, sum by (le) ({selector}))")
        low, high = exact(ns, quantile)
        at_least = bounds[bisect.bisect_left(bounds, low) - 1] if low > bounds[0] else 0
        at_most = bounds[min(bisect.bisect_left(bounds, high), len(bounds) - 2)]
        assert at_least <= said <= at_most, f"{name}, {quantile}: rows say {low} to {high}"
        print(f"{name} {quantile}: classic {said:.6f} s, bucket {at_least} to {at_most} s")


def ages(watched, point: str) -> list[tuple[float, int]]:
    """Upper bounds of buckets in seconds, and how many packets of the rows were in each."""
    query = (
        "SELECT bound / 1e9 AS le, sum(n) AS n FROM netstack ARRAY JOIN bounds_ns AS bound, counts AS n "
        f"WHERE point = '{point}' AND family = 'ipv6' GROUP BY le ORDER BY le"
    )
    return [(float(row["le"]), int(row["n"])) for row in watched.underspan.sql(watched.data, query)]


@pytest.mark.parametrize("point", ["ip-start", "tcp-start", "tcp-socket-enqueued", "tcp-socket-read"])
def test_ages_of_packets_answer_quantiles_within_a_bucket(watched, point):
    of = f'point="{point}",family="ipv6",job="agent"'
    selector = f"underspan_netstack_age_seconds{{{of}}}"

    def settled(_):
        rows = ages(watched, point)
        count = watched.natives.value(f"histogram_count({selector})")
        return rows if rows and count == sum(n for _, n in rows) else None

    rows = watched.natives.wait_for("Prometheus has as many packets as the rows", settled, 20)
    total = sum(n for _, n in rows)
    assert total >= 90, "a hundred segments, each of its own"
    count = f"underspan_netstack_age_seconds_count{{{of}}}"
    assert watched.classics.value(count) == total
    for quantile in QUANTILES:
        seen, rank = 0, quantile * total
        for upper, n in rows:
            seen += n
            if seen >= rank:
                break
        native = watched.natives.value(f"histogram_quantile({quantile}, {selector})")
        assert upper / 2 ** (1 / 4) / 1.001 <= native <= upper * 1.001, f"{point}, {quantile}"
        buckets = selector.replace("_seconds{", "_seconds_bucket{")
        classic = watched.classics.value(f"histogram_quantile({quantile}, {buckets})")
        assert upper / 2 <= classic <= upper * 2, f"{point}, {quantile}"
        print(f"{point} {quantile}: native {native:.9f} s, classic {classic:.9f} s, rows <= {upper:.9f} s")
    if point == "tcp-socket-read":
        assert native > 0.018, "half were read 20 ms late"


def test_native_prometheus_has_no_classic_buckets_and_the_other_has_only_them(watched):
    name = "underspan_request_duration_seconds"
    assert watched.natives.values(f"{name}_bucket") == []
    assert watched.classics.values(name) == []


def test_counters_are_the_rows_of_the_store(watched):
    total = watched.classics.value('sum(underspan_requests_total{job="agent",code="2xx"})')
    # What was sent over the connections with a closed window was no HTTP, and has no status.
    query = f"SELECT count() AS n FROM requests WHERE pid = {watched.pid} AND status DIV 100 = 2"
    rows = watched.underspan.sql(watched.data, query)
    assert total == int(rows[0]["n"]) == 132
    # Time of threads: the last scrape is at most a few seconds behind the rows.
    query = f"SELECT sum(sleep_ns) / 1e9 AS s FROM thread_states WHERE pid = {watched.pid}"
    slept = float(watched.underspan.sql(watched.data, query)[0]["s"])
    said = watched.classics.value('sum(underspan_thread_seconds_total{job="agent",state="sleep"})')
    assert said == pytest.approx(slept, rel=0.02)
    assert slept > 2.5, "80 requests that slept 255 ms for every eight"


def test_the_quota_held_it_back_for_as_long_as_the_kernel_says(watched):
    kernels = throttled_ns(watched.cgroup.cpu_stat) / 1e9
    assert kernels > 0.2, "it held the GIL for more than its quota"
    name = "container_cpu_cfs_throttled_seconds_total"
    said = watched.natives.value(f'{name}{{job="agent",id="{watched.cgroup.path}"}}')
    assert said == pytest.approx(kernels, abs=1e-6)
    query = (
        f"SELECT sum(delta) / 1e9 AS added, max(total) / 1e9 AS total FROM throttle "
        f"WHERE metric = '{name}' AND subject = '{watched.cgroup.path}' AND status = 'read'"
    )
    row = watched.underspan.sql(watched.data, query)[0]
    assert float(row["total"]) == pytest.approx(kernels, abs=1e-6)
    # All but what there was before it was first read.
    assert kernels - 0.5 < float(row["added"]) <= kernels + 1e-6
    print(f"throttled: kernel {kernels:.6f} s, Prometheus {said:.6f} s, rows {row}")


def test_a_source_that_is_not_here_is_told_from_zero(watched):
    up = watched.classics.values('underspan_throttle_source_up{job="agent"}')
    sources = {labels["source"]: (labels["status"], value) for labels, value in up}
    assert set(sources) == {"ena", "ebs", "cpu", "cgroup", "softnet", "pressure", "interface", "listen"}
    assert sources["cgroup"] == ("read", 1)
    for name, (status, value) in sources.items():
        assert value == (status == "read"), name
    if sources["ena"][1] == 0:
        assert watched.classics.values("node_ethtool_pps_allowance_exceeded") == []
    query = "SELECT source, note FROM throttle WHERE status IN ('unsupported', 'refused')"
    notes = {row["source"]: row["note"] for row in watched.underspan.sql(watched.data, query)}
    for name, (status, _) in sources.items():
        assert status == "read" or notes[name], name


def test_both_kinds_of_scrape_went_well(watched):
    for prometheus in (watched.natives, watched.classics):
        for job, target in prometheus.targets().items():
            assert (target["health"], target["lastError"]) == ("up", ""), job
    assert watched.classics.value('underspan_build_info{job="server"}') == 1
    assert watched.classics.value('underspan_store_up{job="server"}') == 1
    assert watched.classics.value('underspan_agent_watched_processes{job="agent"}') == 1
    steal = watched.classics.values('node_cpu_seconds_total{job="agent",mode="steal"}')
    assert len(steal) >= 1


@pytest.mark.parametrize("who", ["agent", "server"])
def test_promtool_has_nothing_to_say_of_the_text(watched, who):
    url = f"http://{getattr(watched, who)}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    said = [line for line in done.stderr.decode().splitlines() if not NODE_EXPORTERS.match(line)]
    assert said == []
    assert done.returncode in (0, 3), done


def test_labels_are_bounded(watched):
    series = watched.classics.value('count({job="agent"})')
    assert series < 3000
    processes = watched.classics.values(
        'count by (process) (underspan_thread_seconds_total{job="agent"})'
    )
    assert len(processes) <= 21


def test_a_port_that_is_taken_is_said_at_once(underspan, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        said = underspan("agent", "--pid", "1", "--data", tmp_path / "data", "--metrics", at)
    said.failed(at, "in use", hint="--metrics")
    assert said.seconds < 20
