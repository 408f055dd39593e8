//! Tables and their numbered migrations.
//!
//! Every component (the core, each tracker) has an SQL text of blocks headed
//! `-- migration N: description`, numbered from 1. What was applied is recorded in the table
//! `schema_migrations`, so that a newer Underspan adds what is missing and an older one notices.

mod parse;
mod render;
mod status;

use std::collections::BTreeMap;

pub use render::MigrateOptions;
pub use status::{Difference, SchemaStatus};

use crate::client::quoted;
use crate::{Error, Store};
use parse::Migration;

/// The tables that belong to no tracker, spans among them.
pub const CORE: Component = Component { name: "core", sql: include_str!("sql/core.sql") };

/// Where migrations are recorded. It has no TTL: its rows are few and needed for ever.
const RECORD: &str = "CREATE TABLE IF NOT EXISTS schema_migrations{on_cluster}
(
    component LowCardinality(String),
    version UInt32,
    description String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = {engine}
ORDER BY (component, version)";

/// A set of tables that is versioned on its own.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Its name in `schema_migrations`.
    pub name: &'static str,
    /// Its migrations.
    pub sql: &'static str,
}

/// A migration that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The component.
    pub component: &'static str,
    /// The migration's number.
    pub version: u32,
    /// What it says it does.
    pub description: String,
}

impl Store {
    /// Applies what the store lacks of these components, in order, and returns what was applied.
    ///
    /// Statements are written so that they may run twice: two agents that start at once, or one
    /// that died in the middle, do no harm.
    ///
    /// # Errors
    ///
    /// [`Error::SchemaAhead`] when a newer Underspan made the store; nothing is changed then. Else
    /// those of any statement; what was applied before stays, and is recorded.
    pub async fn migrate(
        &self,
        components: &[Component],
        options: &MigrateOptions,
    ) -> Result<Vec<Applied>, Error> {
        let known = parse_all(components)?;
        self.create_database(options).await?;
        for statement in options.render(RECORD) {
            self.execute(&statement).await?;
        }
        let recorded = self.recorded_versions().await?;
        status::compare(&known, &recorded).refuse_ahead()?;
        let mut applied = Vec::new();
        for (component, migrations) in known {
            let from = recorded.get(component).copied().unwrap_or(0);
            for migration in migrations.iter().filter(|migration| migration.version > from) {
                self.apply(component, migration, options).await?;
                applied.push(Applied {
                    component,
                    version: migration.version,
                    description: migration.description.clone(),
                });
            }
        }
        Ok(applied)
    }

    /// How the store's tables compare with what this Underspan knows. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked. A store without any tables is no error: it is behind.
    pub async fn schema_status(&self, components: &[Component]) -> Result<SchemaStatus, Error> {
        let known = parse_all(components)?;
        let recorded = match self.recorded_versions().await {
            // Neither the table nor the database is there yet.
            Err(Error::Schema { .. }) => BTreeMap::new(),
            recorded => recorded?,
        };
        Ok(status::compare(&known, &recorded))
    }

    async fn apply(
        &self,
        component: &str,
        migration: &Migration,
        options: &MigrateOptions,
    ) -> Result<(), Error> {
        for statement in migration.statements.iter().flat_map(|text| options.render(text)) {
            self.execute(&statement).await?;
        }
        let record = "INSERT INTO schema_migrations (component, version, description) \
                      SELECT {component:String}, {version:UInt32}, {description:String}";
        self.client()
            .query_raw(record)
            .with_setting("distributed_foreground_insert", "1")
            .param("component", component)
            .param("version", migration.version)
            .param("description", &migration.description)
            .execute()
            .await
            .map_err(|error| self.explain(error))?;
        tracing::info!(component, version = migration.version, "migrated the store");
        Ok(())
    }

    async fn create_database(&self, options: &MigrateOptions) -> Result<(), Error> {
        let database = quoted(&self.endpoint().database);
        let sql = format!("CREATE DATABASE IF NOT EXISTS {database}{}", options.on_cluster());
        let created = self.without_database().query_raw(&sql).execute().await;
        created.map_err(|error| self.explain(error))
    }

    /// The newest version of each component that the store has.
    async fn recorded_versions(&self) -> Result<BTreeMap<String, u32>, Error> {
        let sql = "SELECT component, max(version) FROM schema_migrations GROUP BY component";
        let rows = self.client().query_raw(sql).fetch_all::<(String, u32)>().await;
        Ok(rows.map_err(|error| self.explain(error))?.into_iter().collect())
    }
}

/// Every statement that makes these components in an empty database, in order: for reading before
/// they are run, or for running them by other means.
///
/// # Errors
///
/// [`Error::BadMigrations`] when a component's SQL is malformed.
pub fn statements(
    components: &[Component],
    options: &MigrateOptions,
) -> Result<Vec<String>, Error> {
    let mut statements = options.render(RECORD);
    for (_, migrations) in parse_all(components)? {
        let texts = migrations.iter().flat_map(|migration| &migration.statements);
        statements.extend(texts.flat_map(|text| options.render(text)));
    }
    Ok(statements)
}

type Known = Vec<(&'static str, Vec<Migration>)>;

fn parse_all(components: &[Component]) -> Result<Known, Error> {
    components.iter().map(|component| Ok((component.name, parse::migrations(component)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_well_formed() {
        let migrations = parse::migrations(&CORE).unwrap();
        assert_eq!(migrations.len(), 3);
        assert_eq!(migrations.iter().map(|m| m.statements.len()).collect::<Vec<_>>(), [3, 3, 2]);
    }
}
