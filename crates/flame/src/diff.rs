//! The difference of two call trees.

use std::collections::HashMap;

use serde::Serialize;
use underspan_model::Ledger;

use crate::label::Label;
use crate::tree::{ROOT, Tree};

/// What makes two trees of different sizes comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Nothing: nanoseconds against nanoseconds.
    Absolute,
    /// Nanoseconds per request.
    Request,
    /// Nanoseconds per second of the time range.
    Second,
    /// Each tree's sum is a second: only shares are compared.
    Share,
}

impl Per {
    /// After a number of nanoseconds.
    pub const fn unit(self) -> &'static str {
        match self {
            Per::Absolute => "",
            Per::Request => " per request",
            Per::Second => " per second",
            Per::Share => " per second of the picture",
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its tree.
    pub tree: &'a Tree,
    /// How many requests it is of.
    pub requests: u64,
    /// How long its time range is.
    pub range_ns: u64,
}

impl Side<'_> {
    /// What to multiply its nanoseconds with. 0 where there is nothing to divide by.
    fn factor(&self, per: Per) -> f64 {
        let over = |divisor: u64, ns: f64| if divisor == 0 { 0.0 } else { ns / divisor as f64 };
        match per {
            Per::Absolute => 1.0,
            Per::Request => over(self.requests, 1.0),
            Per::Second => over(self.range_ns, 1e9),
            Per::Share => over(self.tree.total(), 1e9),
        }
    }
}

/// Two call trees, merged by label.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    nodes: Vec<DiffNode>,
}

/// A node of either tree or of both. All times are normalised nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffNode {
    /// What it is.
    pub label: Label,
    /// Its parent; the root is its own.
    pub parent: usize,
    /// By label.
    pub children: Vec<usize>,
    /// What ends here, before.
    pub own_before: f64,
    /// What ends here, after.
    pub own_after: f64,
    /// What ends here or below, before.
    pub before: f64,
    /// What ends here or below, after.
    pub after: f64,
    /// The sum of the greater of both sides, over all paths that end here or below: how wide it is
    /// drawn, so that what vanished is seen as well as what came.
    pub width: f64,
}

impl DiffNode {
    /// What was added. Negative: what went away.
    pub fn change(&self) -> f64 {
        self.after - self.before
    }
}

impl Diff {
    /// Merges both.
    pub fn new(before: Side<'_>, after: Side<'_>, per: Per) -> Diff {
        let mut diff = Diff { nodes: vec![node(Label::Root, ROOT)] };
        let mut children = HashMap::new();
        diff.merge(before, per, &mut children, |node, own| node.own_before += own);
        diff.merge(after, per, &mut children, |node, own| node.own_after += own);
        // Parents come before their children, so going backwards sums bottom up.
        for at in (0..diff.nodes.len()).rev() {
            let node = &mut diff.nodes[at];
            node.before += node.own_before;
            node.after += node.own_after;
            node.width += node.own_before.max(node.own_after);
            let (parent, before, after, width) = (node.parent, node.before, node.after, node.width);
            if at != ROOT {
                let parent = &mut diff.nodes[parent];
                parent.before += before;
                parent.after += after;
                parent.width += width;
            }
        }
        for at in 0..diff.nodes.len() {
            let mut children = std::mem::take(&mut diff.nodes[at].children);
            children.sort_by(|a, b| diff.nodes[*a].label.cmp(&diff.nodes[*b].label));
            diff.nodes[at].children = children;
        }
        diff
    }

    fn merge(
        &mut self,
        side: Side<'_>,
        per: Per,
        children: &mut HashMap<(usize, Label), usize>,
        mut own: impl FnMut(&mut DiffNode, f64),
    ) {
        let factor = side.factor(per);
        let mut here = vec![ROOT; side.tree.nodes().len()];
        for (at, theirs) in side.tree.nodes().iter().enumerate() {
            if at != ROOT {
                let parent = here[theirs.parent];
                let next = self.nodes.len();
                here[at] = *children.entry((parent, theirs.label.clone())).or_insert(next);
                if here[at] == next {
                    self.nodes.push(node(theirs.label.clone(), parent));
                    self.nodes[parent].children.push(next);
                }
            }
            own(&mut self.nodes[here[at]], sum(&theirs.own) * factor);
        }
    }

    /// Its nodes: the root first, parents before their children.
    pub fn nodes(&self) -> &[DiffNode] {
        &self.nodes
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

fn sum(ledger: &Ledger) -> f64 {
    ledger.total() as f64
}

fn node(label: Label, parent: usize) -> DiffNode {
    DiffNode {
        label,
        parent,
        children: Vec::new(),
        own_before: 0.0,
        own_after: 0.0,
        before: 0.0,
        after: 0.0,
        width: 0.0,
    }
}
