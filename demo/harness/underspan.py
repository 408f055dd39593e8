"""Underspan as its user meets it: `underspan up`, then questions on the command line."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.processes import DemoError, Processes
from harness.stack import BIN, free_port


@dataclass(frozen=True)
class Span:
    """One row of otel_traces."""

    name: str
    span_id: str
    parent_id: str
    duration_ns: int


class Underspan:
    """One `underspan up`, with ports and a data folder of its own, watching by its default rules."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self._processes = processes
        self._data = folder / "underspan"
        self._program = Path(os.environ.get("UNDERSPAN", BIN / "underspan"))
        self.port = free_port()
        self.otlp_port = free_port()

    def start(self, *options: str) -> None:
        """Start it and wait until it takes spans and watches."""
        if not self._program.exists():
            raise DemoError(f"{self._program} is not there: run `make setup`")
        up = self._processes.start(
            "underspan",
            [self._program, "up", "--data", self._data, "--api", f"127.0.0.1:{self.port}"]
            + ["--otlp-http", f"127.0.0.1:{self.otlp_port}", "--otlp-grpc", f"127.0.0.1:{free_port()}"]
            + ["--store-port", str(free_port()), *options],
        )
        # It has its ports from the start, but answers only once its tables are there.
        up.wait_until(self._answers, 60)

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).status == 200
        except OSError:
            return False

    def command(self, *words: str) -> list[str]:
        """What to type to ask this instance."""
        return [str(self._program), *words, "--data", str(self._data)]

    def ask(self, *words: str) -> str:
        """What a subcommand prints."""
        return self._processes.run(self.command(*words))

    def rows(self, query: str) -> list[dict]:
        """The rows of a query."""
        return [json.loads(line) for line in self.ask("sql", "--json", query).splitlines()]

    def explain(self, request_id: str) -> dict:
        """The explanation, as data."""
        return json.loads(self.ask("explain", request_id, "--json"))

    def await_watched(self, pid: int, seconds: float = 20) -> None:
        """Wait until the agent watches a process."""
        query = f"SELECT count() AS n FROM processes WHERE ns_pid = {pid}"
        self._await(query, 1, seconds, f"process {pid} is not watched")

    def await_requests(self, trace_ids: list[str], pid: int, seconds: float = 30) -> None:
        """Wait until a process's requests of these traces, and their spans, are in the store."""
        known = f"IN ({', '.join(map(repr, trace_ids))})"
        requests = f"SELECT uniqExact(trace_id) AS n FROM requests WHERE ns_pid = {pid} AND trace_id {known}"
        self._await(requests, len(trace_ids), seconds, "requests are missing from the store")
        spans = f"SELECT uniqExact(TraceId) AS n FROM otel_traces WHERE SpanKind ILIKE '%server' AND TraceId {known}"
        self._await(spans, len(trace_ids), seconds, "spans are missing from the store")

    def request_id(self, trace_id: str, pid: int) -> str:
        """A process's request of a trace. (nginx has one of the same trace: it passes the header on.)"""
        rows = self.rows(f"SELECT request_id FROM requests WHERE trace_id = '{trace_id}' AND ns_pid = {pid}")
        return rows[0]["request_id"]

    def spans(self, trace_id: str) -> list[Span]:
        """The spans of a trace, in order of time."""
        rows = self.rows(
            "SELECT SpanName, SpanId, ParentSpanId, Duration FROM otel_traces "
            f"WHERE TraceId = '{trace_id}' ORDER BY Timestamp"
        )
        return [Span(row["SpanName"], row["SpanId"], row["ParentSpanId"], int(row["Duration"])) for row in rows]

    def span_durations(self, trace_ids: list[str]) -> list[int]:
        """How long the shop's server spans of these traces lasted, in nanoseconds."""
        rows = self.rows(
            "SELECT Duration FROM otel_traces "
            f"WHERE SpanKind ILIKE '%server' AND TraceId IN ({', '.join(map(repr, trace_ids))})"
        )
        return [int(row["Duration"]) for row in rows]

    def maximum(self, column: str, table: str, pid: int) -> int:
        """The largest value of a column in a process's rows; 0 if there are none."""
        return int(self.rows(f"SELECT max({column}) AS most FROM {table} WHERE ns_pid = {pid}")[0]["most"])

    def _await(self, query: str, wanted: int, seconds: float, complaint: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            there = int(self.rows(query)[0]["n"])
            if there >= wanted:
                return
            if time.monotonic() > deadline:
                raise DemoError(f"{complaint}: {there} of {wanted} after {seconds:.0f} s")
            time.sleep(0.5)
