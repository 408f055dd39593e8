"""The agent in one network namespace, its services in others: whose packets are timed?"""

from __future__ import annotations

import os
import sys

import pytest
from common.netns import inside, namespace

DATAGRAMS = 200
EXCHANGE = f"""
import socket, time
reader, writer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
reader.bind(("127.0.0.1", 0))
for _ in range({DATAGRAMS}):
    writer.sendto(b"x", reader.getsockname())
    reader.recv(1)
    time.sleep(0.005)
time.sleep(1.5)
"""


@pytest.fixture
def containers():
    """Two namespaces; what happens in them is nobody else's. With the inode of each."""
    with namespace(f"usj{os.getpid()}-1") as one, namespace(f"usj{os.getpid()}-2") as other:
        yield {name: os.stat(f"/run/netns/{name}").st_ino for name in (one, other)}


def packets(underspan, data, containers, names, exchanging) -> dict[str, int]:
    """Datagrams that were read, by namespace, while those of `names` are looked at."""
    words = [word for name in names for word in ("--netstack-netns", name)]
    command = [*inside(exchanging), sys.executable, "-c", EXCHANGE]
    words = ["--netstack", "--netstack-by", "interface", *words, "--max-cpu", "100"]
    said = underspan("run", *words, "--data", data, "--", *command)
    assert said.status == 0, said
    query = "SELECT netns, sum(count) AS n FROM netstack WHERE point = 'udp-socket-read' GROUP BY netns"
    found = {row["netns"]: int(row["n"]) for row in underspan.sql(data, query)}
    return {name: found.get(inode, 0) for name, inode in containers.items()}


def test_named_namespaces_and_no_others(underspan, tmp_path, containers):
    one, other = containers
    found = packets(underspan, tmp_path / "named", containers, [one], exchanging=one)
    assert found == {one: DATAGRAMS, other: 0}
    found = packets(underspan, tmp_path / "not named", containers, [other], exchanging=one)
    assert found == {one: 0, other: 0}
    found = packets(underspan, tmp_path / "all", containers, ["all"], exchanging=other)
    assert found == {one: 0, other: DATAGRAMS}
    found = packets(underspan, tmp_path / "own", containers, [], exchanging=other)
    assert found == {one: 0, other: 0}
