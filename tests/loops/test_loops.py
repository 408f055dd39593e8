"""Event loops of uvloop and nginx that stall: is it told by whose code, and which requests waited for it?"""

from __future__ import annotations

import pathlib

import pytest
from common.play import MS, Play, agree

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def scene(underspan, tmp_path_factory):
    """One run for all."""
    return Play(underspan, tmp_path_factory.mktemp("loops") / "data", HERE / "scene.py")


def stalls(scene, where: str) -> list[dict]:
    """The rows of a process, with the functions of their stacks."""
    query = f"""
        SELECT l.duration_ns AS duration_ns, l.kind AS kind, l.culprit_thread AS culprit_thread, l.culprit AS culprit,
               l.sleep_ns AS sleep_ns, l.running_ns AS running_ns, l.lock_wait_ns AS lock_wait_ns,
               l.pipe_ipc_ns AS pipe_ipc_ns, any(s.functions) AS functions
        FROM loop_stall AS l LEFT JOIN stacks AS s ON s.host = l.host AND s.stack_id = l.stack_id
        WHERE {where} GROUP BY ALL ORDER BY any(l.start_time)
    """
    return scene.underspan.sql(scene.data, query)


@pytest.mark.parametrize(
    ("path", "state", "culprit"),
    [("/sleeps", "sleep", ""), ("/computes", "running", ""), ("/waits_for_a_lock", "lock_wait", "holder")],
)
def test_a_stall_of_uvloop_has_its_row(scene, path, state, culprit):
    measured = scene.measured["uvloop"]
    begin, end = measured[path]
    rows = stalls(scene, f"l.pid = {measured['pid']}")
    [row] = [row for row in rows if any(path[1:] in function for function in row["functions"])]
    assert (row["kind"], row["culprit_thread"]) == ("epoll", culprit), row
    assert row["culprit"] == (state if culprit else ""), row
    agree(row["duration_ns"], end - begin)
    # A busy machine keeps it from its CPU.
    assert row[f"{state}_ns"] >= (end - begin) * 0.95, row


def test_what_is_quick_is_no_stall_of_uvloop(scene):
    measured = scene.measured["uvloop"]
    rows = stalls(scene, f"l.pid = {measured['pid']}")
    assert not [row for row in rows if any("is_quick" in function for function in row["functions"])], rows


def test_a_log_that_nobody_reads_stalls_nginx(scene):
    begin, end = scene.measured["nginx"]["/logs"]
    [row] = stalls(scene, "l.thread = 'nginx'")
    assert (row["kind"], row["culprit_thread"]) == ("epoll", ""), row
    agree(row["duration_ns"], end - begin)
    agree(row["pipe_ipc_ns"], end - begin)
    # Debian's nginx has the names only of what its modules may call: not of the log's own functions.
    assert any("ngx_http_free_request" in function for function in row["functions"]), row


@pytest.mark.parametrize(
    ("path", "pattern", "route", "thread"),
    [
        ("/during/sleeps", "blocking_call", "GET /sleeps", "MainThread"),
        ("/during/computes", "", "GET /computes", "MainThread"),
        ("/during/waits_for_a_lock", "", "", "holder"),
        ("/during/logs", "blocking_call", "", "nginx"),
    ],
)
def test_who_came_meanwhile_waited_for_the_loop(scene, path, pattern, route, thread):
    finding, explained = scene.finding(path, "loop_lag")
    assert finding["relation"] == "caused", finding
    # It came when a fifth of the stall was over.
    assert finding["ns"] > 100 * MS, finding
    assert finding["ns"] >= 0.8 * explained["client_wait_ns"], explained
    culprit = finding["culprit"]
    assert (finding["pattern"], culprit["route"], culprit["thread"]) == (pattern, route, thread), finding
