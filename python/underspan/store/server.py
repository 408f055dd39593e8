"""ClickHouse's HTTP interface, as far as its clients need it, in front of the engine."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from .body import Body, form_fields
from .compression import accepted_encoding, encode, encode_blocks
from .engine import Answer, Engine, Query
from .errors import ABORTED, INCORRECT_DATA, StoreError
from .request import Parameters, authorise
from .statement import Insert, parse_insert, refuse_several, result_format

# A connection that says nothing for so long is closed. Clients drop idle ones much sooner, so the
# two never race.
IDLE_SECONDS = 120
_DEFAULT_FORMAT = "TabSeparated"
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
            self._send_error(StoreError.own(ABORTED, text))
            return
        body = None
        try:
            body = Body(self.rfile, self.headers, self.server.body_limit)
            self._execute(body, readonly)
        except StoreError as error:
            self._fail(error, body)
        except (ConnectionError, TimeoutError):
            # The client went away or fell silent; nobody is left to answer.
            self.close_connection = True
        except Exception as error:
            # A defect here, or a system short of memory: the client must hear of it.
            traceback.print_exc()
            text = f"Code: 1001. DB::Exception: {type(error).__name__}: {error} (STD_EXCEPTION)"
            self._fail(StoreError(1001, text), body)
        finally:
            self.server.end()

    def _execute(self, body: Body, readonly: bool) -> None:
        url = urlsplit(self.path)
        parameters = Parameters.from_url(url.query)
        authorise(self.server.token, self.headers, parameters)
        if url.path != "/":
            text = f"There is no {url.path} here: statements go to /, health checks to /ping"
            raise StoreError(0, text, HTTPStatus.NOT_FOUND)
        blocks = parameters.flag("decompress")
        content_type = self.headers.get("Content-Type", "")
        if content_type.lower().startswith("multipart/form-data"):
            parameters.add(form_fields(content_type, b"".join(body.read(blocks))))
        text = parameters.get("query").encode("utf-8", "surrogateescape")
        # Only the rows of an INSERT may be large: they go to a file, never into the statement.
        insert = parse_insert(text)
        rest: Iterable[bytes] = body.read(blocks) if not body.finished else ()
        if insert is None:
            text = b"\n".join(part for part in (text, b"".join(rest)) if part.strip())
            rest = ()
            insert = parse_insert(text)
        query = self._query(text, parameters, readonly)
        if insert:
            answer = self._insert(insert, text, rest, query)
        else:
            refuse_several(text)
            answer = self.server.engine.run(query)
        self._send_answer(answer, result_format(text, query.format), parameters)

    def _query(self, text: bytes, parameters: Parameters, readonly: bool) -> Query:
        default = parameters.get("default_format") or self.headers.get("X-ClickHouse-Format")
        if not text.strip():
            raise StoreError.own(62, "Syntax error: Empty query: send it as the body or ?query=")
        return Query(
            text="" if parse_insert(text) else text.decode("utf-8", "surrogateescape"),
            format=default or _DEFAULT_FORMAT,
            database=parameters.get("database") or self.headers.get("X-ClickHouse-Database", ""),
            settings=parameters.settings,
            params=parameters.params,
            readonly=readonly,
        )

    def _insert(self, insert: Insert, text: bytes, rest: Iterable[bytes], query: Query) -> Answer:
        rows = os.memfd_create("underspan-insert", os.MFD_CLOEXEC)
        try:
            with open(rows, "wb", closefd=False) as file:
                file.write(text[insert.data_start :])
                for piece in rest:
                    file.write(piece)
            query.text = insert.reading(f"/proc/self/fd/{rows}")
            answer = self.server.engine.insert(query)
        finally:
            os.close(rows)
        expected = self.headers.get("X-Underspan-Rows")
        if expected is not None and expected != str(answer.written_rows):
            raise StoreError.own(
                INCORRECT_DATA,
                f"{expected} rows were sent and {answer.written_rows} written: the sender's count"
                " or its rows are wrong; do not send them again",
            )
        return answer

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
