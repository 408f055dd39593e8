-- migration 1: one row per second and counter that moved
CREATE TABLE IF NOT EXISTS throttle{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    source LowCardinality(String),
    metric LowCardinality(String),
    subject LowCardinality(String),
    netns UInt64 CODEC(T64, ZSTD(1)),
    unit LowCardinality(String),
    status LowCardinality(String),
    delta UInt64 CODEC(T64, ZSTD(1)),
    total UInt64 CODEC(T64, ZSTD(1)),
    note LowCardinality(String)
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
