//! A store to read from, for as long as one command runs.

use std::future::Future;

use underspan_store::embedded::{Embedded, Options, default_folder};
use underspan_store::{Endpoint, Store};

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
        if let Some(url) = &global.store {
            let store = Store::connect(url.parse::<Endpoint>()?);
            // Whatever answers there may not be a store, or not answer at all.
            store.check().await?;
            return work(store).await;
        }
        let folder = global.data.clone().unwrap_or_else(default_folder);
        // Starting a store where there is none would only make an empty one.
        let is_there = folder.try_exists().map_err(|error| {
            Failure::new(format!("no data at {}: {error}", folder.display()))
                .hint("run as the user that owns the store, or name another with --data DIR or --store URL")
        })?;
        if !is_there {
            let message = format!("no data at {}: the folder does not exist", folder.display());
            return Err(Failure::new(message)
                .hint("record some with `underspan up` or `underspan run -- CMD`, or name a store with --store URL or --data DIR")
                .into());
        }
        let options = Options { folder, port: 0, ..Options::default() };
        let embedded = Embedded::attach_or_start(&options, |_| ()).await?;
        let result = work(Store::connect(embedded.endpoint().clone())).await;
        embedded.shutdown().await;
        result
    })
}
