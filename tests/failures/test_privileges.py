"""No root; and root dropped, with everything still seen."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from common.command import NOBODY, until
from common.ports import any_ports
from common.processes import status
from common.services import service

# CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE
KEPT = 1 << 2 | 1 << 19 | 1 << 23 | 1 << 38 | 1 << 39 | 1 << 40
READ = 1 << 2


@pytest.mark.parametrize("words", [["up", *any_ports()], ["agent"], ["run", "--", "touch", "mark"]])
def test_no_root(underspan, place, words):
    os.chmod(place, 0o777)
    said = underspan("--data", place / "data", *words, before=NOBODY, cwd=place)
    said.failed("needs root", "sudo")
    assert said.seconds < 15
    # Nothing was begun: no store, no command that runs unwatched.
    assert list(place.iterdir()) == []


def test_doctor_without_root(underspan):
    said = underspan("doctor", before=NOBODY)
    assert said.status == 1, said
    assert "needs root" in said.out, said
    said = underspan("doctor", "--json", before=NOBODY)
    assert said.status == 1, said
    assert "needs root" in json.loads(said.out)["error"], said


def capabilities(pid: int, which: str) -> int:
    """One of a process's sets."""
    return int(status(pid)[which], 16)


def host_of(data) -> int:
    """The pid of the embedded store's host."""
    return json.loads((data / "endpoint.json").read_text())["pid"]


def pythons() -> list[str]:
    """One Python per version, and Debian's."""
    pyenv = glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"))
    homes = [*pyenv, sys.executable, "/usr/bin/python3"]
    found = {os.path.realpath(path): path for path in homes if os.path.exists(path)}
    return [path for path in found.values() if supported(path)]


def supported(path: str) -> bool:
    """CPython 3.8 or later."""
    check = "import sys; sys.exit(sys.version_info < (3, 8))"
    return subprocess.run([path, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("command", ["up", "agent"])
def test_root_is_dropped_and_all_is_still_seen(underspan, place, command):
    data = place / "data"
    words = ["up", *any_ports()] if command == "up" else ["agent"]
    with underspan.going(*words, "--data", data, "--comm", "py-*") as going:
        going.wait_for("watching")
        uid = os.stat(data).st_uid
        assert uid != 0
        for path in [data, *data.rglob("*")]:
            with_owner = path.lstat() if path.exists() else None
            assert with_owner is None or with_owner.st_uid == uid, path
        for thread in os.listdir(f"/proc/{going.pid}/task"):
            said = status(f"{going.pid}/task/{thread}")
            assert said["Uid"].split() == [str(uid)] * 4
            assert said["NoNewPrivs"] == "1"
        for which in ("CapPrm", "CapEff", "CapBnd"):
            assert capabilities(going.pid, which) == KEPT
        host = host_of(data)
        assert status(host)["Uid"].split() == [str(uid)] * 4
        # At most: where its Python or the folder is not open to that user.
        assert capabilities(host, "CapPrm") in (0, READ)

        # Programs seen for the first time after the drop.
        found = pythons()
        started = [start(python, place / f"py-{number}") for number, python in enumerate(found)]
        for python, process in zip(found, started):
            check(underspan, data, python, process)
        stopped = going.process.send_signal(2) or going.wait()
        assert stopped.status == 0, stopped
    rungs = {row["gc_rung"] for row in underspan.sql(data, "SELECT DISTINCT gc_rung FROM processes")}
    print("collections seen by", rungs)
    assert rungs - {"none", ""}, "no collection was seen by any rung"


WORKLOAD = """
import gc, sys, threading, time
open('/proc/self/comm', 'w').write(sys.argv[1])
def job():
    end = time.monotonic() + 4
    while time.monotonic() < end:
        gc.collect()
        sum(range(20000))
threads = [threading.Thread(target=job, name='job-%d' % n) for n in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def start(python: str, link: pathlib.Path) -> subprocess.Popen:
    """An interpreter under another name, by which its process is selected."""
    link.symlink_to(os.path.realpath(python))
    return subprocess.Popen([link, "-c", WORKLOAD, link.name])


def check(underspan, data, python: str, process: subprocess.Popen) -> None:
    """Whether all was seen of it."""
    try:
        assert process.wait(120) == 0
    finally:
        process.kill()
    of_it = f"WHERE pid = {process.pid}"

    def row():
        query = f"SELECT * FROM processes {of_it} AND python != '' ORDER BY seen DESC"
        return next(iter(underspan.sql(data, query)), None)

    seen = until(f"{python} is watched", row)
    assert seen["gil"] == "seen", seen
    query = f"SELECT DISTINCT thread FROM thread_states {of_it} AND thread LIKE 'job-%'"
    until(f"thread names of {python}", lambda: len(underspan.sql(data, query)) == 2)
    waits = f"SELECT count() AS n FROM gil_wait {of_it}"
    until(f"waits for the GIL of {python}", lambda: int(underspan.sql(data, waits)[0]["n"]))
    if seen["gc_rung"] not in ("none", ""):
        pauses = f"SELECT count() AS n FROM gc_pause {of_it}"
        until(f"collections by {seen['gc_rung']}", lambda: int(underspan.sql(data, pauses)[0]["n"]))


def test_keep_root(underspan, place):
    data = place / "data"
    with underspan.going("agent", "--keep-root", "--data", data, "--comm", "no-such") as going:
        going.wait_for("watching")
        assert status(going.pid)["Uid"].split() == ["0"] * 4
        assert status(host_of(data))["Uid"].split() == ["0"] * 4


def test_who_called_sudo(underspan, place):
    env = {"SUDO_USER": "daemon"}
    with underspan.going("agent", "--data", place / "data", "--comm", "no-such", env=env) as going:
        going.wait_for("watching")
        assert status(going.pid)["Uid"].split()[0] == "1"


def test_unknown_user(underspan, place):
    said = underspan("agent", "--user", "no-such-user", "--data", place / "data")
    said.failed("no-such-user", hint="--keep-root")


def test_a_folder_with_other_files_is_not_given_away(underspan, place):
    (place / "thesis.tex").write_text("")
    said = underspan("agent", "--data", place)
    said.failed("thesis.tex", hint="--data")
    assert os.stat(place).st_uid == 0
    # Beside a store it is no hindrance, but to giving the folder away.
    (place / "lock").write_text("1\n")
    (place / "data").mkdir()
    said = underspan("agent", "--data", place)
    said.failed("thesis.tex", hint="--keep-root")
    assert os.stat(place).st_uid == 0


def test_what_root_left_is_taken_over(underspan, place):
    """`run` stays root, `up` does not: the same folder serves both, one after the other."""
    data = place / "data"
    for _ in range(2):
        assert underspan("run", "--data", data, "--", *service("service.py", "--requests", 2)).status == 0
        with underspan.going("agent", "--data", data, "--comm", "no-such") as going:
            going.wait_for("watching")
    assert int(underspan.sql(data, "SELECT count() AS n FROM requests")[0]["n"]) == 4


def low_port() -> int:
    """A port below 1024 that nobody has."""
    for port in range(1023, 600, -1):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port below 1024 is free")


def test_a_port_below_1024(underspan, place):
    """Taken while root; and who is not root is told."""
    words = any_ports()
    words[words.index("--api") + 1] = f"127.0.0.1:{low_port()}"
    with underspan.going("up", *words, "--data", place / "data", "--comm", "no-such") as up:
        url = up.wait_for("API at").split()[-1]
        assert url.endswith(words[words.index("--api") + 1])
        assert urllib.request.urlopen(f"{url}/health", timeout=10).status == 200
        assert os.stat(f"/proc/{up.pid}").st_uid != 0
        up.send(signal.SIGINT)
        assert up.wait(30).status == 0
    if int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) >= 1024:
        said = underspan("server", *words, "--data", place / "other", before=NOBODY)
        said.failed("only root may listen on", "--api HOST:PORT")
