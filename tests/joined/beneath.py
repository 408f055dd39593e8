"""WSGI services in trouble with what is beneath them. Each handler answers with what it measured, in nanoseconds.

FAR: `HOST:PORT` of a peer that is far away. ECHO: the port of one on this host. SLOW: of one that takes its time.
CPU_STAT: of the service's cgroup.
"""

import json
import os
import socket
import time

from common.cgroup import throttled_ns

CONNECTIONS = 6
HOLD_S = 0.7
BURN_S = 0.12


def reconnect():
    """A connection for every question, though it is always the same peer."""
    host, port = os.environ["FAR"].split(":")
    took = []
    for _ in range(CONNECTIONS):
        with socket.socket() as connection:
            start = time.monotonic_ns()
            connection.connect((host, int(port)))
            took.append(time.monotonic_ns() - start)
    return {"each": took}


def ask():
    """Two questions to a peer that is far away; of the second, the way loses what it can."""
    host, port = os.environ["FAR"].split(":")
    took = []
    with socket.create_connection((host, int(port))) as connection:
        for question in (b"is it far", b"lose me"):
            start = time.monotonic_ns()
            connection.sendall(question)
            connection.recv(4096)
            took.append(time.monotonic_ns() - start)
    return {"far": took[0], "lost": took[1]}


def exchange(times):
    """Many small messages there and back, one after the other.

    On loopback the sender itself takes its message through the receive stack, firewall and all. How long the
    quickest took needs nobody else's CPU time; the mean has that of whoever came between.
    """
    took = []
    with socket.create_connection(("127.0.0.1", int(os.environ["ECHO"]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            start = time.monotonic_ns()
            connection.sendall(b"?")
            took.append(time.monotonic_ns() - start)
            connection.recv(1)
    return {"quickest": min(took), "mean": sum(took) / len(took)}


def late(times):
    """Asks two peers at once, and reads the quick one's answer when the slow one's has come.

    Says how late that was, in all. Of four packets a time, one waits.
    """
    peers = [socket.create_connection(("127.0.0.1", int(os.environ[name]))) for name in ("ECHO", "SLOW")]
    waited = 0
    with peers[0] as quick, peers[1] as slow:
        for peer in peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            quick.sendall(b"?")
            asked = time.monotonic_ns()
            slow.sendall(b"?")
            slow.recv(1)
            waited += time.monotonic_ns() - asked
            quick.recv(1)
    return {"late": waited, "packets": 4 * times}


def burn():
    """Needs more of the CPU than its cgroup may have."""
    before = throttled_ns(os.environ["CPU_STAT"])
    start, end = time.monotonic_ns(), time.thread_time() + BURN_S
    while time.thread_time() < end:
        pass
    return {"wall": time.monotonic_ns() - start, "throttled": throttled_ns(os.environ["CPU_STAT"]) - before}


def hold():
    """Takes its time, and its process has no other thread. Says when it began."""
    began = time.monotonic_ns()
    time.sleep(HOLD_S)
    return {"began": began}


def app(environ, start_response):
    handler, *rest = environ["PATH_INFO"].split("/")[1:]
    match handler:
        case "reconnect":
            said = reconnect()
        case "ask":
            said = ask()
        case "exchange":
            said = exchange(int(rest[0]))
        case "late":
            said = late(int(rest[0]))
        case "burn":
            said = burn()
        case "hold":
            said = hold()
        case _:
            said = {}
    body = json.dumps(said).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
