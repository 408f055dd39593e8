"""Watched processes that die, become others, are not what they say, or have too many threads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from common.processes import children_of
from common.services import ask, service


@pytest.mark.parametrize(("path", "status"), [("/die", 137), ("/exec", 0)])
def test_the_end_in_the_middle_of_a_request(underspan, place, path, status):
    data = place / "data"
    with underspan.going("run", "--data", data, "--", *service("service.py")) as run:
        port = run.service_port()
        for number in range(3):
            ask(port, f"/before/{number}")
        # The answer breaks off.
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(port, path)
        said = run.wait(30)
    assert said.status == status, said
    rows = underspan.sql(data, "SELECT path, end, status, toUInt32(duration_ns / 1e6) AS ms FROM requests ORDER BY start_time")
    assert [row["path"] for row in rows] == [f"/before/{number}" for number in range(3)] + [path], rows
    assert [row["end"] for row in rows[:3]] == ["sent"] * 3
    last = rows[3]
    # The server closed the connection and had sent nothing, 200 ms later.
    assert (last["end"], int(last["status"])) == ("closed", 0), last
    assert 190 <= int(last["ms"]) < 1000, last
    # Every thread's last second is there, too.
    states = underspan.sql(data, "SELECT uniqExact(tid) AS n FROM thread_states")
    assert int(states[0]["n"]) >= 5, states


WHERE_IS_THE_VERSION = """
import ctypes, json
address = ctypes.addressof(ctypes.c_ulong.in_dll(ctypes.pythonapi, 'Py_Version'))
for line in open('/proc/self/maps'):
    span, _, offset, _, _, *path = line.split(None, 5)
    start, end = (int(each, 16) for each in span.split('-'))
    if start <= address < end:
        print(json.dumps([path[0].strip(), address - start + int(offset, 16)]))
"""
# Until a file is there, or for a minute.
TWO_THREADS = """
import os, sys, threading, time
over = False
def job():
    while not over:
        sum(range(10000))
threads = [threading.Thread(target=job, name='job', daemon=True) for _ in range(2)]
[thread.start() for thread in threads]
print('started', flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
over = True
[thread.join() for thread in threads]
"""


@pytest.fixture
def impostor(place):
    """The command of a CPython that says it is another version than it is."""
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        asked = subprocess.run([python, "-c", WHERE_IS_THE_VERSION], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            break
    else:
        pytest.skip("no CPython of 3.11 or later, which publishes its version in memory")
    path, offset = json.loads(asked.stdout)
    prefix = subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True)
    image = bytearray(pathlib.Path(path).read_bytes())
    real = int.from_bytes(image[offset : offset + 8], "little")
    minor = real >> 16 & 0xFF
    assert real >> 24 == 3, hex(real)
    other = minor - 1 if minor > 11 else minor + 1
    image[offset : offset + 8] = (3 << 24 | other << 16 | 0x01F0).to_bytes(8, "little")
    copy = place / pathlib.Path(path).name
    copy.write_bytes(image)
    copy.chmod(0o755)
    # Only for the command itself: the embedded store's Python is a sound one.
    command = ["env", f"PYTHONHOME={prefix.stdout.strip()}"]
    if "libpython" in copy.name:
        # The loader takes the first library of a name, wherever else it is told to look.
        return [*command, f"LD_PRELOAD={copy}", python]
    return [*command, copy]


def test_a_python_that_fails_the_self_check(underspan, place, impostor):
    """Refused in words; all that needs none of its offsets goes on."""
    data, over = place / "data", place / "over"
    with underspan.going("run", "--data", data, "--", *impostor, "-c", TWO_THREADS, over) as run:
        run.wait_for("started", out_only=True)
        # The self-check fails within the first looks.
        time.sleep(3)
        pid = next(pid for pid in children_of(run.pid) if runs_from(pid, place))
        doctor = underspan("doctor", "--pid", pid)
        report = json.loads(underspan("doctor", "--json", "--pid", pid).out)
        over.touch()
        said = run.wait(60)
    assert said.status == 0, said
    assert "its Python is not read" in said.err, said
    assert doctor.status == 0, doctor
    assert "not read" in doctor.out, doctor
    (process,) = report["processes"]
    assert process["python"].startswith(("not read: ", "not read yet: ")), process
    assert (process["gil"], process["gc_rung"]) == ("not seen", "none"), process

    (row,) = underspan.sql(data, f"SELECT python, gil, gc_rung FROM processes WHERE pid = {pid} ORDER BY seen DESC LIMIT 1")
    assert (row["python"], row["gc_rung"]) == ("", "none") and len(row["gil"]) > len("not read"), row
    (sums,) = underspan.sql(
        data,
        "SELECT sum(gil_wait_ns) AS gil, sum(gc_run_ns + gc_wait_ns) AS gc, sum(lock_wait_ns) / 1e9 AS locks,"
        f" sum(running_ns) / 1e9 AS running FROM thread_states WHERE pid = {pid}",
    )
    # Two threads take turns for some seconds: what is not running waits, for a futex without a name.
    assert (int(sums["gil"]), int(sums["gc"])) == (0, 0), sums
    assert float(sums["locks"]) > 1 and float(sums["running"]) > 1, sums
    for table in ("gil_wait", "gc_pause"):
        assert int(underspan.sql(data, f"SELECT count() AS n FROM {table}")[0]["n"]) == 0


def runs_from(pid: int, place: pathlib.Path) -> bool:
    """Whether a process has a file below a folder mapped."""
    return f"{place}/" in pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_more_threads_than_there_is_room_for(underspan, place):
    """Those that do not fit are counted, and explain says so."""
    threads = 17_500  # the map holds 16,384
    data = place / "data"
    options = ["--data", data, "--max-cpu", "100", "--max-memory", "1024"]
    with underspan.going("run", *options, "--", *service("service.py")) as run:
        ask(run.service_port(), f"/flood/{threads}", limit_s=300)
        time.sleep(2)
        os.kill(next(pid for pid in children_of(run.pid) if is_service(pid)), 15)
        said = run.wait(120)
    assert said.status == 128 + 15, said
    (lost,) = underspan.sql(data, "SELECT sum(count) AS n FROM lost_events WHERE reason = 'map_full'")
    assert int(lost["n"]) >= threads - 16_384, lost
    rows = underspan.sql(data, "SELECT request_id, status FROM requests WHERE path LIKE '/flood%'")
    assert [int(row["status"]) for row in rows] == [200], rows
    explained = underspan("explain", rows[0]["request_id"], "--data", data)
    assert explained.status == 0, explained
    assert "map_full" in explained.out, explained.out


def is_service(pid: int) -> bool:
    """Whether it is the service, not the store's host."""
    return b"service.py" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
