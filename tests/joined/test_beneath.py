"""Faults beneath the services: the way, the accept queue, the firewall, the CPU quota."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from common.netns import inside, ip, namespace
from common.play import MS, Play, agree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WAY_MS = 50
NEAR, FAR = "10.81.0.1", "10.81.0.2"


@contextlib.contextmanager
def way():
    """Two network namespaces, and a way between them that takes its time."""
    names = [f"usj{os.getpid()}-{end}" for end in ("near", "far", "middle")]
    with contextlib.ExitStack() as stack:
        near, far, middle = [stack.enter_context(namespace(name)) for name in names]
        for name, address, other in ((near, NEAR, "left"), (far, FAR, "right")):
            ip("-n", name, *f"link add wire type veth peer name {other} netns {middle}".split())
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", middle, "link", "set", other, "addrgenmode", "none", "up")
        command = [*inside(middle), sys.executable, HERE / "relay.py", "left", "right", str(WAY_MS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as relay:
            assert relay.stdout.readline() == "ready\n"
            yield near, far
            relay.stdin.close()


@pytest.fixture(scope="module")
def play(underspan, tmp_path_factory):
    """One run for all, within a network namespace: firewall rules there are nobody else's."""
    data = tmp_path_factory.mktemp("beneath") / "data"
    with way() as (near, far):
        scene = HERE / "beneath_scene.py"
        yield Play(underspan, data, scene, far, FAR, options=["--netstack"], before=inside(near))


def circumstances(explained: dict, kind: str) -> list[dict]:
    return [one for one in explained["meanwhile"] if one["kind"] == kind]


def test_a_connection_for_every_question_is_named(play):
    finding, _ = play.finding("/reconnect", "unpooled")
    each = play.measured["reconnect"]["each"]
    assert min(each) >= 2 * WAY_MS * MS, each
    assert finding["relation"] == "caused", finding
    # The first had to be made.
    agree(finding["ns"], sum(each[1:]))
    assert finding["culprit"]["peer"].startswith(f"{FAR}:"), finding
    assert f"Opened {len(each) - 1} connections to {FAR}:" in finding["text"], finding["text"]
    assert "pool" in finding["advice"], finding
    # The way took its time; nothing was lost on it.
    kinds = {finding["kind"] for finding in play.explain("/reconnect")["findings"]}
    assert "retransmission" not in kinds, kinds


def test_the_query_of_the_readme_says_for_which_request_a_connection_was_opened(play):
    readme = (ROOT / "crates/trackers/tcp_connect/README.md").read_text()
    [query] = [text for text in re.findall(r"```sql\n(.*?)```", readme, re.DOTALL) if "ASOF" in text]
    rows = play.underspan.sql(play.data, query)
    opened = [row for row in rows if row["request_id"] == play.id_of("/reconnect")]
    assert len(opened) == len(play.measured["reconnect"]["each"]), rows
    assert {row["peer"].split(":")[0] for row in opened} == {FAR}, opened
    assert {row["outcome"] for row in opened} == {"connected"}, opened
    # Clients, who serve nobody, open connections too.
    assert any(row["request_id"] == "" for row in rows), rows


def test_what_was_lost_is_told_from_a_peer_that_is_far_away(play):
    finding, explained = play.finding("/ask", "retransmission")
    measured = play.measured["ask"]
    # The way, the probe's and two timeouts' waiting.
    assert measured["lost"] > measured["far"] + 600 * MS, measured
    assert finding["relation"] == "caused", finding
    agree(finding["ns"], measured["lost"])
    assert finding["culprit"]["peer"].startswith(f"{FAR}:"), finding
    assert "retransmission timeout" in finding["text"] and "timer doubled once" in finding["text"], finding
    [socket] = [one for one in explained["sockets"] if one["peer"] == finding["culprit"]["peer"]]
    parts = {part["part"]: part["ns"] for part in socket["parts"]}
    assert set(parts) == {"rto", "peer", "connect"}, socket
    agree(parts["peer"], measured["far"])


def test_an_accept_queue_that_is_full_is_named(play):
    finding, _ = play.finding("/hold/last", "accept_queue")
    assert (finding["pattern"], finding["relation"]) == ("queue_full", "caused"), finding
    measured = play.measured["hold"]["last"]
    agree(finding["ns"], measured["began"] - measured["asked"])
    assert "3 connections in it, 3 allowed by its limit of 2" in finding["text"], finding["text"]
    assert "1 more were dropped" in finding["text"], finding["text"]
    assert "--backlog" in finding["advice"], finding
    # The one before it waited in a queue that was not full when it came.
    finding, _ = play.finding("/hold/waits-1", "accept_queue")
    assert finding["pattern"] == "", finding
    dropped = play.measured["hold"]["dropped"]
    connecting = dropped["connected"] - dropped["asked"]
    assert connecting > 1000 * MS, "its SYN was dropped, and sent again after a second"


def test_rules_that_make_every_packet_late_are_the_firewall(play):
    messages = play.measured["exchange"]
    least, mean = (messages["with"][key] - messages["without"][key] for key in ("quickest", "mean"))
    assert least > 2 * MS, messages
    late = circumstances(play.explain("/exchange/100"), "packets_late")
    # While the kernel looks at rules, readers wait for its CPU: the application may have been late as well.
    [firewall] = [one for one in late if one["what"] == "firewall"]
    # It is the mean of all packets meanwhile, some of which are larger: the messages' own, or a little off it.
    assert least * 3 / 4 < firewall["amount"] < mean * 5 / 4, (firewall, messages)
    assert "sets or maps" in firewall["advice"], firewall
    before = circumstances(play.explain("/exchange/2000"), "packets_late")
    assert "firewall" not in [one["what"] for one in before], before


def test_an_application_that_reads_late_is_named(play):
    measured = play.measured["late"]
    added = measured["late"] / measured["packets"]
    assert added > 4 * MS, measured
    [late] = circumstances(play.explain("/late/50"), "packets_late")
    assert late["what"] == "application", late
    # Of all packets meanwhile: on a loaded machine others of this host are read late as well, such as the store's.
    assert late["amount"] > added * 3 / 4, (late, measured)
    assert "more workers" in late["advice"], late


def test_a_quota_is_told_with_what_it_cost(play):
    finding, explained = play.finding("/burn", "throttled")
    measured = play.measured["burn"]
    assert finding["relation"] == "caused", finding
    agree(finding["ns"], measured["throttled"])
    assert finding["culprit"]["cgroup"] == play.measured["cgroup"], finding
    # It is told once: what coincided is what no finding claims.
    assert not circumstances(explained, "host_throttled"), explained["meanwhile"]
    request = explained["start_time"] // 1_000_000_000, explained["duration_ns"] // 1_000_000_000
    [counted] = play.underspan.sql(
        play.data,
        f"""SELECT toInt64(sum(delta)) AS ns FROM throttle
            WHERE metric = 'container_cpu_cfs_throttled_seconds_total' AND status = 'read'
            AND subject = '{play.measured["cgroup"]}'
            AND start_time BETWEEN toDateTime({request[0] - 1}) AND toDateTime({sum(request) + 1})""",
    )
    agree(int(counted["ns"]), measured["throttled"])
