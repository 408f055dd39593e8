"""What the front service of tests/joined talks to: a peer that is slow, one that accepts late, one that reads late.

Says `{"http": PORT, "late": PORT, "reader": PORT}` when it listens.
"""

import json
import socket
import threading
import time

import answering

SLOW_S = 0.4
ACCEPT_AFTER_S = 0.4
BACKLOG = 1

late = socket.socket()
late.bind(("127.0.0.1", 0))
late.listen(BACKLOG)
reader = socket.socket()
# Connections inherit it: less than what a sender may have on its way, so that it is the window that stops it.
reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 10)
reader.bind(("127.0.0.1", 0))
reader.listen()
fillers = []


class Handler(answering.Handler):
    def act(self):
        if self.path == "/slow":
            time.sleep(SLOW_S)
        if self.path == "/fill":
            fill()


def fill():
    """Fills the accept queue (it holds one more than its backlog), to be accepted later."""
    fillers.clear()
    for _ in range(BACKLOG + 1):
        fillers.append(socket.create_connection(late.getsockname()))
    threading.Timer(ACCEPT_AFTER_S, lambda: [late.accept() for _ in fillers]).start()


def read_late():
    """Accepts, does something else for as many milliseconds as it is told, and only then reads on.

    Says at the end for how many nanoseconds that was.
    """
    while True:
        connection, _ = reader.accept()
        late_s = int(connection.recv(4)) / 1e3
        start = time.monotonic_ns()
        time.sleep(late_s)
        late = time.monotonic_ns() - start
        while connection.recv(1 << 20):
            pass
        connection.sendall(str(late).encode())
        connection.close()


def main():
    server = answering.listen(Handler)
    threading.Thread(target=read_late, name="reads-late", daemon=True).start()
    ports = {"http": server.server_port, "late": late.getsockname()[1], "reader": reader.getsockname()[1]}
    print(json.dumps(ports), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
