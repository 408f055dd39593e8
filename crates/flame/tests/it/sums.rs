//! No picture loses or invents time.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use underspan_flame::{Grouping, Place, ROOT, Sample, Tree, folded};
use underspan_model::{Frame, FrameKind, Stack, State};

use crate::story;

/// Names from few letters, so that paths meet, with what other formats use as separators.
pub(crate) fn frame() -> impl Strategy<Value = Frame> {
    (0..3_usize, "[ab; <]{1,2}", 0..3_u32).prop_map(|(kind, function, line)| Frame {
        kind: FrameKind::ALL[kind],
        function,
        file: if line == 0 { String::new() } else { String::from("/srv/f.py") },
        line,
        module: String::from("m"),
    })
}

pub(crate) fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let place = prop_oneof![
        8 => (prop::collection::vec(frame(), 0..6), "(|too_deep)").prop_map(|(frames, truncated)| {
            Place::Stack(Arc::new(Stack { frames, truncated }))
        }),
        1 => Just(Place::NoStack),
        1 => Just(Place::NotSampled),
    ];
    let sample = (place, 0..17_u8, 0..1_u64 << 40, 0..1_u64 << 38, 1..4_u32, any::<bool>());
    let sample = sample.prop_map(|(place, state, weight_ns, unsure_ns, tid, idle)| Sample {
        thread: story::thread(tid, "worker"),
        start_time: story::T0 + weight_ns,
        duration_ns: weight_ns,
        weight_ns,
        unsure_ns,
        count: 1,
        state: State::from_index(state).unwrap(),
        wait: None,
        place,
        idle,
        request: None,
        counters: None,
    });
    prop::collection::vec(sample, 0..30)
}

pub(crate) fn grouping() -> impl Strategy<Value = Grouping> {
    any::<[bool; 5]>().prop_map(|[process, thread, by_name, lines, states]| Grouping {
        by_name,
        process,
        thread,
        lines,
        states,
    })
}

proptest! {
    #[test]
    fn a_tree_sums_to_its_samples(samples in samples(), grouping in grouping()) {
        let tree = Tree::new(&samples, grouping);
        let nodes = tree.nodes();
        prop_assert_eq!(tree.total(), samples.iter().map(|sample| sample.weight_ns).sum::<u64>());
        for state in State::ALL {
            let of_state = samples.iter().filter(|sample| sample.state == state);
            let sum: u64 = of_state.map(|sample| sample.weight_ns).sum();
            prop_assert_eq!(nodes[ROOT].total[state], sum);
        }
        for node in nodes {
            let below = node.children.iter().fold(node.own, |sum, child| sum + nodes[*child].total);
            prop_assert_eq!(below, node.total);
            prop_assert!(node.idle_ns <= node.total.total());
        }
    }

    #[test]
    fn siblings_have_different_labels(samples in samples(), grouping in grouping()) {
        let tree = Tree::new(&samples, grouping);
        for node in tree.nodes() {
            let labels: Vec<_> = node.children.iter().map(|child| &tree.nodes()[*child].label).collect();
            prop_assert!(labels.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn folded_text_comes_back(samples in samples(), grouping in grouping()) {
        let tree = Tree::new(&samples, grouping);
        let mut expected: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (at, node) in tree.nodes().iter().enumerate().filter(|(_, node)| node.own.total() > 0) {
            let path = tree.path(at);
            let mut path: Vec<_> =
                path.iter().map(|label| folded::escaped(&label.text())).collect();
            if path.is_empty() {
                path.push(String::from("[all]"));
            }
            *expected.entry(path).or_default() += node.own.total();
        }
        let mut parsed: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (path, ns) in folded::parse(&folded::folded(&tree)).unwrap() {
            *parsed.entry(path).or_default() += ns;
        }
        prop_assert_eq!(parsed, expected);
    }
}
