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
