"""What a request looks like on the wire, how it is read and answered, how its connection ends."""

import os
import socket
import struct
import threading
import time

from clock import Child, Phase, Thread, claim
from httpclock import Server, accept, ask, connect, hear, listen, now, send, text

HANDLE_S = 0.04
PAUSE_S = 0.06


def play(path, serve, client, family=socket.AF_INET, **fields):
    """`serve(exchange)` answers one request; `client(listener, path)` asks, and tells when."""
    listener = listen(family)
    asking = Child(client, listener, path)

    def answer():
        exchange = accept(listener)
        serve(exchange)
        return exchange

    exchange = server.do(answer)
    exchange.claim(os.getpid(), path.split("?")[0], asking.result(), **fields)


def handle(exchange, seconds=HANDLE_S):
    with Phase("handler sleeps") as phase:
        time.sleep(seconds)
    exchange.cells["sleep"] = phase.blocked


def simple(exchange, status=200):
    exchange.read()
    handle(exchange)
    exchange.answer(status)


def asks(listener, path):
    return ask(connect(listener), text(path))


def families():
    for name, family in (
        ("ipv4", socket.AF_INET),
        ("ipv6", socket.AF_INET6),
        ("unix", socket.AF_UNIX),
    ):
        play("/family/" + name, simple, asks, family)


def what_was_said():
    """Method, path without its query, status, trace."""
    path, trace, span = (
        "/said/post?secret=1",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "00f067aa0ba902b7",
    )
    message = text(path, "POST", f"traceparent: 00-{trace}-{span}-01\r\n", b'{"a": 1}')
    play(
        path,
        lambda exchange: simple(exchange, 503),
        lambda listener, _: ask(connect(listener), message),
        method="POST",
        trace_id=trace,
        parent_span_id=span,
        bytes_in=len(message),
    )


def several_reads():
    def client(listener, path):
        connection, message = connect(listener), text(path)
        ready = send(connection, message[:20])
        for piece in (message[20:30], message[30:]):
            time.sleep(PAUSE_S)
            connection.sendall(piece)
        hear(connection)
        return ready

    def serve(exchange):
        data = exchange.read()
        with Phase("waits for the rest of the request") as phase:
            while b"\r\n\r\n" not in data:
                data += exchange.read()
        exchange.cells["net_read"] = phase.blocked
        exchange.answer()

    play("/several-reads", serve, client, bytes_in=len(text("/several-reads")))


def half_closed():
    def client(listener, path):
        connection = connect(listener)
        ready = send(connection, text(path))
        connection.shutdown(socket.SHUT_WR)
        hear(connection)
        return ready

    def serve(exchange):
        while exchange.read():
            pass
        handle(exchange)
        exchange.answer()

    play("/half-closed", serve, client)


def reset():
    """The client gives up while the handler works: the request ends when the reset arrives."""
    listener = listen()

    def client():
        connection = connect(listener)
        ready = send(connection, text("/reset"))
        time.sleep(PAUSE_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        before = now()
        connection.close()
        return {"ready": ready, "gone": (before, now())}

    def serve():
        exchange = accept(listener)
        exchange.read()
        time.sleep(2 * PAUSE_S)
        try:
            exchange.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        except OSError:
            pass
        exchange.connection.close()
        return exchange

    asking = Child(client)
    exchange = server.do(serve)
    told = asking.result()
    exchange.end_at(told["gone"])
    exchange.claim(os.getpid(), "/reset", told["ready"], end="reset")


def closed_unanswered():
    """The server hangs up without a word: the request ends then."""

    def serve(exchange):
        exchange.read()
        handle(exchange)
        before = now()
        exchange.connection.close()
        exchange.end_at((before, now()))

    play("/closed", serve, asks, end="closed")


def never_asked():
    """A client that connects, says nothing and goes is no request."""
    listener = listen()
    begin = now()
    with Server("mute") as mute:
        asking = Child(lambda: connect(listener).close())
        mute.do(lambda: accept(listener).read())
        asking.result()
    claim(
        "no_request",
        label="a client that says nothing",
        pid=os.getpid(),
        tid=mute.native_id,
        thread="mute",
        start=begin,
        end=now(),
    )


def answered_elsewhere():
    """One thread reads, another answers."""
    listener = listen()

    def read():
        exchange = accept(listener)
        exchange.read()
        return exchange

    with Server("answerer") as answerer:
        asking = Child(asks, listener, "/answered-elsewhere")
        exchange = server.do(read)
        time.sleep(HANDLE_S)
        answerer.do(exchange.answer)
    exchange.claim(os.getpid(), "/answered-elsewhere", asking.result())


def ledger_of_a_handler():
    """A handler that waits for a lock, sleeps and computes: the cells say how long each took."""
    lock, held = threading.Lock(), threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(0.1)

    def serve(exchange):
        # Before the request: whoever starts a thread waits for a lock until it runs.
        holder = Thread("holder", hold)
        holder.start()
        held.wait()
        exchange.read()
        with Phase("waits for a lock in a handler") as waits:
            with lock:
                pass
        handle(exchange)
        sum(range(2_000_000))
        exchange.answer()
        holder.join()
        exchange.cells["lock_wait"] = waits.blocked

    play("/ledger", serve, asks)


def event_loop():
    """One thread that serves two requests at once: marked, since its ledger belongs to neither."""
    listener = listen()
    paths = ["/loop/first", "/loop/second"]
    done = []

    def serve():
        for _ in paths:
            exchange = accept(listener)
            exchange.read()
            done.append(exchange)
        time.sleep(HANDLE_S)
        for exchange in done:
            exchange.answer()

    def client():
        connections = [connect(listener) for _ in paths]
        told = []
        for connection, path in zip(connections, paths):
            told.append(send(connection, text(path)))
        for connection in connections:
            hear(connection)
        return told

    asking = Child(client)
    server.do(serve)
    for exchange, path, ready in zip(done, paths, asking.result()):
        exchange.claim(os.getpid(), path, ready, shared_thread=1)


with Server() as server:
    families()
    what_was_said()
    several_reads()
    half_closed()
    reset()
    closed_unanswered()
    never_asked()
    answered_elsewhere()
    event_loop()
    ledger_of_a_handler()
