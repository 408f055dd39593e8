"""Rows wait up to ten seconds for the embedded store, but not once somebody reads."""

from __future__ import annotations

import json
import os
import signal
import time

from common.command import until
from common.services import ask, service

# A reader waits for a writer at most so long.
PATIENCE_S = 3
HELD_S = 10


def listed(underspan, data) -> tuple[list[str], float]:
    """The paths that `requests` lists, and how long it took."""
    start = time.monotonic()
    said = underspan("requests", "--json", "--data", data)
    assert said.status == 0, said
    return [request["path"] for request in json.loads(said.out)], time.monotonic() - start


def test_what_was_just_asked_is_listed(underspan, place):
    data = place / "data"
    with underspan.going("run", "--data", data, "--", *service("service.py")) as run:
        port = run.service_port()
        ask(port, "/first")
        until("it is listed", lambda: "/first" in listed(underspan, data)[0])
        # Now every table was written to, and rows are held back.
        for number in range(3):
            time.sleep(0.6)  # one read asks for all that come soon after it
            ask(port, f"/{number}")
            # What the kernel told is taken from the ring ten times a second.
            time.sleep(0.2)
            paths, took = listed(underspan, data)
            assert f"/{number}" in paths or took > PATIENCE_S, paths

        # While nobody reads there are few inserts: each makes a block.
        last = "SELECT max(max_block_number) AS n FROM system.parts WHERE table = 'thread_states'"
        before = int(underspan.sql(data, last)[0]["n"])
        time.sleep(HELD_S - 1)
        inserts = int(underspan.sql(data, last)[0]["n"]) - before
        assert 1 <= inserts <= 2, "the one that this was waited for, and one that was due"

        ask(port, "/unread")
        # An agent that stands still holds a reader up for a moment, once.
        os.kill(run.pid, signal.SIGSTOP)
        try:
            time.sleep(0.6)
            listed(underspan, data)
            time.sleep(0.6)
            start = time.monotonic()
            underspan.sql(data, "SELECT count() FROM requests")
            assert time.monotonic() - start < PATIENCE_S
        finally:
            os.kill(run.pid, signal.SIGCONT)
        time.sleep(0.6)
        until("it tells again", lambda: "/unread" in listed(underspan, data)[0])
