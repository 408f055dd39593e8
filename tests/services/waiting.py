"""A small HTTP service in which every kind of wait happens that has a histogram.

Says `port N` when it listens. `/sleep/MS` answers after so long, `/collect` collects garbage,
`/spin/MS` computes for so long, `/connect/PORT` opens a connection.
"""

import gc
import socket
import time

import answering


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
