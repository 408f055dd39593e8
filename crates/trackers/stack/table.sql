-- migration 1: stacks with names; rows of other tables refer to them by stack_id
CREATE TABLE IF NOT EXISTS stacks{on_cluster}
(
    host LowCardinality(String),
    stack_id UInt64,
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    kinds Array(LowCardinality(String)),
    functions Array(LowCardinality(String)),
    files Array(LowCardinality(String)),
    lines Array(UInt32),
    modules Array(LowCardinality(String)),
    truncated LowCardinality(String)
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, stack_id)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;

-- migration 2: how many walks of kernel, native and Python frames ended how
CREATE TABLE IF NOT EXISTS stack_ends{on_cluster}
(
    host LowCardinality(String),
    start_time DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    duration_ns UInt64 CODEC(T64, ZSTD(1)),
    part LowCardinality(String),
    end LowCardinality(String),
    count UInt64
) ENGINE = {engine}
PARTITION BY toDate(start_time)
ORDER BY (host, part, end, start_time)
TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY
SETTINGS ttl_only_drop_parts = 1;
