"""The embedded store's process: its folder, its start, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from store_host import PYTHON_FOLDER, Host


def run(folder, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "underspan.store", "--data", str(folder), *options],
        env={**os.environ, "PYTHONPATH": str(PYTHON_FOLDER)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_data_and_token_outlive_the_process(tmp_path):
    host = Host(tmp_path)
    host.ok("CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
    host.ok("INSERT INTO t VALUES (1), (2)")
    token = host.token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert host.stop() == 0
    host = Host(tmp_path)
    assert host.token == token
    assert host.ok("SELECT count() FROM t") == b"2\n"
    host.stop()


def test_acknowledged_rows_survive_a_kill(tmp_path):
    host = Host(tmp_path)
    host.ok("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
    for i in range(20):
        host.ok(f"INSERT INTO t VALUES ({i})")
    host.stop(signal.SIGKILL)
    host = Host(tmp_path)
    assert host.ok("SELECT count() FROM t") == b"20\n"
    host.stop()


def test_the_endpoint_is_advertised_while_it_serves(tmp_path):
    host = Host(tmp_path)
    endpoint = json.loads((tmp_path / "endpoint.json").read_text())
    assert endpoint == {"url": host.url, "pid": host.process.pid}
    host.stop()
    assert not (tmp_path / "endpoint.json").exists()


def test_a_folder_in_use(tmp_path):
    host = Host(tmp_path)
    second = run(tmp_path, "--port", "0")
    assert second.returncode == 3
    assert f"in use by process {host.process.pid}" in second.stderr
    host.stop()


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(tmp_path, "--port", str(port))
    assert result.returncode == 4
    assert f"port {port} is in use" in result.stderr


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file" / "data", "--port", "0")
    assert result.returncode == 1
    assert "cannot use data folder" in result.stderr


@pytest.mark.parametrize("missing", ["chdb", "lz4"])
def test_a_missing_package_is_named(tmp_path, missing):
    """A finder in front of the others hides the package, as if it were not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == '{missing}':\n"
        f"            raise ModuleNotFoundError(\"No module named '{missing}'\")\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "underspan.store", "--data", str(tmp_path / "d"), "--port", "0"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PYTHON_FOLDER}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 5
    assert missing in result.stderr and "pip install 'underspan[store]'" in result.stderr


def test_it_ends_with_its_supervisor(tmp_path):
    """The supervisor is killed; the host sees its standard input end."""
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'underspan.store', '--supervised',"
        " '--port', '0', '--data', sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PYTHON_FOLDER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    host = int(supervisor.stdout.readline())
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    deadline = time.monotonic() + 10
    while running(host):
        assert time.monotonic() < deadline, "the host outlived its supervisor"
        time.sleep(0.05)
    assert not (tmp_path / "endpoint.json").exists()


def test_a_start_ends_with_its_supervisor(tmp_path):
    """The engine is still being loaded, from a slow disk: no thread runs Python meanwhile."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes, pathlib, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'chdb':\n"
        f"            pathlib.Path('{tmp_path}/loading').touch()\n"
        "            ctypes.PyDLL(None).sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    host = subprocess.Popen(
        [sys.executable, "-m", "underspan.store", "--supervised", "--port", "0"]
        + ["--data", str(tmp_path / "d")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PYTHON_FOLDER}"},
        stdin=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "loading").exists():
            assert host.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        host.stdin.close()
        assert host.wait(10) != 0
    finally:
        host.kill()
        host.wait()


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_yields_to_what_is_watched(tmp_path):
    host = Host(tmp_path)
    host.ok("CREATE TABLE t (a UInt8) ENGINE = MergeTree ORDER BY a")
    host.ok("INSERT INTO t VALUES (1)")
    threads = os.listdir(f"/proc/{host.process.pid}/task")
    # A thread may end while we look.
    niceness = {nice for thread in threads if (nice := niceness_of(int(thread))) is not None}
    host.stop()
    assert niceness == {10}


def niceness_of(thread: int) -> int | None:
    try:
        return os.getpriority(os.PRIO_PROCESS, thread)
    except ProcessLookupError:
        return None
