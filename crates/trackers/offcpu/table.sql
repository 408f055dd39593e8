-- migration 1: one row per stretch of waiting that became a sample
CREATE TABLE IF NOT EXISTS off_cpu{on_cluster}
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
    weight_ns UInt64 CODEC(T64, ZSTD(1)),
    stack_id UInt64,
    waker_pid UInt32,
    waker_tid UInt32,
    waker_thread LowCardinality(String),
    waker_stack_id UInt64,
    lock_addr UInt64,
    lock_kind LowCardinality(String),
    holder_pid UInt32,
    holder_tid UInt32,
    holder_thread LowCardinality(String),
    holder_reason LowCardinality(String),
    in_request UInt8,
    runnable_ns UInt64 CODEC(T64, ZSTD(1)),
    syscall Int32,
    peer LowCardinality(String)
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

-- migration 2: where threads stand whose wait goes on
CREATE TABLE IF NOT EXISTS off_cpu_ongoing{on_cluster}
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
    lock_addr UInt64,
    holder_tid UInt32,
    holder_thread LowCardinality(String),
    in_request UInt8,
    syscall Int32
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
