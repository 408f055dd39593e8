"""What the services here have in common: HTTP/1.1 on a port of loopback, and an answer to every GET."""

import http.server


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers `ok` as soon as `act` returns, which is what a service is for."""

    protocol_version = "HTTP/1.1"

    def act(self):
        raise NotImplementedError

    def do_GET(self):
        self.act()
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


def listen(handler):
    """A server on a port that nobody has; each connection has a thread."""
    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)


def say_port(server):
    """Whoever started the service reads it: see `port_of` in tests/common."""
    print("port", server.server_port, flush=True)
