//! The merged call tree.

use std::collections::{BTreeMap, HashMap};

use underspan_model::{Ledger, State};

use crate::label::Label;
use crate::sample::{Counters, Place, Sample};

/// How samples become paths of the tree, from the root on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// A node per process name.
    pub process: bool,
    /// A node per thread.
    pub thread: bool,
    /// Threads of one name are one: ids differ from one run to the next.
    pub by_name: bool,
    /// The same function at two lines is two nodes.
    pub lines: bool,
    /// The innermost node says what the thread did there.
    pub states: bool,
}

impl Grouping {
    /// A sample's way from the root: labels, with the line that a function was at, or 0.
    pub(crate) fn path(self, sample: &Sample) -> Vec<(Label, u32)> {
        let mut path = Vec::new();
        if self.process {
            path.push((Label::Process(sample.thread.process.clone()), 0));
        }
        if self.thread {
            let thread = &sample.thread;
            let by_name = self.by_name || thread.tid == 0;
            let label = if by_name { Label::threads(thread) } else { Label::thread(thread) };
            path.push((label, 0));
        }
        match &sample.place {
            Place::Stack(stack) => {
                if !stack.truncated.is_empty() {
                    path.push((Label::Truncated(stack.truncated.clone()), 0));
                }
                let frames = stack.frames.iter();
                path.extend(frames.map(|frame| (Label::frame(frame, self.lines), frame.line)));
            }
            Place::NoStack => path.push((Label::NoStack, 0)),
            Place::NotSampled => path.push((Label::NotSampled(sample.state), 0)),
        }
        if let Some(reason) = &sample.wait {
            path.push((Label::Wait(sample.state, reason.to_string()), 0));
        } else if self.states && sample.place != Place::NotSampled {
            path.push((Label::State(sample.state), 0));
        }
        path
    }
}

/// A merged call tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    nodes: Vec<Node>,
}

/// A node and everything below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it is.
    pub label: Label,
    /// Its number in [`Tree::nodes`] is greater than its parent's. The root is its own parent.
    pub parent: usize,
    /// By label.
    pub children: Vec<usize>,
    /// Nanoseconds by state that end here.
    pub own: Ledger,
    /// Nanoseconds by state that end here or below.
    pub total: Ledger,
    /// The part of `total` that was idle.
    pub idle_ns: u64,
    /// Nanoseconds of `total` by the line that the function was at; empty without lines.
    pub lines: BTreeMap<u32, u64>,
    /// Of the samples here and below; `None` if nothing was counted.
    pub counters: Option<Counters>,
}

impl Tree {
    /// The tree of these samples. Its sum is theirs.
    pub fn new<'a>(samples: impl IntoIterator<Item = &'a Sample>, grouping: Grouping) -> Tree {
        let mut builder = Builder::new();
        for sample in samples {
            builder.add(sample, grouping);
        }
        builder.finish()
    }

    /// Its nodes: the root first, parents before their children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The sum of all samples, in nanoseconds.
    pub fn total(&self) -> u64 {
        self.nodes[ROOT].total.total()
    }

    /// The labels from below the root to this node.
    pub fn path(&self, mut node: usize) -> Vec<&Label> {
        let mut path = Vec::new();
        while node != ROOT {
            path.push(&self.nodes[node].label);
            node = self.nodes[node].parent;
        }
        path.reverse();
        path
    }
}

/// The root's number.
pub const ROOT: usize = 0;

struct Builder {
    nodes: Vec<Node>,
    children: HashMap<(usize, Label), usize>,
}

impl Builder {
    fn new() -> Builder {
        Builder { nodes: vec![node(Label::Root, ROOT)], children: HashMap::new() }
    }

    fn add(&mut self, sample: &Sample, grouping: Grouping) {
        let mut at = ROOT;
        self.count(at, sample, 0);
        for (label, line) in grouping.path(sample) {
            at = self.step(at, label, sample, line);
        }
        add(&mut self.nodes[at].own, sample.state, sample.weight_ns);
    }

    /// Goes down to the child with this label.
    fn step(&mut self, parent: usize, label: Label, sample: &Sample, line: u32) -> usize {
        let next = self.nodes.len();
        let child = *self.children.entry((parent, label)).or_insert_with_key(|(_, label)| {
            self.nodes.push(node(label.clone(), parent));
            next
        });
        if child == next {
            self.nodes[parent].children.push(child);
        }
        self.count(child, sample, line);
        child
    }

    fn count(&mut self, node: usize, sample: &Sample, line: u32) {
        let node = &mut self.nodes[node];
        add(&mut node.total, sample.state, sample.weight_ns);
        if sample.idle {
            node.idle_ns = node.idle_ns.saturating_add(sample.weight_ns);
        }
        if line > 0 {
            let ns = node.lines.entry(line).or_default();
            *ns = ns.saturating_add(sample.weight_ns);
        }
        if let Some(counters) = sample.counters {
            node.counters.get_or_insert_default().add(counters);
        }
    }

    fn finish(self) -> Tree {
        let mut nodes = self.nodes;
        for at in 0..nodes.len() {
            let mut children = std::mem::take(&mut nodes[at].children);
            children.sort_by(|a, b| nodes[*a].label.cmp(&nodes[*b].label));
            nodes[at].children = children;
        }
        Tree { nodes }
    }
}

fn node(label: Label, parent: usize) -> Node {
    Node {
        label,
        parent,
        children: Vec::new(),
        own: Ledger::default(),
        total: Ledger::default(),
        idle_ns: 0,
        lines: BTreeMap::new(),
        counters: None,
    }
}

fn add(ledger: &mut Ledger, state: State, ns: u64) {
    ledger[state] = ledger[state].saturating_add(ns);
}
