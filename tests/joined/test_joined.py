"""Faults between two services: does `explain` of the one's request name what happened at the other?"""

from __future__ import annotations

import json
import pathlib

import pytest
from common.play import Play, agree

HERE = pathlib.Path(__file__).resolve().parent
LOCAL = "127.0.0.1:"


@pytest.fixture(scope="module")
def scene(underspan, tmp_path_factory):
    """One run for all."""
    return Play(underspan, tmp_path_factory.mktemp("joined") / "data", HERE / "scene.py")


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


@pytest.mark.parametrize("late_ms", [60, 250, 600])
def test_a_reader_that_does_not_read_is_named(scene, late_ms):
    finding, explained = scene.finding(f"/window/{late_ms}", "zero_window")
    measured = scene.measured[f"/window/{late_ms}"]
    assert finding["relation"] == "caused", finding
    # On a loaded machine the reader is late for a moment now and then, which the kernel counts as well.
    agree(finding["ns"], min(max(finding["ns"], measured["late"]), measured["kernel"]))
    [socket] = [one for one in explained["sockets"] if one["peer"] == finding["culprit"]["peer"]]
    agree(socket["ns"], measured["waited"])
    culprit = finding["culprit"]
    assert culprit["pid"] == scene.measured["backend"], finding
    assert culprit["thread"] == "reads-late", finding
    assert "was in sleep" in finding["text"], finding["text"]


def test_an_undisturbed_request_has_no_finding(scene):
    # A loaded machine is late with some thread now and then, and says so. That of which the client waited
    # least was not disturbed.
    waits = scene.measured["quiet"]
    explained = scene.explain("/quiet", waits.index(min(waits)) - len(waits))
    assert explained["findings"] == [], explained
    assert explained["meanwhile"] == [], explained
    for socket in explained["sockets"]:
        assert {part["part"] for part in socket["parts"]} <= {"peer", "connect"}, socket
