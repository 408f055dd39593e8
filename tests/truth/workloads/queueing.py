"""Where a request waits before its handler: in the accept queue, for a thread, or not at all."""

import os
import queue
import select
import time

from clock import Child, Thread, run
from httpclock import KNOWN_S, Exchange, Server, accept, ask, connect, hear, listen, send, text

DELAY_S = 0.15
SILENCE_S = 0.6


def one_request(path, serve, client):
    """`serve(listener)` answers one request, returns its exchange; `client` tells when it asked."""
    listener = listen()
    asking = Child(client, listener, path)
    exchange = server.do(lambda: serve(listener))
    exchange.claim(os.getpid(), path, asking.result())


def asks_at_once(listener, path):
    return ask(connect(listener), text(path))


def asks_after_silence(listener, path):
    connection = connect(listener)
    time.sleep(SILENCE_S)
    return ask(connection, text(path))


def handle(exchange, seconds=0.05):
    exchange.read()
    time.sleep(seconds)
    exchange.answer()
    return exchange


def accepts_late(listener):
    time.sleep(DELAY_S)
    return handle(accept(listener))


def hands_off_late(listener):
    exchange = accept(listener)
    time.sleep(DELAY_S)
    return handle(exchange)


def reads_at_once(listener):
    return handle(accept(listener))


def reads_when_readable(listener):
    exchange = accept(listener)
    select.select([exchange.connection], [], [])
    return handle(exchange)


def accepts_late_into_silence(listener):
    """The client's first byte comes after the late accept: nothing was waiting in the queue."""
    time.sleep(DELAY_S)
    return handle(accept(listener))


def worker_threads():
    """One thread accepts, others read: the classic threaded server, with both its workers busy."""
    listener = listen()
    paths = [f"/workers/{number}" for number in range(4)]
    accepted = queue.Queue()
    done = []

    def work():
        while True:
            exchange = accepted.get()
            if exchange is None:
                return
            done.append(handle(exchange, DELAY_S))

    def dispatch():
        for _ in paths:
            accepted.put(accept(listener))
        for _ in workers:
            accepted.put(None)

    def clients():
        told, connections = [], [connect(listener) for _ in paths]
        for connection, path in zip(connections, paths):
            told.append(send(connection, text(path)))
            time.sleep(0.01)
        for connection in connections:
            hear(connection)
        return told

    workers = [Thread(f"worker-{number}", work) for number in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(KNOWN_S)
    asking = Child(clients)
    run(Thread("acceptor", dispatch))
    for worker in workers:
        worker.join()
    for exchange, path, ready in zip(
        sorted(done, key=lambda each: each.accepted), paths, asking.result()
    ):
        exchange.claim(os.getpid(), path, ready)


def keep_alive():
    """Idle time between two requests belongs to neither; a busy thread's time to the next."""
    listener = listen()
    paths = ["/kept/first", "/kept/after-idle", "/kept/handed-off-late"]

    def client():
        connection, told = connect(listener), []
        for path in paths:
            told.append(ask(connection, text(path)))
            time.sleep(SILENCE_S / 2)
        return told

    def serve():
        exchange = accept(listener)
        done.append(handle(exchange))
        for path in paths[1:]:
            exchange = Exchange(exchange.connection)
            select.select([exchange.connection], [], [])
            if path.endswith("late"):
                time.sleep(DELAY_S)
            done.append(handle(exchange))

    done = []
    asking = Child(client)
    server.do(serve)
    for number, (exchange, path, ready) in enumerate(zip(done, paths, asking.result())):
        exchange.claim(os.getpid(), path, ready, conn_request=number)


with Server() as server:
    one_request("/accept-queue", accepts_late, asks_at_once)
    one_request("/handoff", hands_off_late, asks_at_once)
    one_request("/silent/blocked-in-recv", reads_at_once, asks_after_silence)
    one_request("/silent/polled", reads_when_readable, asks_after_silence)
    one_request("/silent/accepted-late", accepts_late_into_silence, asks_after_silence)
    keep_alive()
worker_threads()
