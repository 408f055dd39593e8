//! Folded stacks, as flame graph scripts read them: `main;work;sleep 1200`, nanoseconds.

use crate::diff::Diff;
use crate::label::Label;
use crate::tree::Tree;

/// One line per path that ends somewhere, in the tree's order.
pub fn folded(tree: &Tree) -> String {
    let mut lines = String::new();
    for (at, node) in tree.nodes().iter().enumerate() {
        let ns = node.own.total();
        if ns > 0 {
            lines += &format!("{} {ns}\n", joined(&tree.path(at)));
        }
    }
    lines
}

/// Two numbers per path, before and after, as differential flame graphs are made of.
pub fn folded_diff(diff: &Diff) -> String {
    let mut lines = String::new();
    for (at, node) in diff.nodes().iter().enumerate() {
        let (before, after) = (node.own_before.round(), node.own_after.round());
        if before > 0.0 || after > 0.0 {
            lines += &format!("{} {before:.0} {after:.0}\n", joined(&diff.path(at)));
        }
    }
    lines
}

/// The paths of a folded text with their numbers; `None` for a line that is none.
pub fn parse(text: &str) -> Option<Vec<(Vec<String>, u64)>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (path, ns) = line.rsplit_once(' ')?;
            let path = if path.is_empty() {
                Vec::new()
            } else {
                path.split(';').map(str::to_owned).collect()
            };
            Some((path, ns.parse().ok()?))
        })
        .collect()
}

fn joined(path: &[&Label]) -> String {
    if path.is_empty() {
        return String::from("[all]");
    }
    path.iter().map(|label| escaped(&label.text())).collect::<Vec<_>>().join(";")
}

/// A semicolon separates frames, and a line's end paths.
pub fn escaped(text: &str) -> String {
    let clean = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(clean).collect()
}
