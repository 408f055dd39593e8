-- migration 1: one row per second and histogram: packets that passed a point of the receive stack
CREATE TABLE IF NOT EXISTS netstack{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    point LowCardinality(String),
    family LowCardinality(String),
    interface LowCardinality(String),
    netns UInt32,
    cgroup LowCardinality(String),
    count UInt64 CODEC(T64, ZSTD(1)),
    sum_ns UInt64 CODEC(T64, ZSTD(1)),
    bounds_ns Array(UInt64),
    counts Array(UInt64)
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
