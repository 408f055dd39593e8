-- migration 1: what belongs to no tracker: losses, the agent's own cost, watched processes, spans
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
