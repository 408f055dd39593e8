"""From a request's body and parameters to an answer of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from .body import Body, form_fields
from .engine import Answer, Engine, Query
from .errors import Code, StoreError
from .request import Parameters
from .statement import Insert, parse_insert, reads_tables, refuse_several, result_format, utf8
from .writers import Writers

_DEFAULT_FORMAT = "TabSeparated"


class Store(Protocol):
    """What requests are answered from."""

    engine: Engine
    writers: Writers


def execute(
    store: Store,
    body: Body,
    headers: Mapping[str, str],
    parameters: Parameters,
    readonly: bool,
) -> tuple[Answer, str]:
    """Runs what a request asks for. Returns the answer and the format it is in."""
    blocks = parameters.flag("decompress")
    content_type = headers.get("Content-Type", "")
    if content_type.lower().startswith("multipart/form-data"):
        parameters.add(form_fields(content_type, b"".join(body.read(blocks))))
    text = parameters.get("query").encode("utf-8", "surrogateescape")
    rest: Iterable[bytes] = () if body.finished else body.read(blocks)
    # Only the rows of an INSERT may be large: they go to a file, never into the statement.
    insert = parse_insert(text)
    if insert is None:
        text = b"\n".join(part for part in (text, b"".join(rest)) if part.strip())
        rest = ()
        insert = parse_insert(text)
    query = Query(
        text="",
        format=parameters.get("default_format")
        or headers.get("X-ClickHouse-Format")
        or _DEFAULT_FORMAT,
        database=parameters.get("database") or headers.get("X-ClickHouse-Database", ""),
        settings=parameters.settings,
        params=parameters.params,
        readonly=readonly,
    )
    if insert:
        expected = headers.get("X-Underspan-Rows")
        return _insert(store.engine, query, insert, text, rest, expected), query.format
    if not text.strip():
        raise StoreError.own(
            Code.SYNTAX_ERROR, "Syntax error: Empty query: send it as the body or as ?query="
        )
    refuse_several(text)
    query.text = utf8(text)
    if reads_tables(text):
        store.writers.ask()
    return store.engine.run(query), result_format(text, query.format)


def _insert(
    engine: Engine,
    query: Query,
    insert: Insert,
    text: bytes,
    rest: Iterable[bytes],
    expected: str | None,
) -> Answer:
    """Inserts the rows behind the statement and then those of the body."""
    rows = os.memfd_create("underspan-insert", os.MFD_CLOEXEC)
    try:
        with open(rows, "wb", closefd=False) as file:
            file.write(text[insert.data_start :])
            for piece in rest:
                file.write(piece)
        query.text = insert.reading(f"/proc/self/fd/{rows}")
        answer = engine.insert(query)
    finally:
        os.close(rows)
    if expected is not None and expected != str(answer.written_rows):
        raise StoreError.own(
            Code.INCORRECT_DATA,
            f"{expected} rows were sent and {answer.written_rows} written: the sender's count"
            " or its rows are wrong; do not send them again",
        )
    return answer
