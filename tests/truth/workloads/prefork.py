"""A parent listens and forks workers that accept; each worker's requests are its own."""

import os
import time

from clock import Child, Thread, run
from httpclock import KNOWN_S, Exchange, accept, ask, connect, listen, text

WORKERS = 3
listener = listen()


def worker(number):
    def serve():
        time.sleep(KNOWN_S)
        exchange = accept(listener)
        path = exchange.read().split()[1].decode()
        time.sleep(0.1)
        exchange.answer()
        mark.update(exchange.mark, accepted=exchange.accepted, path=path, pid=os.getpid())

    mark = {}
    run(Thread(f"worker-{number}", serve))
    return mark


paths = [f"/prefork/{number}" for number in range(WORKERS)]
workers = [Child(worker, number) for number in range(WORKERS)]
time.sleep(2 * KNOWN_S)
clients = [Child(lambda path=path: ask(connect(listener), text(path))) for path in paths]
ready = {path: client.result() for path, client in zip(paths, clients)}
for process in workers:
    mark = process.result()
    exchange = Exchange(None, mark["accepted"])
    exchange.mark = mark
    exchange.claim(mark["pid"], mark["path"], ready[mark["path"]])
