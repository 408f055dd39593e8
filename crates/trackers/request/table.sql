-- migration 1: one row per request, with its thread's ledger
CREATE TABLE IF NOT EXISTS requests{on_cluster}
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
    request_id String,
    trace_id String,
    parent_span_id String,
    accept_queue_ns UInt64 CODEC(T64, ZSTD(1)),
    handoff_ns UInt64 CODEC(T64, ZSTD(1)),
    handler_ns UInt64 CODEC(T64, ZSTD(1)),
    accept_to_read_ns UInt64 CODEC(T64, ZSTD(1)),
    conn_request UInt32,
    method LowCardinality(String),
    path String CODEC(ZSTD(1)),
    status UInt16,
    peer String CODEC(ZSTD(1)),
    local LowCardinality(String),
    bytes_in UInt64,
    bytes_out UInt64,
    accept_tid UInt32,
    sent_tid UInt32,
    sent_thread LowCardinality(String),
    shared_thread UInt8,
    end LowCardinality(String),
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
    other_ns UInt64 CODEC(T64, ZSTD(1)),
    INDEX by_request_id request_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_trace_id trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_duration duration_ns TYPE minmax GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

-- migration 2: what a slow request's time consisted of, also while its thread waited for others
CREATE TABLE IF NOT EXISTS critical_path{on_cluster}
(
    host LowCardinality(String),
    pid UInt32,
    tid UInt32,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    ns_pid UInt32,
    ns_tid UInt32,
    thread LowCardinality(String),
    request_id String,
    step UInt16,
    depth UInt16,
    kind LowCardinality(String),
    state LowCardinality(String),
    INDEX by_request_id request_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

-- migration 3: what the other end of a connection served is looked for by that connection
ALTER TABLE requests{on_cluster} ADD INDEX IF NOT EXISTS by_peer peer TYPE bloom_filter(0.001) GRANULARITY 1;

-- migration 4: requests that have no answer yet, as far as they have come
CREATE TABLE IF NOT EXISTS requests_open{on_cluster}
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
    request_id String,
    trace_id String,
    parent_span_id String,
    accept_queue_ns UInt64 CODEC(T64, ZSTD(1)),
    handoff_ns UInt64 CODEC(T64, ZSTD(1)),
    handler_ns UInt64 CODEC(T64, ZSTD(1)),
    accept_to_read_ns UInt64 CODEC(T64, ZSTD(1)),
    conn_request UInt32,
    method LowCardinality(String),
    path String CODEC(ZSTD(1)),
    status UInt16,
    peer String CODEC(ZSTD(1)),
    local LowCardinality(String),
    bytes_in UInt64,
    bytes_out UInt64,
    accept_tid UInt32,
    sent_tid UInt32,
    sent_thread LowCardinality(String),
    shared_thread UInt8,
    end LowCardinality(String),
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
    other_ns UInt64 CODEC(T64, ZSTD(1)),
    INDEX by_request_id request_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_trace_id trace_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
