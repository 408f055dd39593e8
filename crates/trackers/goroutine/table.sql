-- migration 1: one row per stretch of time in which a goroutine was seen to do the same
CREATE TABLE IF NOT EXISTS goroutine{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    goid UInt64 CODEC(T64, ZSTD(1)),
    status LowCardinality(String),
    wait_reason LowCardinality(String),
    wait_ns UInt64 CODEC(T64, ZSTD(1)),
    stack_id UInt64
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
