//! What the store has, against what this Underspan knows.

use std::collections::BTreeMap;
use std::fmt;

use super::Known;
use crate::Error;

/// How the store's tables compare with what this Underspan knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// They are the same.
    UpToDate,
    /// The store lacks migrations: per component, its version and the newest known.
    Behind(Vec<Difference>),
    /// A newer Underspan made the store: it must not be written to.
    Ahead(Vec<Difference>),
}

/// A component whose versions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The component.
    pub component: &'static str,
    /// The store's version, 0 for none.
    pub found: u32,
    /// The newest version known here.
    pub known: u32,
}

impl SchemaStatus {
    /// An error when a newer Underspan made the store.
    pub(super) fn refuse_ahead(self) -> Result<(), Error> {
        let SchemaStatus::Ahead(differences) = self else { return Ok(()) };
        differences.into_iter().next().map_or(Ok(()), |Difference { component, found, known }| {
            Err(Error::SchemaAhead { component: component.to_owned(), found, known })
        })
    }
}

impl fmt::Display for SchemaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (differences, advice) = match self {
            SchemaStatus::UpToDate => return f.write_str("up to date"),
            SchemaStatus::Behind(all) => (all, "run `underspan server` once to migrate"),
            SchemaStatus::Ahead(all) => (all, "a newer Underspan made them; upgrade this one"),
        };
        for Difference { component, found, known } in differences {
            write!(f, "{component} has version {found}, {known} is known; ")?;
        }
        f.write_str(advice)
    }
}

/// A component that only the store knows is left alone: it belongs to a tracker not built in here.
pub(super) fn compare(known: &Known, recorded: &BTreeMap<String, u32>) -> SchemaStatus {
    let (mut behind, mut ahead) = (Vec::new(), Vec::new());
    for (component, migrations) in known {
        let found = recorded.get(*component).copied().unwrap_or(0);
        let known = migrations.last().map_or(0, |migration| migration.version);
        let difference = Difference { component, found, known };
        match found.cmp(&known) {
            std::cmp::Ordering::Less => behind.push(difference),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => ahead.push(difference),
        }
    }
    if !ahead.is_empty() {
        SchemaStatus::Ahead(ahead)
    } else if !behind.is_empty() {
        SchemaStatus::Behind(behind)
    } else {
        SchemaStatus::UpToDate
    }
}
