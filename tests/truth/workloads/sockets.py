"""Outgoing sockets: a peer that answers late, one that does not read, one that cannot accept."""

import os
import socket
import tempfile
import time

from clock import Child, Phase, Thread, run

LATE_S = 0.2
BIG = 8 << 20


def name(address):
    host, port = address[:2]
    return f"{host}:{port}"


def slow_answer(label, timeout):
    """With a timeout, Python polls the one socket before it reads: it still waits for that peer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = listener.accept()
        peer.recv(100)
        time.sleep(LATE_S)
        peer.sendall(b"answer")

    server = Child(serve)
    connection = socket.create_connection(listener.getsockname())
    connection.settimeout(timeout)

    def ask():
        connection.sendall(b"question")
        with Phase(label) as phase:
            connection.recv(100)
        phase.wait("net_read", at_least_ms=150, peer=name(listener.getsockname()))
        phase.cell("net_read", at_least_ms=150)

    run(Thread("client", ask))
    server.result()


def full_buffer():
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = listener.accept()
        time.sleep(LATE_S)
        left = BIG
        while left:
            left -= len(peer.recv(1 << 20))

    server = Child(serve)
    connection = socket.create_connection(listener.getsockname())

    def send():
        with Phase("sends to a peer that does not read") as phase:
            connection.sendall(b"x" * BIG)
        phase.cell("net_write", at_least_ms=150)
        phase.claim("peer", state="net_write", peer=name(listener.getsockname()))

    run(Thread("client", send))
    server.result()


def full_backlog():
    """The kernel drops the SYN while the accept queue is full; it comes again after a second."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    fillers = []
    while True:
        filler = socket.socket()
        filler.settimeout(0.05)
        fillers.append(filler)
        try:
            filler.connect(address)
        except socket.timeout:
            filler.close()
            break

    def drain():
        time.sleep(0.3)
        accepted = [listener.accept() for _ in fillers]
        return len(accepted)

    server = Child(drain)

    def connect():
        connection = socket.socket()
        with Phase("connects to a full backlog") as phase:
            connection.connect(address)
        phase.wait("net_connect", at_least_ms=250, peer=name(address))
        phase.cell("net_connect", at_least_ms=250)

    run(Thread("client", connect))
    server.result()


def full_unix_backlog():
    """A Unix socket's connect waits until there is room."""
    path = tempfile.mktemp(prefix="truth-unix-")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    filler = socket.socket(socket.AF_UNIX)
    filler.connect(path)

    def drain():
        time.sleep(LATE_S)
        accepted = [listener.accept() for _ in range(2)]
        return len(accepted)

    server = Child(drain)

    def connect():
        connection = socket.socket(socket.AF_UNIX)
        with Phase("connects to a full Unix backlog") as phase:
            connection.connect(path)
        phase.wait("net_connect", at_least_ms=150, waker_tid=server.pid)
        phase.cell("net_connect", at_least_ms=150)

    run(Thread("client", connect))
    server.result()
    os.unlink(path)


slow_answer("recv, blocking", None)
slow_answer("recv with a timeout", 5)
full_buffer()
full_backlog()
full_unix_backlog()
