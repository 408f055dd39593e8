"""Sets the machine's clock by a second, forwards and back, in the middle of waits, a request and a
conversation, and writes down when. One JSON object a line.

It begins when a line arrives on standard input, and ends after all steps.
"""

import json
import os
import socket
import threading
import time

SECOND = 1_000_000_000
STEPS = {"forwards": SECOND, "back": -SECOND}
# Waits after a step.
WAITS, EACH = 30, 0.02


def tell(case, tid, start, end, **more):
    row = {"case": case, "tid": tid, "start": start, "end": end, **more}
    os.write(1, json.dumps(row).encode() + b"\n")


def across(name, step):
    """Sets the clock in the middle of a wait and a request of 0.3 s; then they talk on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
        done = threading.Event()

        def serve():
            connection.recv(100)
            time.sleep(0.3)
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            while message := connection.recv(4096):
                connection.send(message)

        def sleep():
            time.sleep(0.3)

        def ask():
            client.send(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            client.recv(100)
            while not done.is_set():
                client.send(b"x" * 4096)
                client.recv(4096)
                time.sleep(0.01)
            client.close()

        threads = {call.__name__: threading.Thread(target=call) for call in (serve, sleep, ask)}
        for thread in threads.values():
            thread.start()
        time.sleep(0.15)
        time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + step)
        at = time.time_ns()
        tids = {f"{call}_tid": thread.native_id for call, thread in threads.items()}
        tell("set", 0, at, at, name=name, by=step, **tids)
        # Meanwhile the three go on.
        afterwards(name)
        done.set()
        for thread in threads.values():
            thread.join()
        connection.close()


def afterwards(name):
    """Short waits, each noted down in the new time."""
    tid = threading.get_native_id()
    for _ in range(WAITS):
        start = time.time_ns()
        time.sleep(EACH)
        tell(f"after {name}", tid, start, time.time_ns())


def main():
    os.read(0, 16)
    for name, step in STEPS.items():
        across(name, step)
        # Rows of before and after are not to be taken for one another.
        time.sleep(2.5)
    tell("end", 0, 0, 0)
    os.read(0, 16)


if __name__ == "__main__":
    main()
