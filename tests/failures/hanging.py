"""A service whose requests can hang: `/hang` waits for a lock that the thread `keeper` has, until `/over`.

Says `port N` when it listens, and answers every other path at once.
"""

import http.server
import threading

lock = threading.Lock()
over = threading.Event()


def keep():
    with lock:
        over.wait()


def need_the_lock():
    with lock:
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/hang":
            need_the_lock()
        if self.path == "/over":
            over.set()
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


def main():
    threading.Thread(target=keep, name="keeper").start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("port", server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
