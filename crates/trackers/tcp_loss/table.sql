-- migration 1: one row per stall, reset and burst of drops
CREATE TABLE IF NOT EXISTS tcp_loss{on_cluster}
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
    peer String CODEC(ZSTD(1)),
    kind LowCardinality(String),
    reason LowCardinality(String),
    retransmits UInt32,
    backoff UInt8,
    bytes UInt64,
    INDEX by_local local TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_peer peer TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, pid, tid, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
