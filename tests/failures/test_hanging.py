"""A request that hangs, while it does: which line it stands at, for how long, and that no time is told twice."""

from __future__ import annotations

import json
import threading

from common.command import until
from common.services import SERVICES, ask, service

# In which the line is that waits, and in which C it does.
LINE = "need_the_lock (hanging.py)"
WAITS = "PyThread_acquire_lock_timed;"
MS, US = 1_000_000, 1_000


def listed(underspan, data) -> list[dict]:
    """Requests without an answer yet."""
    said = underspan("requests", "--open", "--json", "--data", data)
    assert said.status == 0, said
    return json.loads(said.out)


def folded(underspan, data, *options: str) -> dict[str, int]:
    """A flame graph's stacks and their nanoseconds."""
    said = underspan("flame", *options, "--format", "folded", "--data", data)
    assert said.status == 0, said
    lines = (line.rpartition(" ") for line in said.out.splitlines())
    return {stack: int(ns) for stack, _, ns in lines}


def test_a_request_that_hangs(underspan, place):
    data = place / "data"
    with underspan.going("run", "--max-cpu", "100", "--data", data, "--", *service("hanging.py")) as run:
        port = run.service_port()
        ask(port, "/quick")
        client = threading.Thread(target=ask, args=(port, "/hang", 300), daemon=True)
        client.start()
        stands_there = "SELECT * FROM off_cpu_ongoing WHERE in_request"
        [wait] = until("its wait has a stack", lambda: underspan.sql(data, stands_there))
        while_it_hangs(underspan, data, wait)
        ask(port, "/over")
        client.join()
        answered = "SELECT request_id, status, duration_ns, lock_wait_ns FROM requests WHERE path = '/hang'"
        [request] = until("it is answered", lambda: underspan.sql(data, answered))
        sampled = f"SELECT * FROM off_cpu WHERE tid = {wait['tid']} AND state = 'lock_wait'"
        until("its wait is a sample", lambda: underspan.sql(data, sampled))
        when_it_is_answered(underspan, data, request, wait)


def while_it_hangs(underspan, data, wait: dict) -> None:
    assert (wait["state"], wait["thread"][:6]) == ("lock_wait", "Thread"), wait
    assert int(wait["duration_ns"]) >= 1000 * MS, wait
    assert int(wait["lock_addr"]) != 0, wait

    # Told once a second; on a loaded machine a little later now and then.
    def as_late() -> list[dict]:
        return [one for one in listed(underspan, data) if one["lock_wait_ns"] >= int(wait["duration_ns"])]

    [request] = until("it is listed, at a later moment than the wait", as_late)
    assert (request["path"], request["end"], request["tid"]) == ("/hang", "open", wait["tid"]), request
    # All that it has gone on for: nothing is counted twice, nothing left out.
    states = [ns for name, ns in request.items() if name.endswith("_ns") and name not in NOT_THE_LEDGERS]
    assert sum(states) == request["handler_ns"], request

    said = underspan("explain", request["request_id"], "--json", "--data", data)
    explained = json.loads(said.out)
    own, *others = explained["standing"]
    assert (own["tid"], own["state"]) == (wait["tid"], "lock_wait"), explained["standing"]
    assert (own["place"]["function"], own["place"]["line"]) == ("need_the_lock", line_of("with lock:", 2)), own
    # Who has the lock is among the others, at the line in which it keeps it.
    [keeper] = [other for other in others if other["thread"] == "keeper"]
    assert keeper["place"]["line"] == line_of("over.wait()"), keeper
    text = underspan("explain", request["request_id"], "--data", data).out
    assert "Where it stands" in text, text
    assert f"need_the_lock at hanging.py:{line_of('with lock:', 2)}" in text, text

    stacks = folded(underspan, data, "--request", request["request_id"], "--kind", "wall")
    [(stack, ns)] = [(stack, ns) for stack, ns in stacks.items() if LINE in stack]
    # Each row's time of day is that of the clock when it was written, which is slewed: some nanoseconds.
    assert ns >= request["lock_wait_ns"] - US, stacks
    # From the thread's first function down to the kernel's, in order.
    parts = ["start_thread;", LINE, WAITS, "futex_wait"]
    places = [stack.find(part) for part in parts]
    assert places == sorted(places), stack
    assert places[0] >= 0, stack


NOT_THE_LEDGERS = ("duration_ns", "accept_queue_ns", "handoff_ns", "handler_ns", "accept_to_read_ns")


def line_of(text: str, number: int = 1) -> int:
    """Where the service says so for the first time, or the second."""
    lines = (SERVICES / "hanging.py").read_text().splitlines()
    return [index for index, line in enumerate(lines, 1) if text in line][number - 1]


def when_it_is_answered(underspan, data, request: dict, wait: dict) -> None:
    assert int(request["status"]) == 200, request
    waited = int(request["lock_wait_ns"])
    assert waited >= int(wait["duration_ns"]), (request, wait)
    assert listed(underspan, data) == []
    # The sample takes the place of what was seen meanwhile: the same stack, the same time, once.
    stacks = folded(underspan, data, "--request", request["request_id"], "--kind", "wall")
    [(stack, ns)] = [(stack, ns) for stack, ns in stacks.items() if LINE in stack]
    assert abs(ns - waited) <= MS, (stacks, request)
    stacks = folded(underspan, data, "--kind", "lock")
    assert abs(sum(ns for stack, ns in stacks.items() if LINE in stack) - waited) <= MS, (stacks, request)
    ids = f"SELECT DISTINCT stack_id FROM off_cpu WHERE tid = {wait['tid']} AND state = 'lock_wait'"
    assert [row["stack_id"] for row in underspan.sql(data, ids)] == [wait["stack_id"]], stack
    said = underspan("explain", request["request_id"], "--json", "--data", data)
    explained = json.loads(said.out)
    assert explained["standing"] == [], explained["standing"]
    [lock] = [finding for finding in explained["findings"] if finding["kind"] == "lock_wait"]
    assert lock["culprit"]["thread"] == "keeper", lock
    assert lock["ns"] == waited, (lock, waited)
