"""clickhouse-connect, unchanged, against the embedded store."""

from __future__ import annotations

from datetime import datetime, timezone

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from store_host import Host


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("store"))
    yield host
    assert host.stop() == 0


@pytest.fixture(params=["lz4", "zstd", "gzip", False])
def client(host, request):
    client = clickhouse_connect.get_client(
        host="127.0.0.1",
        port=host.port,
        username="default",
        password=host.token,
        compress=request.param,
    )
    yield client
    client.command("DROP TABLE IF EXISTS t")
    client.close()


def test_command_insert_and_query(client):
    client.command(
        "CREATE TABLE t (a UInt64, at DateTime64(9, 'UTC'), name LowCardinality(String),"
        " m Map(String, String), d UInt8 DEFAULT 7) ENGINE = MergeTree ORDER BY a"
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    rows = [[i, at, f"it's; {i % 3}\n", {"k": "v;"}] for i in range(100_000)]
    summary = client.insert("t", rows, column_names=["a", "at", "name", "m"])
    assert summary.written_rows == 100_000
    assert client.command("SELECT count() FROM t") == 100_000
    result = client.query("SELECT * FROM t ORDER BY a")
    assert result.column_names == ("a", "at", "name", "m", "d")
    assert result.row_count == 100_000
    # The client gives UTC times without a zone.
    at = at.replace(tzinfo=None)
    assert result.result_rows[99_999] == (99_999, at, "it's; 0\n", {"k": "v;"}, 7)


def test_server_side_parameters(client):
    text = 'it\'s\ta \\ "quoted"\nline'
    result = client.query(
        "SELECT {text:String}, {list:Array(UInt8)}", parameters={"text": text, "list": [1, 2]}
    )
    assert result.result_rows == [(text, [1, 2])]


def test_parameters_travel_as_a_form(host):
    client = clickhouse_connect.get_client(
        host="127.0.0.1", port=host.port, password=host.token, form_encode_query_params=True
    )
    text = "é;" * 50_000
    assert client.query("SELECT {t:String}", parameters={"t": text}).result_rows == [(text,)]
    client.close()


def test_settings(client):
    result = client.query("SELECT getSetting('max_block_size')", settings={"max_block_size": 1234})
    assert result.result_rows == [(1234,)]
    result = client.query("SELECT getSetting('max_block_size')")
    assert result.result_rows != [(1234,)], "a setting ends with its request"


def test_raw_insert_and_raw_query(client):
    client.command("CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a")
    client.raw_insert("t", ["a", "b"], b"1,x\n2,y\n", fmt="CSV")
    assert client.raw_query("SELECT * FROM t ORDER BY a", fmt="CSV") == b'1,"x"\n2,"y"\n'


def test_errors_keep_their_code(client):
    with pytest.raises(DatabaseError, match="Code: 60.*UNKNOWN_TABLE"):
        client.query("SELECT * FROM nowhere")


def test_wrong_token(host):
    with pytest.raises(DatabaseError, match="wrong token"):
        clickhouse_connect.get_client(host="127.0.0.1", port=host.port, password="no")
