"""underspan run: commands that do not start, are killed, or outlive a signal; Ctrl-C at any time."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time

import pytest
from common.command import until
from common.ports import any_ports
from common.processes import children_of, is_alive

NAP = ["sh", "-c", "echo pid $$; exec sleep 30"]
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(scope="module")
def served(underspan, tmp_path_factory):
    """A folder whose store is up already: starting one each time would take long."""
    data = tmp_path_factory.mktemp("served") / "data"
    with underspan.serving(data):
        yield data


def test_no_such_command(underspan, served):
    said = underspan("run", "--data", served, "--", "no-such-command-anywhere", "x")
    said.failed("no-such-command-anywhere: ", "No such file", status=127, hint="PATH")
    assert said.seconds < 20


def test_not_executable(underspan, served, place):
    file = place / "file"
    file.write_text("#!/bin/sh\n")
    said = underspan("run", "--data", served, "--", file)
    said.failed(f"{file}: ", "ermission denied", status=126, hint="execute")
    said = underspan("run", "--data", served, "--", place)
    said.failed(f"{place}: ", status=126)


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_status_is_the_commands(underspan, served, status):
    assert underspan("run", "--data", served, "--", "sh", "-c", f"exit {status}").status == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed_by_a_signal(underspan, served, number):
    said = underspan("run", "--data", served, "--", "sh", "-c", f"kill -{int(number)} $$")
    assert said.status == 128 + number, said


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_passed_on(underspan, served, number):
    with underspan.going("run", "--data", served, "--", *NAP, start_new_session=True) as run:
        pid = int(run.wait_for("pid ", out_only=True).split()[1])
        run.send(number)
        said = run.wait(20)
    assert said.status == 128 + number, said
    assert not is_alive(pid)


def test_a_command_that_ignores_signals_is_waited_for(underspan, served):
    """Its rows are not given up, and it is not left behind."""
    command = "trap '' TERM; echo started; sleep 3; echo over"
    with underspan.going("run", "--data", served, "--", "sh", "-c", command) as run:
        run.wait_for("started", out_only=True)
        run.send(signal.SIGTERM)
        run.send(signal.SIGTERM)
        said = run.wait(30)
    assert (said.status, "over" in said.out) == (0, True), said


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("words", [["run", "--", "touch", "mark"], ["up", *any_ports()], ["agent"]])
def test_a_signal_before_anything_is_watched(underspan, place, words, number):
    """While the store is starting: nothing was begun, nothing stays behind."""
    data = place / "data"
    with underspan.going("--data", data, *words, cwd=place) as going:
        going.wait_for("starting the embedded store")
        going.send(number)
        said = going.wait(20)
    assert said.status == 128 + number, said
    assert "interrupted" in said.err, said
    assert not (place / "mark").exists()
    until("the store's host has ended", lambda: not users_of(data), 30)


def users_of(folder) -> list[int]:
    """Processes whose command line names a folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and is_alive(int(path.parent.name)):
            found.append(int(path.parent.name))
    return found


def test_killed_while_the_command_waits(underspan, place):
    """kill -9 before the command was let go: it must not wait for ever, nor run unwatched."""
    mark = place / "mark"
    with underspan.going("run", "--data", place / "data", "--", "touch", mark) as run:
        run.wait_for("starting the embedded store")
        held = children_of(run.pid)
        run.send(signal.SIGKILL)
        run.wait(10)
    until("the held command has ended", lambda: not any(map(is_alive, held)), 30)
    until("the store's host has ended", lambda: not users_of(place / "data"), 30)
    assert not mark.exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_up_and_agent(underspan, place, number):
    data = place / "data"
    for words in (["up", *any_ports()], ["agent"]):
        with underspan.going(*words, "--data", data, "--comm", "no-such") as going:
            going.wait_for("API at" if "up" in words else "watching")
            going.send(number)
            said = going.wait(30)
        assert said.status == 0, said
        assert not users_of(data)


def test_a_second_ctrl_c_cuts_the_wait_for_the_store_short(underspan, place):
    """The store hangs; the rows go to the spool and into the store with the next run."""
    data, spool = place / "data", place / "spool"
    with underspan.serving(data) as server:
        words = ["agent", "--keep-root", "--data", data, "--spool", spool]
        with underspan.going(*words, "--pid", server.going.pid) as agent:
            agent.wait_for("watching")
            time.sleep(2)
            os.kill(server.host_pid, signal.SIGSTOP)
            try:
                time.sleep(2)
                agent.send(signal.SIGINT)
                agent.wait_for("stopping")
                time.sleep(1)
                assert agent.process.poll() is None, "it did not wait for the store"
                agent.send(signal.SIGINT)
                said = agent.wait(5)
            finally:
                os.kill(server.host_pid, signal.SIGCONT)
        assert said.status == 0, said
        assert "wait in the spool" in said.err, said
        assert list(spool.glob("*.segment"))
        with underspan.going(*words, "--comm", "no-such") as agent:
            agent.wait_for("watching")
            until("the spool is drained", lambda: not list(spool.glob("*.segment")))


def test_nobody_reads_standard_error(underspan, served, place):
    """`2>&1 | head` closes it: the command runs all the same, its status is told, and its rows are there."""
    mark = place / "mark"
    read, write = os.pipe()
    os.close(read)
    words = ["run", "--data", served, "--", "sh", "-c", f"echo $$ > {mark}; sleep 0.2; exit 3"]
    done = subprocess.run(
        [underspan.program, *map(str, words)],
        env=underspan.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=write,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 3
    pid = int(mark.read_text())
    query = f"SELECT count() AS n FROM thread_states WHERE pid = {pid}"
    assert int(underspan.sql(served, query)[0]["n"]) > 0


def test_quiet(underspan, place):
    """With `-q` there is nothing but what the command says, also where the store has to be started."""
    said = underspan("run", "-q", "--data", place / "data", "--", "sh", "-c", "echo out; echo err >&2")
    assert (said.status, said.out, said.err) == (0, "out\n", "err\n"), said
