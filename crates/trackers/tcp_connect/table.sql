-- migration 1: one row per attempt to connect
CREATE TABLE IF NOT EXISTS tcp_connect{on_cluster}
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
    local String CODEC(ZSTD(1)),
    peer LowCardinality(String),
    outcome LowCardinality(String),
    reconnect_ns UInt64 CODEC(T64, ZSTD(1)),
    syn_retransmits UInt32,
    INDEX by_local local TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
