-- migration 1: what belongs to no tracker: losses, the agent's own cost, watched processes
CREATE TABLE IF NOT EXISTS lost_events{on_cluster}
(
    host LowCardinality(String),
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    tracker LowCardinality(String),
    reason LowCardinality(String),
    count UInt64
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, tracker, reason, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS agent_stats{on_cluster}
(
    host LowCardinality(String),
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    cpu_ns UInt64,
    rss_bytes UInt64,
    bpf_ns UInt64,
    bpf_runs UInt64,
    events UInt64,
    rows UInt64,
    spool_bytes UInt64,
    watched_processes UInt32,
    watched_threads UInt32
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS processes{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    start_time DateTime64(9, 'UTC'),
    seen DateTime64(9, 'UTC'),
    ns_pid UInt32,
    ppid UInt32,
    process LowCardinality(String),
    exe String,
    cmdline String,
    cgroup String,
    python LowCardinality(String),
    gil String,
    gc_rung LowCardinality(String),
    why LowCardinality(String)
) ENGINE = {engine}
PARTITION BY toDate(seen)
ORDER BY (host, pid, start_time, seen)
TTL toDateTime(seen) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

-- migration 2: spans, column for column what the OpenTelemetry Collector's ClickHouse exporter writes
CREATE TABLE IF NOT EXISTS otel_traces{on_cluster}
(
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested
    (
        Timestamp DateTime64(9),
        Name LowCardinality(String),
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    Links Nested
    (
        TraceId String,
        SpanId String,
        TraceState String,
        Attributes Map(LowCardinality(String), String)
    ) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
TTL toDate(Timestamp) + INTERVAL {ttl_days} DAY
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS otel_traces_trace_id_ts{on_cluster}
(
    TraceId String CODEC(ZSTD(1)),
    Start DateTime CODEC(Delta, ZSTD(1)),
    End DateTime CODEC(Delta, ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(Start)
ORDER BY (TraceId, Start)
TTL toDate(Start) + INTERVAL {ttl_days} DAY
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS otel_traces_trace_id_ts_mv{on_cluster}
TO otel_traces_trace_id_ts{local}
AS SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End
FROM otel_traces{local}
WHERE TraceId != ''
GROUP BY TraceId;

-- migration 3: spans by the thread that ran them, to join them with what the kernel saw
-- The ids are the process's own: what a container sees, not the host.
CREATE TABLE IF NOT EXISTS spans_by_thread{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1))
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS spans_by_thread_mv{on_cluster}
TO spans_by_thread{local}
AS SELECT
    ResourceAttributes['host.name'] AS host,
    toUInt32OrZero(SpanAttributes['underspan.pid']) AS pid,
    toUInt32OrZero(SpanAttributes['underspan.tid']) AS tid,
    Timestamp AS start_time,
    Duration AS duration_ns,
    TraceId AS trace_id,
    SpanId AS span_id
FROM otel_traces{local}
WHERE mapContains(SpanAttributes, 'underspan.pid') AND mapContains(SpanAttributes, 'underspan.tid');
