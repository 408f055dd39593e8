"""Where an INSERT's text ends and its rows begin."""

from __future__ import annotations

import pytest

from underspan.store.errors import StoreError
from underspan.store.statement import parse_insert, refuse_several, result_format


@pytest.mark.parametrize(
    ("text", "target", "format", "data"),
    [
        (b"INSERT INTO t FORMAT RowBinary\n\0;", "INSERT INTO t", "RowBinary", b"\0;"),
        (b"insert into table db.t (a, `b.c`) format Native", "(a, `b.c`)", "Native", b""),
        (b"INSERT INTO t VALUES (1, 'FORMAT')", "INSERT INTO t", "Values", b" (1, 'FORMAT')"),
        (b"INSERT INTO format FORMAT CSV\r\n1", "INSERT INTO format", "CSV", b"1"),
        (b"INSERT INTO db.values (values) VALUES(1)", "(values)", "Values", b"(1)"),
        (b"/* FORMAT X */ INSERT INTO t -- FORMAT Y\n FORMAT TSV\n1\n", "Y", "TSV", b"1\n"),
        (b"INSERT INTO FUNCTION f('x', 'FORMAT') FORMAT CSV 1", "'FORMAT')", "CSV", b"1"),
        (b"INSERT INTO {t:Identifier} (a) FORMAT CSV", "{t:Identifier} (a)", "CSV", b""),
        (b"INSERT INTO `a``b` FORMAT CSV\n\n", "`a``b`", "CSV", b"\n"),
    ],
)
def test_rows_behind_an_insert(text, target, format, data):
    insert = parse_insert(text)
    assert insert is not None
    assert insert.target.endswith(target) and insert.format == format
    assert text[insert.data_start :] == data


def test_settings_stay_behind_the_file():
    insert = parse_insert(b"INSERT INTO t (a) SETTINGS x = 1, y = 'FORMAT' FORMAT CSV\n1")
    assert insert.reading("/f") == (
        "INSERT INTO t (a)\nFROM INFILE '/f' SETTINGS x = 1, y = 'FORMAT'\nFORMAT CSV"
    )


@pytest.mark.parametrize(
    "text",
    [
        b"SELECT 1 FORMAT CSV",
        b"INSERT INTO t SELECT 1 FORMAT CSV",
        b"INSERT INTO t (a) WITH x AS (SELECT 1) SELECT * FROM x",
        b"INSERT INTO t (SELECT 1)",
        b"INSERT INTO t FROM INFILE 'x' FORMAT CSV",
        b"",
        b"-- INSERT INTO t FORMAT CSV",
    ],
)
def test_statements_without_rows(text):
    assert parse_insert(text) is None


def test_a_format_without_a_name():
    with pytest.raises(StoreError, match="expected a format"):
        parse_insert(b"INSERT INTO t FORMAT")


def test_several_statements():
    refuse_several(b"SELECT ';' /* ; */ FROM t -- ;\n ; ;\n")
    with pytest.raises(StoreError, match="Multi-statements"):
        refuse_several(b"SELECT 1; DROP TABLE t")


def test_the_results_format():
    assert result_format(b"SELECT 1", "TSV") == "TSV"
    assert result_format(b"SELECT 1 format JSON SETTINGS a = 1;\n", "TSV") == "JSON"
    assert result_format(b"SELECT formatDateTime(now())", "TSV") == "TSV"
