//! Stacks by id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use underspan_flame::Place;
use underspan_model::{Frame, FrameKind, Stack};
use underspan_store::Store;

use crate::Error;
use crate::query::Select;

/// So many are asked for at once.
const BATCH: usize = 5000;

/// Stacks that were found.
#[derive(Default)]
pub(crate) struct Stacks(HashMap<(String, u64), Arc<Stack>>);

#[derive(Deserialize)]
struct Row {
    stack_id: u64,
    kinds: Vec<String>,
    functions: Vec<String>,
    files: Vec<String>,
    lines: Vec<u32>,
    modules: Vec<String>,
    truncated: String,
}

impl Stacks {
    pub(crate) async fn load(
        store: &Store,
        ids: impl Iterator<Item = (&str, u64)>,
    ) -> Result<Stacks, Error> {
        let mut by_host: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for (host, id) in ids.filter(|(_, id)| *id != 0) {
            by_host.entry(host).or_default().insert(id);
        }
        let mut stacks = Stacks::default();
        for (host, ids) in by_host {
            let ids: Vec<_> = ids.into_iter().collect();
            for batch in ids.chunks(BATCH) {
                stacks.load_batch(store, host, batch).await?;
            }
        }
        Ok(stacks)
    }

    async fn load_batch(&mut self, store: &Store, host: &str, ids: &[u64]) -> Result<(), Error> {
        // An agent that starts anew writes the stacks it meets again.
        let sql = "SELECT stack_id, kinds, functions, files, lines, modules, truncated FROM stacks \
             WHERE host = {host:String} AND stack_id IN {ids:Array(UInt64)} LIMIT 1 BY stack_id";
        let select = Select::new(store, "stacks", sql).param("host", host).param("ids", ids);
        for row in select.rows::<Row>().await? {
            self.0.insert((host.to_owned(), row.stack_id), Arc::new(row.into_stack()));
        }
        Ok(())
    }

    /// The stack with this id, if it has been named.
    pub(crate) fn get(&self, host: &str, id: u64) -> Option<&Stack> {
        self.0.get(&(host.to_owned(), id)).map(Arc::as_ref)
    }

    /// Where a sample with this stack was.
    pub(crate) fn place(&self, host: &str, id: u64) -> Place {
        match self.0.get(&(host.to_owned(), id)) {
            Some(stack) if !stack.frames.is_empty() => Place::Stack(Arc::clone(stack)),
            _ => Place::NoStack,
        }
    }
}

impl Row {
    /// The columns are as long as each other; a shorter one would only lack what it does not have.
    fn into_stack(self) -> Stack {
        let mut files = self.files.into_iter();
        let mut lines = self.lines.into_iter();
        let mut modules = self.modules.into_iter();
        let frames = self.kinds.into_iter().zip(self.functions).map(|(kind, function)| Frame {
            kind: FrameKind::from_name(&kind).unwrap_or(FrameKind::Native),
            function,
            file: files.next().unwrap_or_default(),
            line: lines.next().unwrap_or(0),
            module: modules.next().unwrap_or_default(),
        });
        Stack { frames: frames.collect(), truncated: self.truncated }
    }
}
