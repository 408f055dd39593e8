-- migration 1: one row per iteration of an event loop that took too long
CREATE TABLE IF NOT EXISTS loop_stall{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    kind LowCardinality(String),
    culprit_tid UInt32,
    culprit_thread LowCardinality(String),
    culprit LowCardinality(String),
    stack_id UInt64,
    running_ns UInt64 CODEC(T64, ZSTD(1)),
    gc_run_ns UInt64 CODEC(T64, ZSTD(1)),
    runnable_ns UInt64 CODEC(T64, ZSTD(1)),
    throttled_ns UInt64 CODEC(T64, ZSTD(1)),
    gil_wait_ns UInt64 CODEC(T64, ZSTD(1)),
    gc_wait_ns UInt64 CODEC(T64, ZSTD(1)),
    lock_wait_ns UInt64 CODEC(T64, ZSTD(1)),
    net_read_ns UInt64 CODEC(T64, ZSTD(1)),
    net_write_ns UInt64 CODEC(T64, ZSTD(1)),
    net_connect_ns UInt64 CODEC(T64, ZSTD(1)),
    poll_wait_ns UInt64 CODEC(T64, ZSTD(1)),
    disk_io_ns UInt64 CODEC(T64, ZSTD(1)),
    page_fault_ns UInt64 CODEC(T64, ZSTD(1)),
    sleep_ns UInt64 CODEC(T64, ZSTD(1)),
    pipe_ipc_ns UInt64 CODEC(T64, ZSTD(1)),
    child_wait_ns UInt64 CODEC(T64, ZSTD(1)),
    other_ns UInt64 CODEC(T64, ZSTD(1))
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
