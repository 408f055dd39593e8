"""ClickHouse's HTTP interface, as far as its clients need it, in front of the engine."""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from .body import Body
from .compression import accepted_encoding, encode, encode_blocks
from .engine import Answer, Engine
from .errors import Code, StoreError
from .execute import execute
from .request import Parameters, authorise
from .writers import Writers

# Where writers learn that somebody is about to read. (writers.py)
ASKED_PATH = "/underspan/asked"
# A connection that says nothing for so long is closed. Clients drop idle ones much sooner, so the
# two never race.
IDLE_SECONDS = 120
_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
}


class StoreServer(ThreadingHTTPServer):
    """The listening socket, the engine and the count of requests being answered."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], engine: Engine, token: str, limit: int) -> None:
        super().__init__(address, Handler)
        self.engine = engine
        self.token = token
        self.body_limit = limit
        self.writers = Writers()
        self._lock = threading.Condition()
        self._active = 0
        self.draining = False

    def begin(self) -> bool:
        """Counts a request in, unless the store is going away."""
        with self._lock:
            self._active += not self.draining
            return not self.draining

    def end(self) -> None:
        with self._lock:
            self._active -= 1
            self._lock.notify_all()

    def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for those accepted. Whether all of them ended."""
        with self._lock:
            self.draining = True
            self.writers.close()
            return self._lock.wait_for(lambda: self._active == 0, seconds)

    def handle_error(self, request: socket.socket, client_address: object) -> None:
        """A client that goes away while it is answered is its own affair."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet for the headers and a small body
    timeout = IDLE_SECONDS
    server: StoreServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in ("/ping", "/replicas_status") or self.path == "/":
            self._send(HTTPStatus.OK, b"Ok.\n", {"Content-Type": "text/html; charset=UTF-8"})
        elif path == ASKED_PATH:
            self._tell_when_asked()
        else:
            self._answer(readonly=True)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(readonly=False)

    def do_OPTIONS(self) -> None:
        self._send(HTTPStatus.NO_CONTENT, b"", {"Allow": "GET, HEAD, POST, OPTIONS"})

    def _answer(self, readonly: bool) -> None:
        if not self.server.begin():
            self.close_connection = True
            text = "The store is shutting down: try again when it is back"
            self._send_error(StoreError.own(Code.ABORTED, text))
            return
        body = None
        try:
            body = Body(self.rfile, self.headers, self.server.body_limit)
            self._serve(body, readonly)
        except StoreError as error:
            self._fail(error, body)
        except (ConnectionError, TimeoutError):
            # The client went away or fell silent; nobody is left to answer.
            self.close_connection = True
        except Exception as error:
            # A system short of memory or files, or a defect here: the client must hear of it.
            traceback.print_exc()
            code = (
                Code.SYSTEM_ERROR
                if isinstance(error, (OSError, MemoryError))
                else Code.STD_EXCEPTION
            )
            self._fail(StoreError.own(code, f"{type(error).__name__}: {error}"), body)
        finally:
            self.server.end()

    def _tell_when_asked(self) -> None:
        # Not counted as being answered: it may take long, and ends when the store does.
        try:
            url = urlsplit(self.path)
            parameters = Parameters.from_url(url.query)
            authorise(self.server.token, self.headers, parameters)
            name = parameters.settings.get("writer", "")
            written = parameters.settings.get("written", "")
            if not name or not written.isdecimal():
                text = f"{ASKED_PATH} wants ?writer=NAME&written=NUMBER"
                raise StoreError.own(Code.BAD_ARGUMENTS, text)
            asked = self.server.writers.wait(name, int(written))
            if self.server.draining:
                # The same answer would have it ask again, without a pause, until we are gone.
                raise StoreError.own(Code.ABORTED, "The store is shutting down")
            answer = json.dumps({"asked": asked}).encode()
            self._send(HTTPStatus.OK, answer, {"Content-Type": "application/json"})
        except StoreError as error:
            self._send_error(error)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _serve(self, body: Body, readonly: bool) -> None:
        url = urlsplit(self.path)
        parameters = Parameters.from_url(url.query)
        authorise(self.server.token, self.headers, parameters)
        if url.path != "/":
            text = f"There is no {url.path} here: statements go to /, health checks to /ping"
            raise StoreError(0, text, HTTPStatus.NOT_FOUND)
        answer, format = execute(self.server, body, self.headers, parameters, readonly)
        self._send_answer(answer, format, parameters)

    def _send_answer(self, answer: Answer, format: str, parameters: Parameters) -> None:
        data = answer.data
        headers = {
            "Content-Type": _CONTENT_TYPES.get(format, "application/octet-stream"),
            "X-ClickHouse-Format": format,
            "X-ClickHouse-Query-Id": parameters.get("query_id") or str(uuid.uuid4()),
            "X-ClickHouse-Summary": _summary(answer),
            "X-ClickHouse-Timezone": self.server.engine.timezone,
            "X-ClickHouse-Server-Display-Name": "underspan",
        }
        if parameters.flag("compress"):
            data = encode_blocks(data)
        accepted = accepted_encoding(self.headers.get("Accept-Encoding", ""))
        if accepted and data and parameters.settings.get("enable_http_compression", "1") != "0":
            data = encode(data, accepted)
            headers["Content-Encoding"] = accepted
        self._send(HTTPStatus.OK, data, headers)

    def _fail(self, error: StoreError, body: Body | None) -> None:
        if body is not None:
            body.drain()
        self.close_connection = self.close_connection or body is None or not body.finished
        self._send_error(error)

    def _send_error(self, error: StoreError) -> None:
        headers = {
            "Content-Type": "text/plain; charset=UTF-8",
            "X-ClickHouse-Exception-Code": str(error.code),
        }
        if error.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        text = f"{error.text} (version {self.server.engine.version} (underspan embedded))\n"
        self._send(error.status, text.encode("utf-8", "surrogateescape"), headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.close_connection = self.close_connection or self.server.draining
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def version_string(self) -> str:
        return "underspan-store"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: their number and size are no one's news."""


def _summary(answer: Answer) -> str:
    # ClickHouse writes its numbers as strings here.
    return json.dumps(
        {
            "read_rows": str(answer.read_rows),
            "read_bytes": str(answer.read_bytes),
            "written_rows": str(answer.written_rows),
            "written_bytes": "0",
            "total_rows_to_read": "0",
            "result_rows": str(answer.result_rows or answer.written_rows),
            "result_bytes": str(len(answer.data)),
            "elapsed_ns": str(answer.elapsed_ns),
        }
    )
