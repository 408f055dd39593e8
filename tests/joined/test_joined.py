"""Faults between two services: does `explain` of the one's request name what happened at the other?"""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
MS = 1_000_000
LOCAL = "127.0.0.1:"
NETWORK = {"retransmission", "zero_window", "accept_queue_full", "unpooled"}


class Scene:
    """What the services measured, and what Underspan says of it."""

    def __init__(self, underspan, data) -> None:
        self.underspan, self.data = underspan, data
        said = underspan("run", "--data", data, "--", sys.executable, HERE / "scene.py", limit=240)
        assert said.status == 0, said
        self.measured = json.loads(said.out.splitlines()[-1])
        self.requests = underspan.sql(
            data, "SELECT request_id, path, process, pid FROM requests ORDER BY start_time"
        )

    def explain(self, path: str) -> dict:
        """The explanation of the front's last request with this path."""
        ids = [row["request_id"] for row in self.requests if row["path"] == path]
        said = self.underspan("explain", ids[-1], "--json", "--data", self.data)
        assert said.status == 0, said
        return json.loads(said.out)

    def finding(self, path: str, kind: str) -> tuple[dict, dict]:
        """The one finding of that kind, and the explanation it is from."""
        explained = self.explain(path)
        found = [finding for finding in explained["findings"] if finding["kind"] == kind]
        assert len(found) == 1, explained["findings"]
        return found[0], explained


@pytest.fixture(scope="module")
def scene(underspan, tmp_path_factory):
    """One run for all."""
    return Scene(underspan, tmp_path_factory.mktemp("joined") / "data")


def agree(found: int, measured: int) -> None:
    """Within 5 ms or 5 %."""
    assert abs(found - measured) <= max(5 * MS, measured * 0.05), (found / MS, measured / MS)


def test_a_peer_is_followed_into_its_request(scene):
    finding, explained = scene.finding("/follow", "net_read")
    assert finding["relation"] == "caused", finding
    agree(finding["ns"], scene.measured["/follow"])
    culprit = finding["culprit"]
    assert (culprit["route"], culprit["pid"]) == ("GET /slow", scene.measured["backend"]), culprit
    assert culprit["peer"].startswith(LOCAL), culprit
    assert "in sleep" in finding["text"], finding["text"]
    # What it says can be asked for.
    said = scene.underspan("explain", culprit["request_id"], "--json", "--data", scene.data)
    assert json.loads(said.out)["path"] == "/slow", said.out
    sockets = [socket for socket in explained["sockets"] if socket["request"]]
    assert sockets[0]["request"]["request_id"] == culprit["request_id"], sockets
    assert sockets[0]["request"]["longest"]["part"] == "sleep", sockets


def test_a_full_accept_queue_is_named(scene):
    finding, explained = scene.finding("/full", "accept_queue_full")
    assert finding["relation"] == "caused", finding
    agree(finding["ns"], scene.measured["/full"])
    assert finding["culprit"]["pid"] == scene.measured["backend"], finding
    assert "backlog" in finding["advice"], finding
    [socket] = [one for one in explained["sockets"] if one["peer"] == finding["culprit"]["peer"]]
    assert socket["parts"][0]["part"] == "syn_retry", socket


def test_a_reader_that_does_not_read_is_named(scene):
    finding, explained = scene.finding("/window", "zero_window")
    assert finding["relation"] == "caused", finding
    agree(finding["ns"], scene.measured["/window"])
    [socket] = [one for one in explained["sockets"] if one["peer"] == finding["culprit"]["peer"]]
    agree(socket["ns"], scene.measured["/window"])
    culprit = finding["culprit"]
    assert culprit["pid"] == scene.measured["backend"], finding
    assert culprit["thread"] == "reads-late", finding
    assert "was in sleep" in finding["text"], finding["text"]


def test_an_undisturbed_request_has_no_finding(scene):
    explained = scene.explain("/quiet")
    # A loaded machine may have been late with a thread; no connection was.
    kinds = {finding["kind"] for finding in explained["findings"]}
    assert not kinds & NETWORK, explained
    assert explained["meanwhile"] == [], explained
    for socket in explained["sockets"]:
        assert {part["part"] for part in socket["parts"]} <= {"peer", "connect"}, socket
