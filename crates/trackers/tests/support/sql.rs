//! The tables that the trackers' `table.sql` create.

use std::collections::BTreeMap;

use super::super::api::ALL;

/// A column and its type, without its codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Whose `table.sql` creates it.
    pub(crate) tracker: &'static str,
    pub(crate) columns: Vec<Column>,
}

/// Every tracker's tables, by name.
pub(crate) fn tables() -> BTreeMap<String, Table> {
    let mut found = BTreeMap::new();
    for tracker in ALL {
        for statement in tracker.sql().split(';') {
            if let Some((name, column)) = added(statement) {
                let table: &mut Table = found.get_mut(name).expect("a table that was created");
                table.columns.push(column);
            }
            let Some((name, body)) = created(statement) else { continue };
            let columns = body.lines().filter_map(column).collect();
            let table = Table { tracker: tracker.name(), columns };
            assert!(found.insert(name.to_owned(), table).is_none(), "{name} is created twice");
        }
    }
    found
}

/// The table that a statement creates, and what is between its outermost parentheses.
fn created(statement: &str) -> Option<(&str, &str)> {
    let (_, rest) = statement.split_once("CREATE TABLE IF NOT EXISTS ")?;
    let (name, rest) = rest.split_once("{on_cluster}").expect("tables are created on the cluster");
    let (body, _) = rest.split_once("\n) ENGINE").expect("a table has an engine");
    Some((name, body))
}

/// The column that a statement adds to a table. Wherever it stands there, decoders write it last: they
/// name their columns.
fn added(statement: &str) -> Option<(&str, Column)> {
    let (_, rest) = statement.split_once("ALTER TABLE ")?;
    let (name, rest) = rest.split_once("{on_cluster}").expect("tables are altered on the cluster");
    let (_, line) = rest.split_once("ADD COLUMN IF NOT EXISTS ")?;
    Some((name, column(line.split(" AFTER").next()?)?))
}

fn column(line: &str) -> Option<Column> {
    let line = line.trim().trim_end_matches(',');
    let (name, rest) = line.split_once(' ')?;
    if name == "INDEX" {
        return None;
    }
    let kind = rest.split(" CODEC").next().unwrap_or(rest);
    Some(Column { name: name.to_owned(), kind: kind.to_owned() })
}
