"""Ports of loopback: taken ones, and ones that nobody has."""

from __future__ import annotations

import contextlib
import socket


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def occupied_port():
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def any_ports() -> list[str]:
    """Options of `up` and `server` for ports that nobody has."""
    where = "127.0.0.1:0"
    return ["--api", where, "--otlp-grpc", where, "--otlp-http", where, "--store-port", "0"]
