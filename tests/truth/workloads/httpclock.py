"""Both ends of one HTTP request, with their clocks. The client runs in a process of its own."""

import socket
import tempfile
import threading
import time

from clock import claim

now = time.time_ns


def listen(family=socket.AF_INET, backlog=128):
    """A listening socket on loopback, or on a fresh path."""
    listener = socket.socket(family)
    if family == socket.AF_UNIX:
        listener.bind(tempfile.mktemp(prefix="truth-http-"))
    else:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen(backlog)
    return listener


def connect(listener):
    connection = socket.socket(listener.family)
    connection.connect(listener.getsockname())
    return connection


def text(path, method="GET", headers="", body=b""):
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: truth\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def ask(connection, message):
    """Sends a request at a known instant and waits for the whole answer."""
    sent = now()
    connection.sendall(message)
    answer = connection.recv(65536)
    return {"ready": sent, "answered": now(), "answer": answer.decode()}


class Exchange:
    """One request as its server saw it. Its marks become the claim about the row in `requests`."""

    def __init__(self, connection, accepted=None):
        self.connection = connection
        self.accepted = accepted
        self.mark = {}
        self.cells = {}  # what the ledger of its handler must hold, by state

    def read(self):
        """The first recv of a request; later ones do not move the mark."""
        data = self.connection.recv(65536)
        if data and "read" not in self.mark:
            thread = threading.current_thread()
            self.mark.update(read=now(), tid=threading.get_native_id(), thread=thread.name)
        return data

    def answer(self, status=200, body=b"ok"):
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connection.sendall(head.encode() + body)
        self.mark.update(
            sent=now(),
            sent_tid=threading.get_native_id(),
            sent_thread=threading.current_thread().name,
            status=status,
        )

    def claim(self, pid, path, ready, method="GET", end="sent", **fields):
        """What the row must say. `ready`: the client's clock when it sent the first byte."""
        accepted = self.accepted
        read, sent = self.mark["read"], self.mark["sent"]
        start = ready if accepted is None else max(accepted, ready)
        expect = {
            "accept_queue_ns": 0 if accepted is None else max(0, accepted - ready),
            "handoff_ns": max(0, read - start),
            "handler_ns": sent - read,
            "accept_to_read_ns": 0 if accepted is None else read - accepted,
        }
        same = {
            "method": method,
            "path": path,
            "end": end,
            "status": self.mark["status"],
            "thread": self.mark["thread"],
            "sent_thread": self.mark["sent_thread"],
            "shared_thread": 0,
        }
        same.update(fields)
        claim(
            "request",
            pid=pid,
            path=path,
            start=ready,
            end=sent,
            tid=self.mark["tid"],
            spans=expect,
            same=same,
            sent_tid=self.mark["sent_tid"],
            cells=self.cells,
        )
