//! From a statement with placeholders to what a store is sent: one server, or a cluster.
//!
//! Placeholders: `{engine}`, `{on_cluster}` behind the table's name, `{ttl_days}`, and `{local}`
//! behind the name of a table that a materialized view reads or writes.
//!
//! On a cluster, the table `t` of a definition becomes two: `t_local`, replicated, holds a shard's
//! rows; `t`, distributed, is what everyone reads and writes.

const LOCAL: &str = "_local";
const ON_CLUSTER: &str = "{on_cluster}";

/// How tables are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrateOptions {
    /// Rows older than this are dropped.
    pub ttl_days: u32,
    /// The cluster, by its name in the servers' configuration; `None` for a single server.
    pub cluster: Option<String>,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        MigrateOptions { ttl_days: 7, cluster: None }
    }
}

impl MigrateOptions {
    /// ` ON CLUSTER '…'`, or nothing.
    pub(super) fn on_cluster(&self) -> String {
        let cluster = self.cluster.as_deref().map(literal);
        cluster.map(|cluster| format!(" ON CLUSTER {cluster}")).unwrap_or_default()
    }

    /// The statements that one statement of a migration stands for.
    pub(super) fn render(&self, statement: &str) -> Vec<String> {
        let ttl_days = self.ttl_days.to_string();
        let statement = statement.replace("{ttl_days}", &ttl_days);
        let Some(cluster) = &self.cluster else {
            return vec![fill(&statement, "MergeTree", "", "")];
        };
        let on_cluster = self.on_cluster();
        // Path and replica name are the server's defaults, from its macros.
        let local = fill(&local_name(&statement), "ReplicatedMergeTree", &on_cluster, LOCAL);
        match Kind::of(&statement) {
            Kind::CreateTable { table } => {
                let distributed = format!(
                    "CREATE TABLE IF NOT EXISTS {table}{on_cluster} AS {table}{LOCAL} \
                     ENGINE = Distributed({}, currentDatabase(), '{table}{LOCAL}', rand())",
                    literal(cluster)
                );
                vec![local, distributed]
            }
            // Columns are the same in both; codecs, indexes and TTLs are the local table's.
            Kind::AlterColumns => vec![local, fill(&statement, "", &on_cluster, LOCAL)],
            Kind::AlterTable => vec![local],
            Kind::Other => vec![fill(&statement, "ReplicatedMergeTree", &on_cluster, LOCAL)],
        }
    }
}

/// What a statement does, as far as a cluster treats it differently.
enum Kind<'a> {
    CreateTable { table: &'a str },
    AlterColumns,
    AlterTable,
    Other,
}

impl Kind<'_> {
    fn of(statement: &str) -> Kind<'_> {
        let head = statement.to_ascii_uppercase();
        if head.starts_with("CREATE TABLE") {
            return match table(statement) {
                Some(table) => Kind::CreateTable { table },
                None => Kind::Other,
            };
        }
        if !head.starts_with("ALTER TABLE") {
            return Kind::Other;
        }
        let columns = ["ADD COLUMN", "DROP COLUMN", "RENAME COLUMN"];
        if columns.iter().any(|change| head.contains(change)) {
            Kind::AlterColumns
        } else {
            Kind::AlterTable
        }
    }
}

/// The name in front of `{on_cluster}`.
fn table(statement: &str) -> Option<&str> {
    statement.split_once(ON_CLUSTER)?.0.split_whitespace().last()
}

/// The statement about the local table, where it is about a table and not a view.
fn local_name(statement: &str) -> String {
    statement.replace(ON_CLUSTER, &format!("{LOCAL}{ON_CLUSTER}"))
}

fn fill(statement: &str, engine: &str, on_cluster: &str, local: &str) -> String {
    statement.replace("{engine}", engine).replace(ON_CLUSTER, on_cluster).replace("{local}", local)
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "CREATE TABLE IF NOT EXISTS t{on_cluster} (a UInt8) ENGINE = {engine} \
                         TTL toDateTime(a) + INTERVAL {ttl_days} DAY";
    const VIEW: &str = "CREATE MATERIALIZED VIEW IF NOT EXISTS v{on_cluster} TO u{local} \
                        AS SELECT a FROM t{local}";

    fn on(cluster: Option<&str>, statement: &str) -> Vec<String> {
        let cluster = cluster.map(str::to_owned);
        MigrateOptions { ttl_days: 3, cluster }.render(statement)
    }

    #[test]
    fn one_server_has_plain_tables() {
        assert_eq!(
            on(None, TABLE),
            ["CREATE TABLE IF NOT EXISTS t (a UInt8) ENGINE = MergeTree \
              TTL toDateTime(a) + INTERVAL 3 DAY"]
        );
        assert_eq!(
            on(None, VIEW),
            ["CREATE MATERIALIZED VIEW IF NOT EXISTS v TO u AS SELECT a FROM t"]
        );
    }

    #[test]
    fn a_cluster_has_a_local_and_a_distributed_table() {
        assert_eq!(
            on(Some("c'1"), TABLE),
            [
                "CREATE TABLE IF NOT EXISTS t_local ON CLUSTER 'c\\'1' (a UInt8) \
                 ENGINE = ReplicatedMergeTree TTL toDateTime(a) + INTERVAL 3 DAY",
                "CREATE TABLE IF NOT EXISTS t ON CLUSTER 'c\\'1' AS t_local \
                 ENGINE = Distributed('c\\'1', currentDatabase(), 't_local', rand())",
            ]
        );
    }

    #[test]
    fn views_join_local_tables() {
        assert_eq!(
            on(Some("c"), VIEW),
            ["CREATE MATERIALIZED VIEW IF NOT EXISTS v ON CLUSTER 'c' TO u_local \
              AS SELECT a FROM t_local"]
        );
    }

    #[test]
    fn new_columns_go_to_both_tables_and_indexes_to_the_local_one() {
        assert_eq!(
            on(Some("c"), "ALTER TABLE t{on_cluster} ADD COLUMN b UInt8"),
            [
                "ALTER TABLE t_local ON CLUSTER 'c' ADD COLUMN b UInt8",
                "ALTER TABLE t ON CLUSTER 'c' ADD COLUMN b UInt8",
            ]
        );
        assert_eq!(
            on(Some("c"), "ALTER TABLE t{on_cluster} ADD INDEX i a TYPE minmax"),
            ["ALTER TABLE t_local ON CLUSTER 'c' ADD INDEX i a TYPE minmax"]
        );
    }
}
