"""Stores that are away, wrong, old, new, locked, full; ports that are taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from common.command import until
from common.ports import any_ports, free_port, occupied_port
from common.services import running, service
from fakes import answering, silent, version

# Commands that need a store, each of which must not begin its work without one.
WRITERS = [["up", *any_ports()[:-2]], ["agent"], ["server", *any_ports()[:-2]], ["run", "--", "touch", "mark"]]
READERS = [["requests"], ["sql", "SELECT 1"]]


@pytest.mark.parametrize("words", WRITERS)
def test_nobody_there(underspan, place, words):
    url = f"http://127.0.0.1:{free_port()}"
    said = underspan("--store", url, "--data", place / "data", *words, cwd=place)
    said.failed(f"the store at {url}", "cannot be reached", "refused", "start it, or name another one with --store")
    assert said.seconds < 15
    assert not (place / "mark").exists()


@pytest.mark.parametrize("words", WRITERS[1:] + READERS)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((version("20.1.2.3"),), "is ClickHouse 20.1.2.3; Underspan needs 24.3 or newer: upgrade it"),
        ((b"<!doctype html><title>Welcome to nginx!</title>",), "is not ClickHouse's HTTP interface"),
        ((b"",), "is not ClickHouse's HTTP interface"),
        ((b"\xff" * 5000,), "is not ClickHouse's HTTP interface"),
        ((b"<html>not found</html>", 404), "is not ClickHouse's HTTP interface"),
        ((b"<html>bad gateway</html>", 502), "is not ClickHouse's HTTP interface"),
    ],
    ids=["old", "html", "empty", "rubbish", "404", "502"],
)
def test_something_else_answers(underspan, place, words, answer, message):
    with answering(*answer) as url:
        said = underspan("--store", url, "--data", place / "data", *words, cwd=place)
    said.failed(url, message)
    assert not (place / "mark").exists()


def test_it_never_answers(underspan, place):
    with silent() as url:
        said = underspan("requests", "--store", url)
        said.failed(f"the store at {url} did not answer within")
        said = underspan("agent", "--store", url, "--data", place / "data")
        said.failed(f"the store at {url} did not answer within")
        # Ctrl-C does not wait for it.
        with underspan.going("agent", "--store", url, "--data", place / "data") as agent:
            time.sleep(2)
            agent.send(signal.SIGINT)
            assert agent.wait(5).status == 130


def test_wrong_password(underspan, recorded):
    with underspan.serving(recorded) as server:
        for user in ("", "default:sesame@", "somebody:x@"):
            url = server.url(user)
            for words in (["requests"], ["agent"]):
                said = underspan(*words, "--store", url, "--data", recorded.parent / "other")
                said.failed("refused user", "http://user:password@host:8123/database")
                assert "sesame" not in said.err


def test_a_newer_underspan_made_the_tables(underspan, place):
    data = place / "data"
    assert underspan("run", "--data", data, "--", "true").status == 0
    said = underspan(
        "sql", "--data", data, "INSERT INTO schema_migrations (component, version, description) VALUES ('gc', 99, '')"
    )
    assert said.status == 0, said
    for words in (["run", "--", "touch", "mark"], ["agent"], ["server", "--store-port", "0"]):
        said = underspan("--data", data, *words, cwd=place)
        said.failed("'gc' is at version 99", "a newer one made it; upgrade this one")
    assert not (place / "mark").exists()


HOLD = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, b'%d\\n' % os.getpid())
print(flush=True)
time.sleep(120)
"""


def test_folder_locked_by_another_process(underspan, place):
    """Somebody holds the lock and serves nobody."""
    data = place / "data"
    data.mkdir()
    with running([sys.executable, "-c", HOLD, data / "lock"]) as holder:
        holder.stdout.readline()
        for words in (["run", "--", "touch", "mark"], ["server", "--store-port", "0"], ["requests"]):
            said = underspan("--data", data, *words, cwd=place)
            said.failed(f"data folder {data} is in use by process {holder.pid}", "choose another folder")
            # It is no store that is about to answer.
            assert said.seconds < 15, said
        assert not (place / "mark").exists()


def test_folder_not_writable(underspan, place):
    """Not even for root: read-only."""
    data = place / "ro" / "data"
    (place / "ro").mkdir()
    before = ["unshare", "-m", "sh", "-ec", 'mount -t tmpfs -o ro none "$0"; exec "$@"', place / "ro"]
    for words in (["run", "--", "touch", "mark"], ["agent"], ["up", *any_ports()], ["server"]):
        said = underspan("--data", data, *words, before=before, cwd=place)
        said.failed(str(data), "ead-only file system")
    assert not (place / "mark").exists()
    (place / "file").write_text("")
    said = underspan("--data", place / "file" / "data", "agent")
    said.failed(f"cannot use the folder {place}/file/data")


def test_spool_used_by_another_agent(underspan, place):
    data = place / "data"
    with underspan.going("agent", "--data", data, "--comm", "no-such") as agent:
        agent.wait_for("watching")
        # Named, it is that one or none; else `run` takes another beside the agent's.
        said = underspan("--data", data, "run", "--spool", data / "spool", "--", "touch", "mark", cwd=place)
        said.failed(f"{data}/spool", f"pid {agent.pid}", "choose another")
        assert not (place / "mark").exists()
        said = underspan("--data", data, "run", "--", "touch", "mark", cwd=place)
        assert said.status == 0
        assert (place / "mark").exists()


@pytest.mark.parametrize(("option", "command"), [
    ("--api", "up"), ("--otlp-grpc", "up"), ("--otlp-http", "up"), ("--store-port", "up"),
    ("--api", "server"), ("--otlp-grpc", "server"), ("--otlp-http", "server"), ("--store-port", "server"),
])
def test_port_in_use(underspan, place, option, command):
    with occupied_port() as port:
        words = any_ports()
        words[words.index(option) + 1] = str(port) if option == "--store-port" else f"127.0.0.1:{port}"
        said = underspan(command, "--data", place / "data", *words)
    said.failed(f"port {port}", "in use", option)
    assert said.err.count(f"port {port} is in use") <= 1, said
    assert " --port" not in said.err.replace("(--port", " --port"), said
    assert said.seconds < 30


def test_store_away_in_the_middle(underspan, place):
    """The rows of the meantime are in the spool, then in the store: each once."""
    data, spool = place / "data", place / "spool"
    with underspan.serving(data) as first:
        port = first.port
    words = ["--spool", spool, "--data", place / "none", "--", *service("service.py", "--requests", 240, "--every", 0.05)]
    with underspan.serving(data, port) as first, underspan.going("run", "--store", first.url(), *words) as run:
        run.service_port()
        time.sleep(2)
        first.going.end()
        run.wait_for("they go to the spool", 30)
        assert list(spool.glob("*.segment"))
        time.sleep(2)
        with underspan.serving(data, port) as second:
            said = run.wait()
            assert said.status == 0, said
            query = "SELECT count() AS n, uniqExact(request_id) AS u, uniqExact(path) AS p FROM requests"
            assert kept(underspan, second.url(), query) == {"n": 240, "u": 240, "p": 240}, said
    assert not list(spool.glob("*.segment"))


def kept(underspan, url: str, query: str) -> dict[str, int]:
    """A row of numbers."""
    said = underspan("sql", "--store", url, "--json", query)
    assert said.status == 0, said
    return {name: int(value) for name, value in said.rows()[0].items()}


def test_store_away_until_the_end(underspan, place):
    """What was seen waits in the spool, and the next run sends it."""
    data, spool = place / "data", place / "spool"
    command = service("service.py", "--requests", 60, "--every", 0.05)
    rest = ["--spool", spool, "--data", place / "none"]
    with underspan.serving(data) as first, underspan.going("run", "--store", first.url(), *rest, "--", *command) as run:
        run.service_port()
        first.going.end()
        said = run.wait()
    assert said.status == 0, said
    assert "rows wait in the spool" in said.err, said
    with underspan.serving(data, first.port) as second:
        query = "SELECT count() AS n, uniqExact(path) AS p FROM requests"
        with underspan.going("run", "--store", second.url(), *rest, "--", "sleep", "60") as run:
            until("the spool is sent", lambda: not list(spool.glob("*.segment")))
            run.send(signal.SIGINT)
            run.wait()
        assert kept(underspan, second.url(), query) == {"n": 60, "p": 60}
    assert not list(spool.glob("*.segment"))


def test_disk_full_for_the_spool(underspan, place):
    """The oldest rows go, counted; the command runs on and the loss is in the store."""
    data, spool = place / "data", place / "spool"
    spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", spool], check=True)
    words = ["--spool", spool, "--data", place / "none", "--", *service("service.py", "--requests", 900, "--every", 0.01)]
    try:
        with underspan.serving(data) as first, underspan.going("run", "--store", first.url(), *words) as run:
            run.service_port()
            first.going.end()
            until("the disk is full", lambda: os.statvfs(spool).f_bavail * os.statvfs(spool).f_frsize < 32 << 10, 30)
            time.sleep(1)
            with underspan.serving(data, first.port) as second:
                said = run.wait()
                assert said.status == 0, said
                lost = "SELECT sum(count) FROM lost_events WHERE tracker = 'agent' AND endsWith(reason, 'requests')"
                query = f"SELECT (SELECT count() FROM requests) AS kept, ({lost}) AS lost"
                row = underspan("sql", "--store", second.url(), "--json", query).rows()[0]
    finally:
        subprocess.run(["umount", "-l", spool], check=True)
    kept, lost = int(row["kept"]), int(row["lost"])
    assert lost > 0, (row, said)
    assert kept + lost == 900, (row, said)


def everything_in(folder) -> dict:
    """Names and contents."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


FOREIGN = [{"thesis.tex": "x"}, {"lock": "mine\n"}, {"lock": "", "status": "x"}]


@pytest.mark.parametrize("files", FOREIGN)
def test_a_folder_that_is_no_store_is_not_read(underspan, place, files):
    """Nothing is written there, and nothing is there to be read."""
    said = underspan("requests", "--data", place)
    said.failed(f"no data at {place}", hint="underspan up")
    for name, text in files.items():
        (place / name).write_text(text)
    before = everything_in(place)
    for words in (["requests"], ["sql", "SELECT 1"]):
        said = underspan(*words, "--data", place)
        said.failed(f"no data at {place}: ", hint="underspan up")
    assert everything_in(place) == before


@pytest.mark.parametrize("files", FOREIGN)
def test_a_store_is_not_made_among_other_files(underspan, place, files):
    """Nor does the host do so that is started by itself."""
    for name, text in files.items():
        (place / name).write_text(text)
    before = everything_in(place)
    for words in (["run", "--", "true"], ["up", "--keep-root", *any_ports()], ["server", *any_ports()]):
        said = underspan("--data", place, *words)
        said.failed(f"cannot keep a store in {place}", max(files), hint="--data")
    host = [underspan.env["UNDERSPAN_PYTHON"], "-m", "underspan.store", "--data", place]
    done = subprocess.run(host, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    assert f"cannot keep a store in {place}" in done.stderr, done
    assert everything_in(place) == before
