-- migration 1: one row per accepted connection, and per listening socket and second
CREATE TABLE IF NOT EXISTS tcp_accept{on_cluster}
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
    local LowCardinality(String),
    peer String CODEC(ZSTD(1)),
    handshake_ns UInt64 CODEC(T64, ZSTD(1)),
    queue_ns UInt64 CODEC(T64, ZSTD(1)),
    queue_length UInt32,
    queue_limit UInt32,
    synack_retransmits UInt32,
    INDEX by_peer peer TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS tcp_listener{on_cluster}
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
    local LowCardinality(String),
    queue_length UInt32,
    queue_limit UInt32,
    overflows UInt32,
    drops UInt32,
    syn_cookies UInt32
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
