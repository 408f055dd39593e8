"""Rows that a writer holds back are in the store before a reader is answered."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request

import pytest
from store_host import Host

from underspan.store import writers


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("writers"))
    host.ok("CREATE TABLE held (n UInt32) ENGINE = MergeTree ORDER BY n")
    yield host
    assert host.stop() == 0


class Holder:
    """A writer with a row that it inserts when it is asked; after `delay` seconds."""

    def __init__(self, host: Host, name: str, delay: float = 0.0) -> None:
        self.host, self.name, self.delay = host, name, delay
        self.asked = 0
        self.times = 0
        self.registered = threading.Event()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        # From its second request on it waits to be asked.
        assert self.registered.wait(10)
        time.sleep(0.2)

    def _run(self) -> None:
        while not self.done.is_set():
            asked = wait_until_asked(self.host, self.name, self.asked)
            if asked > self.asked and self.registered.is_set() and not self.done.is_set():
                time.sleep(self.delay)
                self.host.ok(f"INSERT INTO held VALUES ({asked})")
                self.times += 1
            self.asked = asked
            self.registered.set()

    def stop(self) -> None:
        self.done.set()
        self.host.ok("SELECT count() FROM held")
        self.thread.join(30)
        assert not self.thread.is_alive()


def wait_until_asked(host: Host, writer: str, written: int, token: str | None = None) -> int:
    request = urllib.request.Request(
        f"{host.url}/underspan/asked?writer={writer}&written={written}",
        headers={"X-ClickHouse-Key": host.token if token is None else token},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())["asked"]


def rows(host: Host) -> tuple[int, float]:
    start = time.monotonic()
    count = int(host.ok("SELECT count() FROM held"))
    return count, time.monotonic() - start


def pause() -> None:
    time.sleep(writers.FRESH_SECONDS + 0.1)


def test_a_reader_sees_what_was_held_back(host):
    # It is told of earlier questions at once, and has nothing for them.
    holder = Holder(host, "prompt")
    pause()
    before, _ = rows(host)
    pause()
    after, took = rows(host)
    assert after == before + 1
    assert took < writers.PATIENCE_SECONDS
    # One so soon after asks nobody; and what reads no table has nothing to wait for.
    assert rows(host)[0] == after
    pause()
    times = holder.times
    assert host.ok("SELECT 1") == b"1\n"
    assert host.ok("SHOW TABLES") == b"held\n"
    assert holder.times == times
    holder.stop()


def test_who_is_late_is_waited_for_once(host):
    holder = Holder(host, "late", delay=writers.PATIENCE_SECONDS + 1.5)
    pause()
    before, took = rows(host)
    assert writers.PATIENCE_SECONDS <= took < writers.PATIENCE_SECONDS + 1
    pause()
    assert rows(host)[1] < writers.PATIENCE_SECONDS / 2, "it has not come back"
    time.sleep(2)
    assert rows(host)[0] > before
    holder.stop()


def test_nobody_waits_for_one_that_is_gone(host, monkeypatch):
    both = writers.Writers()
    monkeypatch.setattr(writers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(writers, "GONE_SECONDS", 0.2)
    assert both.wait("gone", 0) == both.wait("gone", 1) == 1
    time.sleep(0.3)
    start = time.monotonic()
    both.ask()
    assert time.monotonic() - start < 0.1


def test_a_writer_needs_the_token_and_says_who_it_is(host):
    with pytest.raises(urllib.error.HTTPError) as refused:
        wait_until_asked(host, "x", 0, token="wrong")
    assert refused.value.code == 403
    for query in ("", "?writer=x", "?writer=x&written=-1", "?written=1"):
        request = urllib.request.Request(
            f"{host.url}/underspan/asked{query}", headers={"X-ClickHouse-Key": host.token}
        )
        with pytest.raises(urllib.error.HTTPError) as wrong:
            urllib.request.urlopen(request, timeout=30)
        assert wrong.value.code == 400
        assert b"writer=NAME" in wrong.value.read()


def test_a_writer_that_waits_does_not_hold_up_the_end(tmp_path):
    host = Host(tmp_path)

    answers = []

    def wait() -> None:
        # It may be gone before it has answered.
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(wait_until_asked(host, "patient", 1))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.5)
    start = time.monotonic()
    assert host.stop() == 0
    assert time.monotonic() - start < 5
    thread.join(5)
    assert not answers, "else it would ask again, without a pause"
