-- migration 1: one row per sample of a running thread
CREATE TABLE IF NOT EXISTS on_cpu{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    state LowCardinality(String),
    stack_id UInt64,
    cycles Nullable(UInt64),
    instructions Nullable(UInt64),
    cache_misses Nullable(UInt64),
    branch_misses Nullable(UInt64)
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
