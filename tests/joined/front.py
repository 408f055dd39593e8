"""A WSGI service whose handlers wait on sockets. Each answers with what it measured, in nanoseconds."""

import http.client
import json
import os
import socket
import time

PORTS = json.loads(os.environ["BACKEND_PORTS"])
BYTES = 4 << 20
# In TCP_INFO: `tcpi_rwnd_limited`, in microseconds.
RWND_LIMITED = slice(176, 184)


def ask(path):
    """One request to the backend, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", PORTS["http"])
    connection.connect()
    start = time.monotonic_ns()
    connection.request("GET", path)
    connection.getresponse().read()
    waited = time.monotonic_ns() - start
    connection.close()
    return waited


def full():
    """Connects to a peer whose accept queue is full."""
    ask("/fill")
    start = time.monotonic_ns()
    connection = socket.create_connection(("127.0.0.1", PORTS["late"]))
    waited = time.monotonic_ns() - start
    connection.close()
    return waited


def window(late_ms):
    """Sends to a peer that does not read for so long.

    How long that took, how late the reader says that it was, and how long the kernel says that its window was used up.
    """
    connection = socket.create_connection(("127.0.0.1", PORTS["reader"]))
    # All that it may have: a sender whose own buffer is full waits for acknowledgements before.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    connection.sendall(f"{late_ms:04}".encode())
    start = time.monotonic_ns()
    connection.sendall(bytes(BYTES))
    connection.shutdown(socket.SHUT_WR)
    late = int(connection.recv(64))
    waited = time.monotonic_ns() - start
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    connection.close()
    return {"waited": waited, "late": late, "kernel": int.from_bytes(info[RWND_LIMITED], "little") * 1000}


HANDLERS = {
    "/follow": lambda: ask("/slow"),
    "/full": full,
    "/quiet": lambda: ask("/"),
    "/window/60": lambda: window(60),
    "/window/250": lambda: window(250),
    "/window/600": lambda: window(600),
}


def app(environ, start_response):
    body = json.dumps(HANDLERS[environ["PATH_INFO"]]()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
