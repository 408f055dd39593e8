"""A small HTTP service in which every kind of wait happens that has a histogram.

Says `port N` when it listens. `/sleep/MS` answers after so long, `/collect` collects garbage,
`/spin/MS` computes for so long, `/connect/PORT` opens a connection.
"""

import gc
import http.server
import socket
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
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
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"ok\n")
        self.close_connection = True

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, flush=True)
server.serve_forever()
