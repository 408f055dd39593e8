-- migration 1: waits of at least the threshold, and what every thread did second by second
CREATE TABLE IF NOT EXISTS waits{on_cluster}
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
    runnable_ns UInt64 CODEC(T64, ZSTD(1)),
    waker_pid UInt32,
    waker_tid UInt32,
    waker_thread LowCardinality(String),
    holder_tid UInt32,
    holder_thread LowCardinality(String),
    futex_addr UInt64,
    syscall Int32,
    fd Int32,
    peer LowCardinality(String),
    slices UInt32
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS thread_states{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    process LowCardinality(String),
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

-- migration 2: both ends of the socket that was waited for, to tell one connection to a peer from another
ALTER TABLE waits{on_cluster} ADD COLUMN IF NOT EXISTS local String AFTER peer;

-- migration 3: whose thread it was that had the CPU: it may be any process's
ALTER TABLE waits{on_cluster} ADD COLUMN IF NOT EXISTS holder_pid UInt32 AFTER waker_thread;
ALTER TABLE waits{on_cluster} ADD COLUMN IF NOT EXISTS holder_process LowCardinality(String) AFTER holder_thread;
