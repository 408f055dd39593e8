"""How long `underspan explain` takes over ten million rows."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

from bench.figures import Row, median, percentile
from bench.observers import Agent, BenchError, Store
from bench.settings import Settings

TITLE = "explain over ten million rows"
NOTES = [
    "Half an hour of eight workers of sixteen threads each, 800 requests a second together: waits, seconds of threads, "
    "requests, GIL waits, collections and spans, durations log-normal. Ids are drawn at random. Warm: the store is up, "
    "and has answered before. Cold: the command starts the embedded store itself, after the page cache was emptied.",
]
MINUTES = 30
PIDS, THREADS = 8, 16
SEED = 7

# Whole seconds of Unix time go in for @begin@; `n` counts rows, @rows@ are made.
START = f"fromUnixTimestamp64Nano(toInt64(@begin@ * 1000000000 + n * intDiv({MINUTES} * 60000000000, @rows@)))"
THREAD = (
    f"'bench' AS host, toUInt32(1000 + h % {PIDS}) AS pid, toUInt32(pid * 100 + intDiv(h, 64) % {THREADS}) AS tid, "
    f"{START} AS start_time"
)
NAMES = "pid AS ns_pid, tid AS ns_tid, concat('worker_', toString(tid % 100)) AS thread"


def milliseconds(middle: float, sigma: float) -> str:
    """A log-normal duration with this median, in nanoseconds."""
    return f"toUInt64({middle} * 1000000 * exp(randNormal(0, {sigma})))"


# table → share of the rows, and their columns
TABLES = {
    "waits": (
        0.60,
        f"{THREAD}, 1000000 + {milliseconds(3, 1.3)} AS duration_ns, {NAMES}, "
        "['net_read', 'lock_wait', 'poll_wait', 'gil_wait', 'disk_io'][1 + intDiv(h, 1024) % 5] AS state, "
        "intDiv(duration_ns, 50) AS runnable_ns, pid AS waker_pid, "
        f"toUInt32(pid * 100 + intDiv(h, 4096) % {THREADS}) AS waker_tid, "
        "concat('worker_', toString(waker_tid % 100)) AS waker_thread, waker_tid AS holder_tid, "
        "waker_thread AS holder_thread, 140000000000000 + 64 * (intDiv(h, 65536) % 50) AS futex_addr, 202 AS syscall, "
        "-1 AS fd, '127.0.0.1:5432' AS peer, 1 AS slices",
    ),
    "thread_states": (
        0.15,
        f"{THREAD}, 1000000000 AS duration_ns, {NAMES}, 'gunicorn' AS process, "
        "100000000 + h % 300000000 AS running_ns, 20000000 AS runnable_ns, 50000000 AS gil_wait_ns, "
        "duration_ns - running_ns - runnable_ns - gil_wait_ns AS poll_wait_ns",
    ),
    "requests": (
        0.15,
        f"{THREAD}, handoff_ns + handler_ns AS duration_ns, {NAMES}, 'gunicorn' AS process, "
        "lower(leftPad(hex(sipHash64(n)), 16, '0')) AS request_id, "
        "if(n % 4 = 0, lower(hex(MD5(toString(n)))), '') AS trace_id, "
        f"{milliseconds(0.2, 1.5)} AS handoff_ns, {milliseconds(40, 1)} AS handler_ns, 1 AS conn_request, "
        "'GET' AS method, concat('/products/', toString(h % 5000), '/') AS path, 200 AS status, "
        "'127.0.0.1:40000' AS peer, '127.0.0.1:8000' AS local, 300 AS bytes_in, 2000 AS bytes_out, tid AS sent_tid, "
        "thread AS sent_thread, 'closed' AS end, intDiv(handler_ns, 3) AS running_ns, "
        "intDiv(handler_ns, 20) AS runnable_ns, intDiv(handler_ns, 10) AS gil_wait_ns, "
        "intDiv(handler_ns, 5) AS lock_wait_ns, "
        "handler_ns - running_ns - runnable_ns - gil_wait_ns - lock_wait_ns AS net_read_ns",
    ),
    "gil_wait": (
        0.05,
        f"{THREAD}, {milliseconds(4, 1)} AS duration_ns, {NAMES}, "
        f"toUInt32(pid * 100 + intDiv(h, 4096) % {THREADS}) AS holder_tid, "
        "concat('worker_', toString(holder_tid % 100)) AS holder_thread, duration_ns AS holder_ns, 2 AS slices",
    ),
    "gc_pause": (
        0.01,
        f"{THREAD}, {milliseconds(2, 1.5)} AS duration_ns, {NAMES}, toInt8(h % 3) AS generation, "
        "toInt64(h % 10000) AS collected, duration_ns AS cpu_ns, 'symbol' AS rung",
    ),
    "otel_traces": (
        0.04,
        f"{START} AS Timestamp, lower(hex(MD5(toString(n * 4)))) AS TraceId, "
        "lower(leftPad(hex(h), 16, '0')) AS SpanId, 'GET /products/' AS SpanName, 'Server' AS SpanKind, "
        f"'shop' AS ServiceName, {milliseconds(40, 1)} AS Duration, 'Ok' AS StatusCode, "
        f"map('underspan.pid', toString(1000 + h % {PIDS}), 'underspan.tid', toString((1000 + h % {PIDS}) * 100 + "
        f"intDiv(h, 64) % {THREADS})) AS SpanAttributes, map('host.name', 'bench') AS ResourceAttributes",
    ),
}


def run(folder: Path, settings: Settings) -> list[Row]:
    start = time.monotonic()
    with Store(folder) as store:
        fill(store, settings.scale_rows)
        filled = time.monotonic() - start
        counted = {table: int(store.rows(f"SELECT count() AS n FROM {table}")[0]["n"]) for table in TABLES}
        size = store.rows(
            "SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = currentDatabase()"
        )
        ids = [row["request_id"] for row in store.rows(sample(settings.explains + settings.cold_explains))]
        random.Random(SEED).shuffle(ids)
        warm_ids, cold_ids = ids[: settings.explains], ids[settings.explains :]
        started = [timed([store.command("sql")[0], "--version"]) for _ in range(10)]
        explain(store, warm_ids[0])
        warm = [explain(store, one) for one in warm_ids]
    cold = [cold_explain(store, one) for one in cold_ids]
    tables = ", ".join(f"{count:,} {table}" for table, count in counted.items())
    return [
        Row("Rows", f"{sum(counted.values()):,} ({tables}); {int(size[0]['n']) / 1e6:,.0f} MB; made in {filled:.0f} s"),
        latency_row("explain ID, warm, end to end", warm),
        Row(
            "… of which queries and reasoning (less the start of the process)",
            f"median {(median(warm) - median(started)) * 1e3:.0f} ms, "
            f"p95 {(percentile(warm, 95) - median(started)) * 1e3:.0f} ms (start {median(started) * 1e3:.0f} ms)",
        ),
        latency_row("explain ID, cold, end to end (starts the store, reads from disk)", cold),
    ]


def fill(store: Store, rows: int) -> None:
    """Make the tables, as the agent does, and put the rows in."""
    with Agent(store, "--pid", str(os.getpid())):
        pass
    begin = int(time.time()) - MINUTES * 60
    for table, (share, columns) in TABLES.items():
        count = max(1, int(rows * share))
        columns = columns.replace("@begin@", str(begin)).replace("@rows@", str(count))
        names = ", ".join(row["name"] for row in store.rows(described(columns)))
        source = f"(SELECT number AS n, sipHash64(number, '{table}') AS h FROM numbers({count}))"
        store.rows(f"INSERT INTO {table} ({names}) SELECT {names} FROM (SELECT {columns} FROM {source})")


def described(columns: str) -> str:
    return f"DESCRIBE (SELECT {columns} FROM (SELECT number AS n, sipHash64(number) AS h FROM numbers(1)))"


def sample(count: int) -> str:
    """Ids of requests of all times; a quarter has a trace."""
    return f"SELECT request_id FROM requests WHERE host = 'bench' ORDER BY sipHash64(request_id, {SEED}) LIMIT {count}"


def timed(argv: list[str]) -> float:
    """Seconds that a command takes."""
    start = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise BenchError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return time.monotonic() - start


def explain(store: Store, request_id: str) -> float:
    return timed(store.command("explain", request_id))


def cold_explain(store: Store, request_id: str) -> float:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return explain(store, request_id)


def latency_row(what: str, seconds: list[float]) -> Row:
    figures = [median(seconds), percentile(seconds, 95), max(seconds)]
    middle, p95, most = (f"{figure * 1e3:,.0f} ms" for figure in figures)
    return Row(f"{what}, {len(seconds)} ids", f"median {middle}, p95 {p95}, longest {most}")
