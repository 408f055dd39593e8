"""A WSGI service whose handlers wait on sockets. Each answers with what it measured, in nanoseconds."""

import http.client
import json
import os
import socket
import time

PORTS = json.loads(os.environ["BACKEND_PORTS"])
BYTES = 4 << 20


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


def window():
    """Sends to a peer that does not read."""
    connection = socket.create_connection(("127.0.0.1", PORTS["reader"]))
    # All that it may have: a sender whose own buffer is full waits for acknowledgements before.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    start = time.monotonic_ns()
    connection.sendall(bytes(BYTES))
    waited = time.monotonic_ns() - start
    connection.close()
    return waited


HANDLERS = {"/follow": lambda: ask("/slow"), "/full": full, "/window": window, "/quiet": lambda: ask("/")}


def app(environ, start_response):
    body = json.dumps(HANDLERS[environ["PATH_INFO"]]()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
