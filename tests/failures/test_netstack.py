"""underspan netstack: what is not there, what goes while it is looked at, and what is not asked for."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from common.command import until
from common.netns import inside, ip, namespace

A_WIRE = "link add wire type veth peer name other"


@pytest.fixture
def netns():
    """A network namespace with a wire of two ends, and its name."""
    with namespace(f"usf{os.getpid()}") as name:
        ip("-n", name, *A_WIRE.split())
        ip("-n", name, "link", "set", "wire", "up")
        yield name


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["--pid", "999999999"], ["no process 999999999"], 1),
        (["--pid", "init"], ["invalid digit"], 2),
        (["--interface", "no-such-wire"], ["no interface no-such-wire; there are: ", "lo"], 1),
        (["--interface", ""], ["no interface"], 1),
        (["--interface", "a-name-longer-than-interfaces-have"], ["no interface"], 1),
        (["--cgroup", "/no/such/cgroup"], ["cgroup /no/such/cgroup: there is no cgroup of that path"], 1),
        (["--cgroup", "no-such-container"], ["no container of that name"], 1),
        (["--netns", "no-such-namespace"], ["no-such-namespace", "ip netns"], 1),
        (["--netns", "/etc/hostname"], ["/etc/hostname", "ip netns"], 1),
        (["--min-queue", "-1"], ["-1"], 2),
        (["--min-queue", "many"], ["invalid digit"], 2),
        (["--interval", "1ms"], ["100 ms"], 2),
        (["--interval", "soon"], ["soon"], 2),
        (["--count", "0"], ["0"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_not_there_is_said(underspan, words, said, status):
    done = underspan("netstack", *words, "--count", "1") if "--count" not in words else underspan("netstack", *words)
    assert (done.status, done.out) == (status, ""), done
    for text in said:
        assert text in done.err, done
    assert "panicked" not in done.err, done
    assert done.seconds < 20, done


def test_too_many_cgroups(underspan):
    words = [word for _ in range(17) for word in ("--cgroup", "/")]
    underspan("netstack", *words).failed("cgroups: at most 16 can be given", hint="--help")


@contextlib.contextmanager
def watched(underspan, *words):
    """The lines that it prints, as they come."""
    with underspan.going("netstack", "--json", "--interval", "200ms", *words) as going:
        until("it counts", lambda: going.out)
        yield going


def noticed(going, what: str) -> str:
    """Waits until it says so, and checks that it goes on."""

    def said():
        notices = [notice for line in list(going.out) for notice in json.loads(line)["notices"]]
        return next((notice for notice in notices if what in notice), None)

    notice = until(what, said, limit=20)
    so_far = len(going.out)
    until("it goes on", lambda: len(going.out) > so_far + 2, limit=20)
    assert going.process.poll() is None, going.err
    assert not going.err, going.err
    return notice


def test_a_process_that_ends(underspan):
    with subprocess.Popen(["sleep", "60"]) as sleeper, watched(underspan, "--pid", sleeper.pid) as going:
        sleeper.kill()
        sleeper.wait()
        assert noticed(going, "has ended") == f"process {sleeper.pid} has ended"


def test_an_interface_that_vanishes_and_comes_back(underspan, netns):
    with watched(underspan, "--netns", netns, "--interface", "wire", "--by", "interface") as going:
        ip("-n", netns, "link", "delete", "wire")
        assert "interface wire (" in noticed(going, "has gone")
        ip("-n", netns, *A_WIRE.split())
        assert "interface wire (" in noticed(going, "is there")


def test_a_namespace_that_ends(underspan, netns):
    with watched(underspan, "--netns", netns) as going:
        ip("netns", "delete", netns)
        assert netns in noticed(going, "has ended")


def test_a_cgroup_that_vanishes(underspan):
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    roots = [mount[1] for mount in mounts if mount[2] == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup2 is mounted")
    folder = pathlib.Path(roots[0], f"underspan-failures-{os.getpid()}")
    folder.mkdir()
    try:
        with watched(underspan, "--cgroup", folder, "--by", "cgroup") as going:
            folder.rmdir()
            assert folder.name in noticed(going, "has gone")
    finally:
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def test_nothing_asked_for_is_nothing_counted(underspan, netns):
    """Packets go over `lo`; asked for is what comes by `wire`."""
    words = ["--netns", netns, "--interface", "wire", "--count", "3", "--interval", "300ms", "--json"]
    talk = (
        "import socket, time\n"
        "here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); here.bind(('127.0.0.1', 0))\n"
        "end = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "    here.sendto(b'x', here.getsockname()); here.recv(1); time.sleep(0.01)\n"
    )
    with subprocess.Popen([*inside(netns), sys.executable, "-c", talk]) as talker:
        by_wire = underspan("netstack", *words)
        all_there_is = underspan("netstack", "--netns", netns, *words[4:])
        talker.kill()
    assert (by_wire.status, all_there_is.status) == (0, 0), (by_wire, all_there_is)
    assert [row["histograms"] for row in by_wire.rows()] == [[], [], []], by_wire
    points = {one["point"] for row in all_there_is.rows() for one in row["histograms"]}
    assert {"ip-start", "udp-start", "udp-socket-enqueued", "udp-socket-read"} <= points, points
