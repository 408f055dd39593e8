"""chDB: ClickHouse's engine inside this process.

Every request gets a connection of its own. It costs under a millisecond, and settings, the current
database and read-only mode then end with the request.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from urllib.parse import urlencode

from .errors import StoreError

# Statements that run at once; further ones wait their turn.
CONCURRENT = 8


class EngineMissing(Exception):
    """chDB cannot be loaded."""


@dataclass
class Answer:
    """The result of a statement."""

    data: bytes = b""
    read_rows: int = 0
    read_bytes: int = 0
    result_rows: int = 0
    written_rows: int = 0
    elapsed_ns: int = 0


@dataclass
class Query:
    """A statement with all that a request may say about it."""

    text: str
    format: str = "TabSeparated"
    database: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    readonly: bool = False


def load_chdb() -> ModuleType:
    """Loads chDB's extension module without the package around it.

    The package's `__init__` imports pyarrow and numpy for its data frames. This host needs
    neither, and is 50 MB smaller without.
    """
    try:
        package = importlib.util.find_spec("chdb")
    except ImportError as error:
        raise EngineMissing(str(error)) from error
    if package is None or not package.submodule_search_locations:
        raise EngineMissing("the package chdb is not installed")
    folder = package.submodule_search_locations[0]
    library = os.path.join(folder, "_chdb.abi3.so")
    if not os.path.exists(library):
        raise EngineMissing(f"{folder} has no _chdb.abi3.so: a release of chdb not known here")
    try:
        # Deep binding keeps the engine's allocator to itself, as chdb's own __init__ does.
        ctypes.CDLL(library, mode=sys.getdlopenflags() | os.RTLD_DEEPBIND)
        spec = importlib.util.spec_from_file_location("_chdb", library)
        module = importlib.util.module_from_spec(spec)
        here = os.getcwd()
        os.chdir(folder)  # it loads its helper libraries from the current folder
        try:
            spec.loader.exec_module(module)
        finally:
            os.chdir(here)
    except (OSError, ImportError) as error:
        raise EngineMissing(f"{library} cannot be loaded: {error}") from error
    return module


class Engine:
    """The engine on one data folder."""

    def __init__(self, data: Path, memory_limit: int, threads: int) -> None:
        options = {
            "max_server_memory_usage": memory_limit,
            "max_threads": threads,
            "mark_cache_size": 32 << 20,
            "index_mark_cache_size": 8 << 20,
            "primary_index_cache_size": 16 << 20,
            "query_condition_cache_size": 4 << 20,
            "compiled_expression_cache_size": 8 << 20,
            "mmap_cache_size": 16,
            # How often it compares what it has counted with what the kernel says: by itself twenty
            # times a second, which is a quarter of what an idle store uses.
            "memory_worker_period_ms": 500,
        }
        self._chdb = load_chdb()
        self._connection_string = f"{data}?{urlencode(options)}"
        self._turn = threading.BoundedSemaphore(CONCURRENT)
        # The engine shuts down with its last connection, so one stays open.
        self._keeper = self._connect()
        row = self.run(Query("SELECT version(), timezone()")).data.decode().strip()
        self.version, self.timezone = row.split("\t")

    def _connect(self):
        try:
            return self._chdb.connect(self._connection_string)
        except RuntimeError as error:
            raise StoreError.of_engine(error) from error

    def run(self, query: Query) -> Answer:
        """Runs a statement and returns its whole result."""
        start = time.perf_counter_ns()
        with self._turn:
            connection = self._connect()
            try:
                for statement in _preparation(query):
                    connection.query(statement, "Null")
                result = connection.query(query.text, query.format, params=dict(query.params))
                return Answer(
                    data=result.bytes(),
                    read_rows=result.storage_rows_read(),
                    read_bytes=result.storage_bytes_read(),
                    result_rows=result.rows_read(),
                    elapsed_ns=time.perf_counter_ns() - start,
                )
            except RuntimeError as error:
                raise StoreError.of_engine(error) from error
            finally:
                connection.close()

    def insert(self, query: Query) -> Answer:
        """Runs an INSERT that reads its rows from a file, and counts what it wrote."""
        # One thread: it takes a little less CPU, and never two CPUs from what is watched.
        answer = self.run(replace(query, settings={"max_threads": "1", **query.settings}))
        # For such an INSERT the engine's "result" is what went into the table.
        answer.written_rows, answer.result_rows, answer.data = answer.result_rows, 0, b""
        return answer

    def close(self) -> None:
        """Writes out what is pending and closes the data folder."""
        self._keeper.close()


def _preparation(query: Query) -> list[str]:
    statements = [f"USE {_identifier(query.database)}"] if query.database else []
    if query.settings:
        pairs = (f"{name} = {_literal(value)}" for name, value in query.settings.items())
        statements.append("SET " + ", ".join(pairs))
    if query.readonly:
        statements.append("SET readonly = 2")
    return statements


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
