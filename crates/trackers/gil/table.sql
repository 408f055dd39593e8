-- migration 1: one row per wait for the GIL
CREATE TABLE IF NOT EXISTS gil_wait{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    holder_tid UInt32,
    holder_thread LowCardinality(String),
    holder_ns UInt64 CODEC(T64, ZSTD(1)),
    gc_ns UInt64 CODEC(T64, ZSTD(1)),
    slices UInt32
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
