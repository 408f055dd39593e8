"""Malformed and truncated spans: the server survives, and says so."""

from __future__ import annotations

import gzip
import json
import re
import secrets
import socket
import time
import urllib.error
import urllib.request

import pytest
from common.command import until
from common.ports import any_ports


@pytest.fixture(scope="module")
def server(underspan, tmp_path_factory):
    """A server, its folder, and its ports for OTLP."""
    data = tmp_path_factory.mktemp("spans") / "data"
    with underspan.going("server", "--data", data, *any_ports()) as going:
        lines = [going.wait_for(text) for text in ("over gRPC", "over HTTP")]
        grpc, http = (int(re.search(r":(\d+)", line.replace("http://", ""))[1]) for line in lines)
        yield data, grpc, http
        assert going.process.poll() is None, going.err


def good(trace: str) -> bytes:
    """One span, as JSON."""
    now = time.time_ns()
    span = {
        "traceId": trace,
        "spanId": trace[:16],
        "name": "good",
        "kind": 2,
        "startTimeUnixNano": str(now),
        "endTimeUnixNano": str(now + 1000),
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def post(port: int, body: bytes, kind: str = "application/json", **headers) -> int:
    """The status of a request."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/traces", body, {"Content-Type": kind, **headers})
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        assert error.read(), "it says nothing"
        return error.code


def still_works(underspan, data, http) -> None:
    """The next good span is stored."""
    trace = secrets.token_hex(16)
    assert post(http, good(trace)) == 200
    query = f"SELECT count() AS n FROM otel_traces WHERE TraceId = '{trace}'"
    until("the good span is stored", lambda: int(underspan.sql(data, query)[0]["n"]) == 1, 30)


def test_spans_are_held_back_until_somebody_reads(underspan, server):
    data, _, http = server

    def stored(trace):
        # One read asks for all that come soon after it.
        time.sleep(0.6)
        return int(underspan.sql(data, f"SELECT count() AS n FROM otel_traces WHERE TraceId = '{trace}'")[0]["n"])

    still_works(underspan, data, http)  # by now it knows that it will be asked
    blocks = "SELECT max(max_block_number) AS n FROM system.parts WHERE table = 'otel_traces'"
    before = int(underspan.sql(data, blocks)[0]["n"])
    traces = [secrets.token_hex(16) for _ in range(4)]
    for trace in traces:
        assert post(http, good(trace)) == 200
        time.sleep(1.2)  # longer than they would be kept without that
    assert [stored(trace) for trace in traces] == [1] * 4
    inserts = int(underspan.sql(data, blocks)[0]["n"]) - before
    assert 1 <= inserts <= 2, "the one that reading waited for, and one that was due"


@pytest.mark.parametrize(
    ("body", "kind", "headers"),
    [
        (b"{", "application/json", {}),
        (good("0" * 32)[:-20], "application/json", {}),
        (b'{"resourceSpans": 7}', "application/json", {}),
        (b"\x0a\xff\xff\xff\xff\x0f", "application/x-protobuf", {}),
        (b"\x0a\x7fabc", "application/x-protobuf", {}),
        (secrets.token_bytes(1 << 16), "application/x-protobuf", {}),
        (b"not gzip at all", "application/json", {"Content_Encoding": "gzip"}),
        (gzip.compress(good("1" * 32))[:-12], "application/json", {"Content_Encoding": "gzip"}),
        (b"a=b", "application/x-www-form-urlencoded", {}),
    ],
)
def test_malformed_over_http(underspan, server, body, kind, headers):
    data, _, http = server
    assert 400 <= post(http, body, kind, **headers) < 500
    still_works(underspan, data, http)


def test_bodies_that_end_too_early_or_never_come(underspan, server):
    data, grpc, http = server
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    kept = []
    for port in (http, grpc):
        for text in (b"", b"POST", head, head + b'{"resourceSpans', b"\x16\x03\x01\x02\x00" + secrets.token_bytes(512)):
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(text)
            silent = socket.create_connection(("127.0.0.1", port), 5)
            silent.sendall(text)
            kept.append(silent)
    still_works(underspan, data, http)
    for silent in kept:
        silent.close()


# HTTP/2: preface, empty SETTINGS; then frames as (length, type, flags, stream).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers() -> bytes:
    """A call of Export, as literal header fields."""
    path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


@pytest.mark.parametrize(
    "message",
    [
        b"\0\0\0\0\x05\x0a\x7fabc",  # a length that points behind the end
        b"\0\0\0\x10\0abc",  # fewer bytes than announced
        b"\1\0\0\0\x03abc",  # compressed with nothing
        b"\0\xff\xff\xff\xff",  # 4 GiB announced
        b"\0\0",  # not even a length
        b"",
    ],
)
def test_malformed_over_grpc(underspan, server, message):
    data, grpc, http = server
    with socket.create_connection(("127.0.0.1", grpc), 5) as connection:
        call = frame(1, 4, 1, headers()) + frame(0, 1, 1, message)
        connection.sendall(PREFACE + call)
        connection.settimeout(5)
        answer = b""
        # Until the trailers or the end: some answer, and no silence.
        while b"grpc-status" not in answer and (more := connection.recv(4096)):
            answer += more
            if any_trailers(answer):
                break
        assert any_trailers(answer), answer
    still_works(underspan, data, http)


def any_trailers(answer: bytes) -> bool:
    """Whether stream 1 was answered with HEADERS or RST_STREAM, or the connection with GOAWAY."""
    kinds = []
    while len(answer) >= 9:
        length, kind = int.from_bytes(answer[:3], "big"), answer[3]
        kinds.append(kind)
        answer = answer[9 + length :]
    return bool({1, 3, 7} & set(kinds))


def test_grpc_connection_cut_in_the_middle(underspan, server):
    data, grpc, http = server
    for cut in (10, 30, 60, 200):
        call = PREFACE + frame(1, 4, 1, headers()) + frame(0, 0, 1, b"\0\0\0\1\0" + bytes(100))
        with socket.create_connection(("127.0.0.1", grpc), 5) as connection:
            connection.sendall(call[:cut])
    still_works(underspan, data, http)
