"""requests, explain, sql: unknown ids, wrong words, no data, no root."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from common.command import NOBODY, ROOT
from common.ports import any_ports, free_port

REQUEST = "0123456789abcdef"
TRACE = REQUEST * 2
JSON = [[], ["--json"]]


@pytest.mark.parametrize("json_", JSON)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (REQUEST, f"unknown request {REQUEST}: no such row in the store"),
        (TRACE, f"unknown trace {TRACE}: neither a span nor a request has it"),
        ("nonsense", "unknown id 'nonsense': neither a request id nor a trace id"),
        ("", "unknown id ''"),
    ],
)
def test_unknown_ids(underspan, recorded, given, message, json_):
    said = underspan("explain", given, "--data", recorded, *json_)
    said.failed(message, status=3, hint="`underspan requests` lists")


@pytest.mark.parametrize(
    "words",
    [
        ["--no-such-option"],
        ["requests", "--no-such-option"],
        ["no-such-command"],
        ["requests", "--since", "yesterday"],
        ["agent", "--wait-threshold", "-1"],
        ["server", "--api", "nowhere"],
        ["run"],
        ["explain"],
        ["agent", "--keep-root", "--user", "nobody"],
        ["agent", "--max-cpu", "0"],
        ["agent", "--max-memory", "0"],
        ["agent", "--spool-size", "0"],
        ["agent", "--wait-threshold", "99d"],
    ],
)
def test_wrong_usage_is_status_2(underspan, words):
    said = underspan(*words)
    assert (said.status, said.out) == (2, ""), said
    assert "Usage" in said.err or "--help" in said.err, said


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["flame", "-o", "x.doc"], "x.doc: the ending says no format", ".svg"),
        (["flame", "--since", "10m", "--until", "20m"], "it ends before it begins", "--since 20m"),
        (["flame", "--before", "10m..20m", "--after", "5m.."], "it ends before it begins", "20m..10m"),
        (["diff", "--before", "20m..40m", "--after", "20m.."], "it ends before it begins", "40m..20m"),
        (["requests", "--store", ""], "", ""),
        (["run", "--store", "ftp://host/", "--", "true"], "only ClickHouse's HTTP", ""),
        (["top", "--once", "--comm", "["], "[", ""),
        (["agent", "--comm", "["], "[", ""),
    ],
)
def test_wrong_usage_that_is_seen_later(underspan, recorded, words, message, hint):
    """By the command, not by the parser of its options."""
    underspan(*words, "--data", recorded).failed(message, status=2, hint=hint)


@pytest.mark.parametrize("words", [["requests", "--since", "abc"], ["flame", "--last", "abc"]])
def test_what_is_no_duration(underspan, words):
    said = underspan(*words)
    assert (said.status, said.out) == (2, ""), said
    assert "give a duration such as" in said.err, said


def test_a_cgroup_that_is_not_there(underspan, place):
    for words in (["up", *any_ports()], ["agent"], ["top", "--once"]):
        said = underspan(*words, "--cgroup", "no-such-cgroup", "--data", place / "data")
        said.failed("--cgroup no-such-cgroup: there is no cgroup of that path", hint="/proc/PID/cgroup")
    assert not (place / "data").exists()


def test_top_says_that_nothing_matches(underspan):
    said = underspan("top", "--once", "--comm", "no-such-process")
    assert said.status == 0, said
    assert "nothing that runs matches" in said.err, said


@pytest.mark.parametrize("json_", JSON)
def test_no_data_yet(underspan, place, json_):
    said = underspan("requests", "--data", place / "none", *json_)
    said.failed(f"no data at {place}/none", hint="underspan up")
    assert not (place / "none").exists()


@pytest.mark.parametrize("json_", JSON)
def test_a_wrong_query(underspan, recorded, json_):
    said = underspan("sql", "SELECT no_such_column FROM requests", "--data", recorded, *json_)
    said.failed("no_such_column")
    said = underspan("sql", "SELECT 1 FROM no_such_table", "--data", recorded, *json_)
    said.failed("no_such_table")


def test_no_requests_is_no_failure(underspan, recorded):
    said = underspan("requests", "--path", "/no-such-path", "--data", recorded, "--json")
    assert (said.status, json.loads(said.out)) == (0, [])


def test_a_store_that_is_away(underspan):
    for command in (["requests"], ["explain", REQUEST], ["sql", "SELECT 1"]):
        port = free_port()
        said = underspan(*command, "--json", "--store", f"http://127.0.0.1:{port}")
        said.failed(f"http://127.0.0.1:{port}", "cannot be reached", hint="--store")
        assert said.seconds < 15


def test_a_url_that_is_none(underspan):
    for url in ("nonsense", "ftp://host/", "http://user:secret@host:port/db"):
        said = underspan("requests", "--store", url)
        said.failed("http://user:password@host:8123/database", status=2)
        assert "secret" not in said.err


def test_reading_needs_no_root(underspan, recorded, place):
    """The store is served by root here, and asked by somebody who has its address and token."""
    with underspan.serving(recorded) as server:
        url = server.url()
        said = underspan("requests", "--json", "--store", url, before=NOBODY)
        assert said.status == 0, said
        request_id = json.loads(said.out)[0]["request_id"]
        assert underspan("explain", request_id, "--store", url, before=NOBODY).status == 0
        said = underspan("sql", "SELECT count() AS n FROM requests", "--json", "--store", url, before=NOBODY)
        assert said.rows()[0]["n"] in (5, "5"), said
        # By its folder, it is for its owner alone.
        said = underspan("requests", "--data", recorded, before=NOBODY)
        said.failed(str(recorded), "ermission denied", "run as the user that owns the store")
    said = underspan("requests", "--data", recorded, before=NOBODY)
    said.failed(str(recorded), "ermission denied")
    os.chmod(recorded.parent, 0o700)
    said = underspan("requests", "--data", recorded, before=NOBODY)
    os.chmod(recorded.parent, 0o755)
    said.failed(str(recorded), "ermission denied", "run as the user that owns the store")


def python_for_all() -> dict:
    """Variables that make a Python with the embedded store, open to everybody."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    check = "import sys; print('%d.%d' % sys.version_info[:2]); import chdb, underspan.store"
    for python, path in ((sys.executable, ""), ("/usr/bin/python3", f"{packages}:{ROOT}/python")):
        env = {"UNDERSPAN_PYTHON": python, "PYTHONPATH": path}
        # By way of a shell: the way there must be open to it, too.
        words = [*NOBODY, "sh", "-c", f'{python} -c "$0"', check]
        done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, check=False, cwd="/")
        if done.returncode == 0:
            return env
    pytest.skip(f"neither {sys.executable} nor /usr/bin/python3 is open to user nobody and has chDB")


def test_own_data_can_be_read_without_root(underspan, place):
    """A folder that is its user's own, and nobody serves it."""
    env = python_for_all()
    data = place / "data"
    assert underspan("run", "--data", data, "--", "true").status == 0
    subprocess.run(["chown", "-R", "nobody", data], check=True)
    said = underspan("sql", "SELECT count() AS n FROM requests", "--json", "--data", data, before=NOBODY, env=env)
    assert said.status == 0, said


@pytest.mark.parametrize("json_", JSON)
def test_a_reader_that_has_seen_enough(underspan, recorded, json_):
    """`| head` closes the pipe."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [underspan.program, "requests", "--data", recorded, *json_],
        env=underspan.env,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
