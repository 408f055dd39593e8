//! A store to read from, for as long as one command runs.

use std::future::Future;

use underspan_store::Store;
use underspan_store::embedded::{Contents, Embedded, Options, default_folder};

use crate::Global;
use crate::failure::Failure;

/// Runs a command's work with the store that the options name: a server, the embedded store that is
/// already up, or one started on its folder and stopped afterwards.
pub(crate) fn with_store<F, T>(global: &Global, work: impl FnOnce(Store) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if let Some(endpoint) = global.endpoint()? {
            let store = Store::connect(endpoint);
            // Whatever answers there may not be a store, or not answer at all.
            store.check().await?;
            return work(store).await;
        }
        let folder = global.data.clone().unwrap_or_else(default_folder);
        // Starting a store where there is none would only make an empty one, perhaps among other files.
        let missing = |why: &str| {
            Failure::new(format!("no data at {}: {why}", folder.display()))
                .hint("record some with `underspan up` or `underspan run -- CMD`, or name a store with --store URL or --data DIR")
        };
        match Contents::of(&folder) {
            Ok(Contents::Store) => {}
            Ok(Contents::Missing) => return Err(missing("the folder does not exist").into()),
            Ok(Contents::Empty) => return Err(missing("the folder has no store in it yet").into()),
            Ok(Contents::Foreign(_)) => {
                return Err(missing("the folder holds something else than a store").into());
            }
            Err(error) => {
                return Err(Failure::new(format!("no data at {}: {error}", folder.display()))
                    .hint("run as the user that owns the store, or name another with --data DIR or --store URL")
                    .into());
            }
        }
        let options = Options { folder, port: 0, ..Options::default() };
        let embedded = Embedded::attach_or_start(&options, |_| ()).await?;
        let result = work(Store::connect(embedded.endpoint().clone())).await;
        embedded.shutdown().await;
        result
    })
}
