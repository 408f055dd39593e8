"""A service in which three things wait, and only one of them is a trouble.

- /read waits for a lock of the application's that another request, /export, holds.
- A library's pool has nothing to do.
- A heartbeat sleeps between its beats.
"""

import http.client
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from clock import Child, claim

HOLD_S = 0.4
IDLE_S = 3.0
reports = threading.Lock()
held = threading.Event()
seen = {}


def render_report():
    held.set()
    seen["line"] = render_report.__code__.co_firstlineno + 3
    time.sleep(HOLD_S)  # the report comes from elsewhere


def export():
    with reports:
        seen["holder"] = threading.get_native_id()
        render_report()


def read():
    held.wait()
    before = time.monotonic_ns()
    with reports:
        seen["waited"] = time.monotonic_ns() - before


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        {"/export": export, "/read": read}[self.path]()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def beat():
    while True:
        time.sleep(0.1)


def ask(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    connection.getresponse().read()


def clients(port):
    time.sleep(1.5)  # until then the agent may not have read the interpreter's unwind tables
    both = [threading.Thread(target=ask, args=(port, path)) for path in ("/export", "/read")]
    for each in both:
        each.start()
        time.sleep(0.05)
    for each in both:
        each.join()


def main():
    begin = time.time_ns()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    client = Child(clients, server.server_address[1])  # while there is no other thread
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    with ThreadPoolExecutor(4, thread_name_prefix="pool") as pool:
        list(pool.map(time.sleep, [0.1] * 4))
        time.sleep(IDLE_S)
    client.result()
    claim(
        "patterns",
        label="three patterns",
        pid=os.getpid(),
        thread="",
        start=begin,
        end=time.time_ns(),
        path="/read",
        line=f"patterns.py:{seen['line']}",
        holder=seen["holder"],
        ns=seen["waited"],
        at_least=200_000_000,
        idle={"heartbeat": ("beat", "sleep"), "pool": ("_worker", "lock_wait")},
    )
    server.shutdown()


if __name__ == "__main__":
    main()
