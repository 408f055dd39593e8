"""Small requests on a server with nothing wrong: no explanation may find anything."""

import os
import time

from clock import Child, claim
from httpclock import Server, accept, ask, connect, listen, now, text

REQUESTS = 20
listener = listen()


def serve():
    for _ in range(REQUESTS):
        exchange = accept(listener)
        exchange.read()
        sum(range(50_000))
        exchange.answer()
        exchange.connection.close()


def client():
    for number in range(REQUESTS):
        ask(connect(listener), text(f"/quiet/{number}"))
        time.sleep(0.005)


begin = now()
with Server() as server:
    asking = Child(client)
    server.do(serve)
    asking.result()
claim(
    "no_finding",
    pid=os.getpid(),
    label=f"{REQUESTS} ordinary requests",
    start=begin,
    end=now(),
    requests=REQUESTS,
    path="/quiet/",
)
