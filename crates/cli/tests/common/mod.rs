//! A store for commands to read from.

// A helper that fails here fails the test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use tempfile::TempDir;
use underspan_store::embedded::{Embedded, Options};
use underspan_store::{CORE, MigrateOptions, Store};

/// A folder with Underspan's tables and nothing in them; its store runs on.
pub(crate) async fn empty_store() -> (Embedded, Store, TempDir) {
    let folder = TempDir::new().unwrap();
    let python = std::env::var_os("UNDERSPAN_PYTHON")
        .expect("set UNDERSPAN_PYTHON to a Python that has underspan[store] installed");
    let options = Options {
        folder: folder.path().to_owned(),
        port: 0,
        python: Some(python.into()),
        memory_limit_mib: Some(1024),
    };
    let embedded = Embedded::start(&options, |_| {}).await.unwrap();
    let store = Store::connect(embedded.endpoint().clone());
    let mut components = vec![CORE];
    components.extend(underspan_trackers::components());
    store.migrate(&components, &MigrateOptions::default()).await.unwrap();
    (embedded, store, folder)
}
