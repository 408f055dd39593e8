//! A store to write to: a server, or the embedded one, started if it is not up.

use std::path::Path;
use std::time::Duration;

use underspan_agent::SinkOptions;
use underspan_store::embedded::{Contents, Embedded, EmbeddedError, Options, Readers};
use underspan_store::{CORE, Endpoint, MigrateOptions, Store};

use crate::Global;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::watch::{TableArgs, data_folder, progress};

/// Whoever waits for the embedded store's end is told after this long.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// Which store the options name. Made before privileges are dropped: they decide the default folder.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Server(Endpoint),
    Embedded(Options),
}

impl Target {
    /// Checks the options. The embedded store is to listen on `port`, 0 for any.
    pub(crate) fn new(global: &Global, port: u16) -> anyhow::Result<Self> {
        Ok(match global.endpoint()? {
            Some(endpoint) => Target::Server(endpoint),
            None => {
                let folder = data_folder(global);
                refuse_foreign(&folder)?;
                Target::Embedded(Options { folder, port, ..Options::default() })
            }
        })
    }

    /// Connects, or starts the embedded store.
    pub(crate) async fn open(&self) -> anyhow::Result<Opened> {
        self.open_saying(progress).await
    }

    /// The same; `say` is told what is being waited for.
    pub(crate) async fn open_saying(&self, say: impl Fn(&str)) -> anyhow::Result<Opened> {
        match self {
            Target::Server(endpoint) => {
                Ok(Opened { client: Store::connect(endpoint.clone()), embedded: None })
            }
            Target::Embedded(options) => {
                let embedded = Embedded::attach_or_start(options, say).await.map_err(explain)?;
                let client = Store::connect(embedded.endpoint().clone());
                Ok(Opened { client, embedded: Some(embedded) })
            }
        }
    }
}

/// A store is not put among other files, and writes over none. What cannot be looked into is told by
/// who opens it.
fn refuse_foreign(folder: &Path) -> anyhow::Result<()> {
    let Ok(Contents::Foreign(name)) = Contents::of(folder) else { return Ok(()) };
    let message = format!(
        "cannot keep a store in {}: it holds other files ({}) and is no store",
        folder.display(),
        name.to_string_lossy()
    );
    Err(Failure::new(message).hint("choose an empty or a new folder with --data DIR").into())
}

fn explain(error: EmbeddedError) -> anyhow::Error {
    match error {
        EmbeddedError::PortInUse(_) => Failure::new(error.to_string())
            .hint("choose another port for the store with --store-port PORT, 0 for any")
            .into(),
        error => error.into(),
    }
}

/// A store, with the embedded host if it is ours.
pub(crate) struct Opened {
    client: Store,
    embedded: Option<Embedded>,
}

impl Opened {
    /// The client. It is cheap to clone.
    pub(crate) fn client(&self) -> Store {
        self.client.clone()
    }

    /// How the agent writes to it. The embedded store is on the CPUs of what is watched, so it gets
    /// fewer and larger inserts; the fewest while it says when somebody reads.
    pub(crate) fn sink_options(&self) -> SinkOptions {
        let mut options = SinkOptions::default();
        if self.embedded.is_some() {
            options.flush_every = 2 * options.flush_every;
            // What is held back is in this process's memory.
            options.batch_bytes = 1 << 20;
        }
        options
    }

    /// Those who read the embedded store, for a part of this process that holds rows back from it.
    pub(crate) fn readers(&self, part: &str) -> Option<Readers> {
        let name = format!("{part}{}", std::process::id());
        self.embedded.as_ref().map(|embedded| embedded.readers(&name))
    }

    /// Processes that are Underspan's own and never watched.
    pub(crate) fn own_pids(&self) -> Vec<u32> {
        self.embedded.iter().filter_map(Embedded::pid).collect()
    }

    /// Makes or updates the tables.
    pub(crate) async fn migrate(&self, args: &TableArgs) -> anyhow::Result<()> {
        self.client.check().await?;
        let options = MigrateOptions { ttl_days: args.ttl, cluster: args.cluster.clone() };
        let mut components = vec![CORE];
        components.extend(underspan_trackers::components());
        for applied in self.client.migrate(&components, &options).await? {
            tracing::info!(
                "tables: {} {}, {}",
                applied.component,
                applied.version,
                applied.description
            );
        }
        Ok(())
    }

    /// Ends a host of ours, last of all, so that what was queued has been written. A signal leaves it
    /// to end by itself, without us.
    pub(crate) async fn close(self, signals: &Signals) {
        let Some(embedded) = self.embedded else { return };
        tokio::select! {
            () = embedded.shutdown() => {}
            () = signals.clone().hurry() => {}
            () = tell_of_the_wait() => {}
        }
    }
}

/// Says what is being waited for, if it takes a while. Never completes.
async fn tell_of_the_wait() {
    tokio::time::sleep(TOLD_AFTER).await;
    progress(
        "the embedded store still writes what it has; another Ctrl-C leaves it to end by itself",
    );
    std::future::pending().await
}
