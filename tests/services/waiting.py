"""A small HTTP service in which every kind of wait happens that has a histogram.

Says `port N` when it listens. `/sleep/MS` answers after so long, `/collect` collects garbage,
`/spin/MS` computes for so long, `/connect/PORT` opens a connection, `/stall/MS` lets one's window be
closed for so long.
"""

import gc
import socket
import time

import answering


def stall(seconds):
    """Sends over a connection of its own until its reader has no room, and reads that late."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        with socket.create_connection(server.getsockname()) as sender:
            reader, _ = server.accept()
            with reader:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 131072)
                sender.setblocking(False)
                left = 0
                try:
                    while True:
                        left += sender.send(bytes(65536))
                except BlockingIOError:
                    pass
                time.sleep(seconds)
                while left:
                    left -= len(reader.recv(65536))


class Handler(answering.Handler):
    def act(self):
        _, what, *rest = self.path.split("/")
        number = int(rest[0]) if rest else 0
        if what == "sleep":
            time.sleep(number / 1000)
        elif what == "collect":
            circles = [[] for _ in range(20_000)]
            for circle in circles:
                circle.append(circle)
            del circles, circle
            gc.collect()
        elif what == "spin":
            end = time.thread_time() + number / 1000
            while time.thread_time() < end:
                pass
        elif what == "connect":
            socket.create_connection(("127.0.0.1", number)).close()
        elif what == "stall":
            stall(number / 1000)

    def end_headers(self):
        # One request a connection, so that each was accepted.
        self.send_header("Connection", "close")
        super().end_headers()


def main():
    server = answering.listen(Handler)
    answering.say_port(server)
    server.serve_forever()


if __name__ == "__main__":
    main()
