"""The embedded store's HTTP interface, request by request."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import struct
import threading
import time

import pytest
from store_host import Host

from underspan.store import compression


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("store"), "--max-body", "8")
    host.ok("CREATE TABLE t (a UInt64, b String DEFAULT 'none') ENGINE = MergeTree ORDER BY a")
    yield host
    assert host.stop() == 0


@pytest.fixture(autouse=True)
def empty_table(request):
    yield
    if "host" in request.fixturenames:
        request.getfixturevalue("host").ok("TRUNCATE TABLE t")


def row_binary(count: int) -> bytes:
    """Rows whose bytes hold what would end a statement."""
    return b"".join(struct.pack("<Q", i) + b"\x03a;'" for i in range(count))


def test_row_binary_is_stored_whole(host):
    query = "INSERT INTO t (a, b) FORMAT RowBinary"
    status, headers, _ = host.ask(row_binary(200_000), query=query)
    assert status == 200
    assert json.loads(headers["X-ClickHouse-Summary"])["written_rows"] == "200000"
    assert host.ok("SELECT count(), sum(a), any(b) FROM t") == b"200000\t19999900000\ta;\\'\n"


def test_rows_behind_the_statement_in_the_body(host):
    host.ok(b"INSERT INTO t (a, b) FORMAT RowBinary\n" + row_binary(1000))
    host.ok("INSERT INTO t (a) VALUES (5000), (5001) ;")
    host.ok(b"(6000)", query="INSERT INTO t (a) VALUES")
    assert host.ok("SELECT count(), max(a) FROM t") == b"1003\t6000\n"


def test_missing_fields_get_the_columns_default(host):
    host.ok('{"a": 1}', query="INSERT INTO t FORMAT JSONEachRow")
    assert host.ok("SELECT b FROM t") == b"none\n"


def test_a_row_cut_short_stores_nothing(host):
    query = "INSERT INTO t (a, b) FORMAT RowBinary"
    status, headers, text = host.ask(row_binary(1000)[:-1], query=query)
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "33")
    assert text.startswith(b"Code: 33. DB::Exception: Cannot read all data"), text
    assert text.count(b"CANNOT_READ_ALL_DATA") == 1 and text.count(b"(version") == 1, text
    assert host.ok("SELECT count() FROM t") == b"0\n"


def test_a_wrong_row_count_is_told(host):
    query = "INSERT INTO t (a, b) FORMAT RowBinary"
    sent = row_binary(10)
    status, _, text = host.ask(sent, {"X-Underspan-Rows": "11"}, query=query)
    assert status == 400 and b"11 rows were sent and 10 written" in text
    assert host.ask(sent, {"X-Underspan-Rows": "10"}, query=query)[0] == 200


def test_block_compression_both_ways(host):
    rows = compression.encode_blocks(row_binary(150_000))
    host.ok(rows, query="INSERT INTO t (a, b) FORMAT RowBinary", decompress="1")
    packed = host.ok("SELECT a FROM t ORDER BY a FORMAT RowBinary", compress="1")
    assert len(packed) < 150_000 * 8
    plain = b"".join(compression.decode_blocks([packed[:7], packed[7:]]))
    assert plain == b"".join(struct.pack("<Q", i) for i in range(150_000))


@pytest.mark.parametrize("damage", ["flip", "cut", "garbage", "zeros"])
def test_damaged_blocks_are_refused(host, damage):
    rows = compression.encode_blocks(row_binary(100))
    rows = {
        "flip": rows[:-1] + bytes([rows[-1] ^ 1]),
        "cut": rows[:-1],
        "garbage": b"no block at all" * 9,
        "zeros": bytes(64),
    }[damage]
    query = "INSERT INTO t (a, b) FORMAT RowBinary"
    status, _, text = host.ask(rows, query=query, decompress="1")
    assert status in (400, 500) and text.startswith(b"Code: "), text
    assert host.ok("SELECT count() FROM t") == b"0\n"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd"])
def test_http_compression_both_ways(host, encoding):
    rows = b"".join(b"%d,text\n" % i for i in range(50_000))
    half = len(rows) // 2
    # Frames may follow one another.
    body = compression.encode(rows[:half], encoding) + compression.encode(rows[half:], encoding)
    host_answer = host.ask(
        body, {"Content-Encoding": encoding}, query="INSERT INTO t (a, b) FORMAT CSV"
    )
    assert host_answer[0] == 200, host_answer[2]
    status, headers, packed = host.ask(
        "SELECT a, b FROM t ORDER BY a FORMAT CSV", {"Accept-Encoding": f"br, {encoding}"}
    )
    assert (status, headers["Content-Encoding"]) == (200, encoding)
    plain = b"".join(compression.decode([packed], encoding))
    assert plain == rows.replace(b"text", b'"text"')


def test_truncated_and_unknown_encodings_are_refused(host):
    query = "INSERT INTO t (a, b) FORMAT CSV"
    status, _, text = host.ask(
        gzip.compress(b"1,x\n")[:-3], {"Content-Encoding": "gzip"}, query=query
    )
    assert status == 400 and b"ends inside a gzip frame" in text
    status, _, text = host.ask(b"x", {"Content-Encoding": "br"}, query=query)
    assert status == 400 and b"use one of gzip" in text


def test_bodies_beyond_the_limit(host):
    query = "INSERT INTO t (a, b) FORMAT RowBinary"
    status, _, text = host.ask(row_binary(800_000), query=query)
    assert status == 413 and b"send smaller batches" in text
    assert host.ok("SELECT 1") == b"1\n"


def test_chunked_bodies_and_kept_connections(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    target = "/?query=INSERT+INTO+t+(a,b)+FORMAT+RowBinary"
    for _ in range(3):
        rows = row_binary(5000)
        pieces = (rows[i : i + 7001] for i in range(0, len(rows), 7001))
        headers = {"X-ClickHouse-Key": host.token}
        connection.request("POST", target, pieces, headers, encode_chunked=True)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        first = connection.sock
    assert connection.sock is first, "one connection served all"
    connection.close()
    assert host.ok("SELECT count() FROM t") == b"15000\n"


def test_a_chunked_body_that_breaks_off_stores_nothing(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    connection.putrequest("POST", "/?query=INSERT+INTO+t+(a,b)+FORMAT+RowBinary")
    connection.putheader("X-ClickHouse-Key", host.token)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    rows = row_binary(100)
    connection.send(b"%x\r\n%s\r\n" % (len(rows), rows))
    connection.sock.shutdown(1)
    response = connection.getresponse()
    assert response.status == 400 and b"before its last chunk" in response.read()
    assert host.ok("SELECT count() FROM t") == b"0\n"


def test_ways_to_say_the_token(host):
    import base64

    basic = base64.b64encode(f"anyone:{host.token}".encode()).decode()
    for headers, query in [
        ({"X-ClickHouse-User": "default", "X-ClickHouse-Key": host.token}, ""),
        ({"Authorization": f"Basic {basic}"}, ""),
        ({"Authorization": f"Bearer {host.token}"}, ""),
        ({}, f"&user=default&password={host.token}"),
    ]:
        connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
        connection.request("GET", f"/?query=SELECT+1{query}", headers=headers)
        assert connection.getresponse().status == 200, (headers, query)
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"X-ClickHouse-Key": "no"}, 403), ({"Authorization": "Basic %%"}, 403)],
)
def test_without_the_token_nothing_is_told(host, headers, status):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    connection.request("POST", "/", b"SELECT 1", headers)
    response = connection.getresponse()
    assert response.status == status
    assert response.headers["X-ClickHouse-Exception-Code"] == "516"
    assert b"token" in response.read()
    connection.close()


def test_ping_needs_no_token(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    for method in ("GET", "HEAD"):
        connection.request(method, "/ping")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"Ok.\n" if method == "GET" else b"")
    connection.close()


def test_get_cannot_write(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    connection.request("GET", "/?query=DROP+TABLE+t", headers={"X-ClickHouse-Key": host.token})
    response = connection.getresponse()
    assert b"READONLY" in response.read()
    connection.close()


def test_formats_database_and_parameters(host):
    assert host.ok("SELECT 1 AS x", default_format="JSONEachRow") == b'{"x":1}\n'
    status, headers, _ = host.ask("SELECT 1 FORMAT CSV", default_format="JSON")
    assert headers["X-ClickHouse-Format"] == "CSV"
    assert host.ok("SELECT currentDatabase()", database="system") == b"system\n"
    assert host.ok("SELECT {x:String}", param_x="a\\tb") == b"a\\tb\n"


@pytest.mark.parametrize(
    ("statement", "parameters", "status", "code"),
    [
        ("SELECT * FROM nowhere", {}, 404, "60"),
        ("SELECT (", {}, 400, "62"),
        ("", {}, 400, "62"),
        ("SELECT 1; SELECT 2", {}, 400, "62"),
        (b"SELECT '\xff'", {}, 400, "62"),
        (b"INSERT INTO t\xff VALUES (1)", {}, 400, "62"),
        ("SELECT 1", {"database": "nowhere"}, 404, "81"),
        ("SELECT 1", {"no_such_setting": "1"}, 404, "115"),
        ("SELECT 1", {"a b": "1"}, 400, "36"),
        ("SELECT {x:UInt8}", {"param_x": "abc"}, 400, "457"),
    ],
)
def test_errors_have_clickhouses_codes(host, statement, parameters, status, code):
    answered, headers, text = host.ask(statement, **parameters)
    assert (answered, headers["X-ClickHouse-Exception-Code"]) == (status, code), text
    assert text.startswith(f"Code: {code}. DB::Exception: ".encode())


def test_slow_queries_do_not_hold_up_others(host):
    slow = threading.Thread(target=host.ok, args=("SELECT sleep(2)",))
    slow.start()
    time.sleep(0.2)
    start = time.monotonic()
    assert host.ok("SELECT 1") == b"1\n"
    assert time.monotonic() - start < 1
    slow.join()


def test_a_stopping_store_answers_what_it_accepted(tmp_path):
    host = Host(tmp_path)
    answers = []
    slow = threading.Thread(target=lambda: answers.append(host.ok("SELECT sleep(2)")))
    slow.start()
    time.sleep(0.5)
    host.process.send_signal(signal.SIGTERM)
    slow.join()
    assert answers == [b"0\n"]
    assert host.stop() == 0
