"""Both ends of one HTTP request, with their clocks. The client runs in a process of its own."""

import atexit
import os
import queue
import socket
import tempfile
import time

from clock import Phase, Thread, claim

now = time.time_ns
KNOWN_S = 0.3


def listen(family=socket.AF_INET, backlog=128):
    """A listening socket on loopback, or on a fresh path."""
    listener = socket.socket(family)
    if family == socket.AF_UNIX:
        path = tempfile.mktemp(prefix="truth-http-")
        listener.bind(path)
        atexit.register(os.unlink, path)
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


def send(connection, message):
    """Sends; the first byte was in the peer's kernel between these two instants."""
    before = now()
    connection.sendall(message)
    return (before, now())


def ask(connection, message):
    """Sends a request and reads the whole answer. Returns when it was sent."""
    ready = send(connection, message)
    hear(connection)
    return ready


def hear(connection):
    """Reads an answer to its end. Who hangs up earlier resets the connection."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(65536)
        if not piece:
            return
        answer += piece
    head, body = answer.split(b"\r\n\r\n", 1)
    length = int(head.rsplit(b"Content-Length: ", 1)[1])
    while len(body) < length:
        body += connection.recv(65536)


def accept(listener):
    with Phase("accepts") as phase:
        connection, _ = listener.accept()
    return Exchange(connection, accepted=phase.ended)


class Server(Thread):
    """A thread that serves one exchange after another. As a server's threads are, it was started
    long before its first request; by then it is known by name."""

    def __init__(self, name="server"):
        super().__init__(name, self._serve)
        self._jobs = queue.Queue()
        self._done = queue.Queue()

    def _serve(self):
        for job in iter(self._jobs.get, None):
            self._done.put(job())

    def __enter__(self):
        self.start()
        time.sleep(KNOWN_S)
        return self

    def do(self, job):
        """Has the thread do it, and returns what it returned."""
        self._jobs.put(job)
        return self._done.get(timeout=30)

    def __exit__(self, *_):
        self._jobs.put(None)
        self.join()


def after(end, *begins):
    """How long after the latest of `begins` was `end`? All are intervals, and so is the answer."""
    low = end[0] - max(high for _, high in begins)
    high = end[1] - max(low for low, _ in begins)
    return (max(0, low), max(0, high))


class Exchange:
    """One request as its server saw it. Its marks become the claim about the row in `requests`."""

    def __init__(self, connection, accepted=None):
        self.connection = connection
        self.accepted = accepted
        self.mark = {}
        self.cells = {}  # what the ledger of its handler must hold, by state

    def read(self, receive=lambda connection: connection.recv(65536)):
        """The first read of a request; later ones do not move the mark."""
        with Phase("reads") as phase:
            data = receive(self.connection)
        if data and "read" not in self.mark:
            self.mark.update(read=phase.ended, tid=phase.who["tid"], thread=phase.who["thread"])
        return data

    def write(self, send, status):
        """`send(connection)` sends the answer."""
        with Phase("writes") as phase:
            send(self.connection)
        self.end_at(phase.ended, status, phase.who["tid"], phase.who["thread"])

    def answer(self, status=200, body=b"ok"):
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        self.write(lambda connection: connection.sendall(head.encode() + body), status)

    def end_at(self, instant, status=0, tid=0, thread=""):
        self.mark.update(sent=instant, status=status, sent_tid=tid, sent_thread=thread)

    def claim(self, pid, path, ready, method="GET", end="sent", **fields):
        """What the row must say. `ready`: when the client sent the first byte."""
        accepted, read, sent = self.accepted, self.mark["read"], self.mark["sent"]
        spans = {
            "accept_queue_ns": after(accepted, ready) if accepted else (0, 0),
            "handoff_ns": after(read, accepted, ready) if accepted else after(read, ready),
            "handler_ns": after(sent, read),
            "accept_to_read_ns": after(read, accepted) if accepted else (0, 0),
        }
        same = {key: self.mark[key] for key in ("status", "thread", "sent_thread")}
        same.update({"method": method, "path": path, "end": end, "shared_thread": 0}, **fields)
        claim(
            "request",
            pid=pid,
            path=path,
            start=ready[0],
            end=sent[1],
            tid=self.mark["tid"],
            spans=spans,
            same=same,
            sent_tid=self.mark["sent_tid"],
            cells=self.cells,
        )
