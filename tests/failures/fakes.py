"""Things that answer where a store should: an old ClickHouse, a web page, a proxy to a store."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading


@contextlib.contextmanager
def answering(body: bytes, status: int = 200, headers=()):
    """An HTTP server that answers everything alike. Yields its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def version(text: str) -> bytes:
    """The answer to `SELECT version()` in the format that the official client asks for."""
    name, kind = b"version()", b"String"
    value = text.encode()
    return b"\x01" + b"".join(bytes([len(each)]) + each for each in (name, kind, value))


@contextlib.contextmanager
def silent():
    """Accepts connections and never answers. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []
        thread = threading.Thread(target=lambda: keep(server, kept), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for connection in kept:
            connection.close()


def keep(server, kept) -> None:
    """Accepts until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            kept.append(server.accept()[0])
