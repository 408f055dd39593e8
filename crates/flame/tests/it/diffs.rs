//! Differences: what came, what went, what stayed.

use proptest::prelude::*;
use underspan_flame::{Diff, Grouping, Per, ROOT, Side, Tree, folded};

use crate::story;
use crate::sums::samples;

fn side(tree: &Tree, requests: u64) -> Side<'_> {
    Side { tree, requests, range_ns: 2_000_000_000 }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
}

proptest! {
    #[test]
    fn both_sides_keep_their_sums(before in samples(), after in samples(), requests in 1..9_u64) {
        let grouping = Grouping { thread: true, states: true, ..Grouping::default() };
        let (before, after) = (Tree::new(&before, grouping), Tree::new(&after, grouping));
        let diff = Diff::new(side(&before, requests), side(&after, 1), Per::Request);
        let root = &diff.nodes()[ROOT];
        prop_assert!(near(root.before, before.total() as f64 / requests as f64));
        prop_assert!(near(root.after, after.total() as f64));
        for node in diff.nodes() {
            prop_assert!(node.width >= node.before.max(node.after) - 1e-3);
            let below: f64 = node.children.iter().map(|child| diff.nodes()[*child].width).sum();
            prop_assert!(near(below + node.own_before.max(node.own_after), node.width));
        }
    }

    #[test]
    fn a_tree_does_not_differ_from_itself(samples in samples()) {
        let tree = Tree::new(&samples, Grouping::default());
        for per in [Per::Absolute, Per::Request, Per::Second, Per::Share] {
            let diff = Diff::new(side(&tree, 3), side(&tree, 3), per);
            prop_assert!(diff.nodes().iter().all(|node| node.change() == 0.0));
            prop_assert_eq!(diff.nodes().len(), tree.nodes().len());
        }
    }
}

#[test]
fn what_went_away_is_still_drawn() {
    let samples = story::samples();
    let before = Tree::new(&samples[1..2], Grouping::default());
    let after = Tree::new(&samples[3..4], Grouping::default());
    let diff = Diff::new(side(&before, 1), side(&after, 2), Per::Request);
    assert_eq!(folded::folded_diff(&diff).lines().count(), 2);
    let gone = diff.nodes().iter().find(|node| node.label.text() == "futex_wait_[k]").unwrap();
    assert!(near(gone.change(), -180e6) && near(gone.width, 180e6));
    let came =
        diff.nodes().iter().find(|node| node.label.text() == "encoder_listencode_dict").unwrap();
    assert!(near(came.change(), 5e6));
}

#[test]
fn nothing_to_divide_by_is_no_time() {
    let tree = Tree::new(&story::samples(), Grouping::default());
    let diff = Diff::new(side(&tree, 0), side(&tree, 2), Per::Request);
    assert!(near(diff.nodes()[ROOT].before, 0.0));
}
