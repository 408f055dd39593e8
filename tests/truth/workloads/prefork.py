"""A parent listens and forks workers that accept; each worker's requests are its own."""

import os
import time

from clock import Child, Thread, run
from httpclock import Exchange, ask, connect, listen, now, text

WORKERS = 3
listener = listen()


def worker(number):
    def serve():
        connection, _ = listener.accept()
        exchange = Exchange(connection, accepted=now())
        path = exchange.read().split()[1].decode()
        time.sleep(0.1)
        exchange.answer()
        mark.update(exchange.mark, accepted=exchange.accepted, path=path, pid=os.getpid())

    mark = {}
    run(Thread(f"worker-{number}", serve))
    return mark


workers = [Child(worker, number) for number in range(WORKERS)]
clients = [
    Child(lambda path=path: dict(ask(connect(listener), text(path)), path=path))
    for path in (f"/prefork/{number}" for number in range(WORKERS))
]
ready = {told["path"]: told["ready"] for told in (client.result() for client in clients)}
for process in workers:
    mark = process.result()
    exchange = Exchange(None, mark["accepted"])
    exchange.mark = mark
    exchange.claim(mark["pid"], mark["path"], ready[mark["path"]])
