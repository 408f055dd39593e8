//! A host of its own for each test, on a free port.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use underspan_store::Store;
use underspan_store::embedded::{Embedded, Options};

/// The Python under test. A missing one is a failure: skipped tests prove nothing.
pub(crate) fn python() -> PathBuf {
    let named = std::env::var_os("UNDERSPAN_PYTHON");
    named.map(PathBuf::from).expect(
        "set UNDERSPAN_PYTHON to a Python that has underspan[store] installed (`make test` does)",
    )
}

pub(crate) fn options(folder: &Path) -> Options {
    Options {
        folder: folder.to_owned(),
        port: 0,
        python: Some(python()),
        memory_limit_mib: Some(1024),
    }
}

/// A running host with an empty folder.
pub(crate) struct Running {
    pub(crate) embedded: Embedded,
    pub(crate) folder: TempDir,
}

impl Running {
    pub(crate) async fn start() -> Running {
        let folder = TempDir::new().unwrap();
        let embedded = Embedded::start(&options(folder.path()), |_| {}).await.unwrap();
        Running { embedded, folder }
    }

    pub(crate) fn store(&self) -> Store {
        Store::connect(self.embedded.endpoint().clone())
    }

    /// The host writes into the folder until its end, so the folder goes last.
    pub(crate) async fn stop(self) {
        self.embedded.shutdown().await;
        drop(self.folder);
    }
}

/// The only value of the only row.
pub(crate) async fn text(store: &Store, sql: &str) -> String {
    let bytes = store.query_raw(sql, "TSVRaw").await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned()
}
