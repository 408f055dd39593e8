//! Where the boxes of a picture are, and what they say.

use underspan_model::State;

use super::Colouring;
use super::colour::{self, Rgb};
use super::words::{self, escaped};
use crate::diff::{Diff, DiffNode, Per};
use crate::label::Label;
use crate::tree::{Node, ROOT, Tree};

/// A box, measured in shares of the whole width.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) depth: usize,
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) text: String,
    /// The first line is the name; escaped for XML.
    pub(super) details: String,
    pub(super) fill: Rgb,
}

/// All boxes, parents before their children.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    pub(super) shapes: Vec<Shape>,
    /// How many were too narrow.
    pub(super) left_out: usize,
}

/// A viewer has to hold every box, and nobody reads more.
const MOST: usize = 12_000;
/// Narrower boxes are not drawn: a tenth of a pixel.
const NARROWEST: f64 = 0.1 / 1200.0;

impl Shapes {
    pub(super) fn of_tree(tree: &Tree, colouring: Colouring) -> Shapes {
        let nodes = tree.nodes();
        let whole = tree.total() as f64;
        Self::place(
            nodes.len(),
            whole,
            |at| nodes[at].children.as_slice(),
            |at| nodes[at].total.total() as f64,
            |at| {
                (
                    nodes[at].label.text(),
                    tree_details(&nodes[at], whole),
                    tree_colour(&nodes[at], colouring),
                )
            },
        )
    }

    pub(super) fn of_diff(diff: &Diff, per: Per, sides: (&str, &str)) -> Shapes {
        let nodes = diff.nodes();
        let whole = nodes[ROOT].width;
        Self::place(
            nodes.len(),
            whole,
            |at| nodes[at].children.as_slice(),
            |at| nodes[at].width,
            |at| {
                (
                    nodes[at].label.text(),
                    diff_details(&nodes[at], per, sides),
                    colour::by_change(nodes[at].change(), whole),
                )
            },
        )
    }

    fn place<'a>(
        nodes: usize,
        whole: f64,
        children: impl Fn(usize) -> &'a [usize],
        width: impl Fn(usize) -> f64,
        face: impl Fn(usize) -> (String, String, Rgb),
    ) -> Shapes {
        let mut shapes = Shapes::default();
        if whole <= 0.0 {
            return shapes;
        }
        let narrowest = narrowest((0..nodes).map(|at| width(at) / whole).collect());
        let mut open = vec![(ROOT, 0, 0.0)];
        let mut drawn = 0;
        while let Some((at, depth, x)) = open.pop() {
            let share = width(at) / whole;
            if share < narrowest {
                continue;
            }
            drawn += 1;
            let (text, details, fill) = face(at);
            shapes.shapes.push(Shape { depth, x, width: share, text, details, fill });
            let mut x = x;
            let first = open.len();
            for child in children(at) {
                open.push((*child, depth + 1, x));
                x += width(*child) / whole;
            }
            open[first..].reverse();
        }
        shapes.left_out = nodes - drawn;
        shapes
    }
}

/// So narrow that there are not too many.
fn narrowest(mut widths: Vec<f64>) -> f64 {
    widths.sort_by(|a, b| b.total_cmp(a));
    widths.get(MOST).map_or(NARROWEST, |width| width.max(NARROWEST))
}

fn tree_colour(node: &Node, colouring: Colouring) -> Rgb {
    let total = node.total.total();
    if matches!(node.label, Label::Root | Label::Process(_) | Label::Thread(..)) {
        return colour::GROUP;
    }
    if node.idle_ns > total / 2 {
        return colour::IDLE;
    }
    match colouring {
        Colouring::State => colour::by_state(&node.label, mostly(node)),
        Colouring::Ipc => colour::by_ipc(node.counters.as_ref()),
        Colouring::CacheMisses => colour::by_cache_misses(node.counters.as_ref()),
        Colouring::BranchMisses => colour::by_branch_misses(node.counters.as_ref()),
    }
}

/// The state in which most of a node's time was.
fn mostly(node: &Node) -> State {
    node.total.largest_first().first().map_or(State::Other, |(state, _)| *state)
}

fn tree_details(node: &Node, whole: f64) -> String {
    let total = node.total.total();
    let mut lines = vec![node.label.text()];
    lines.push(format!(
        "{}, {} of the picture",
        words::time(total as f64),
        words::share(total as f64 / whole)
    ));
    let own = node.own.total();
    if own > 0 && own < total {
        lines.push(format!("{} of it here, not in what it called", words::time(own as f64)));
    }
    if !node.lines.is_empty() {
        lines.push(line_shares(node, total));
    }
    let states = node.total.largest_first();
    let own_state = matches!(node.label, Label::State(_) | Label::NotSampled(_));
    if !own_state {
        let states = states.iter().take(4).map(|(state, ns)| {
            format!("{} {}", state.name(), words::share(*ns as f64 / total as f64))
        });
        lines.push(states.collect::<Vec<_>>().join(", "));
    }
    if node.idle_ns > 0 {
        lines.push(format!("idle: {}", words::share(node.idle_ns as f64 / total as f64)));
    }
    if let Some(counters) = &node.counters {
        let ipc = counters.ipc().map(|ipc| format!("{ipc:.2} instructions per cycle"));
        let misses = |each: Option<f64>, of: &str| {
            each.map(|misses| format!("{misses:.1} {of} misses per 1000 instructions"))
        };
        let cache = misses(counters.cache_misses_per_kilo(), "cache");
        let branch = misses(counters.branch_misses_per_kilo(), "branch");
        lines.extend([ipc, cache, branch].into_iter().flatten());
    }
    lines.extend(about(&node.label));
    escaped(&lines.join("\n"))
}

fn line_shares(node: &Node, total: u64) -> String {
    let mut lines: Vec<_> = node.lines.iter().collect();
    lines.sort_by_key(|(line, ns)| (std::cmp::Reverse(**ns), **line));
    let shown: Vec<_> = lines
        .iter()
        .take(5)
        .map(|(line, ns)| format!("{line} ({})", words::share(**ns as f64 / total as f64)))
        .collect();
    let more = if lines.len() > 5 { ", …" } else { "" };
    format!("at line {}{more}", shown.join(", "))
}

fn diff_details(node: &DiffNode, per: Per, (first, second): (&str, &str)) -> String {
    let unit = per.unit();
    let mut lines = vec![node.label.text()];
    lines.push(format!("{first}: {}{unit}", words::time(node.before)));
    lines.push(format!("{second}: {}{unit}", words::time(node.after)));
    let sign = if node.change() < 0.0 { "−" } else { "+" };
    let relative = if node.before > 0.0 {
        format!(" ({sign}{})", words::share(node.change().abs() / node.before))
    } else {
        String::from(" (new)")
    };
    lines.push(format!("change: {sign}{}{unit}{relative}", words::time(node.change().abs())));
    lines.extend(about(&node.label));
    escaped(&lines.join("\n"))
}

/// Where the function is, or what the box means.
fn about(label: &Label) -> Option<String> {
    match label {
        Label::Function(function) => {
            let place = if function.file.is_empty() { &function.module } else { &function.file };
            let kind = function.kind.name();
            Some(if place.is_empty() { kind.to_owned() } else { format!("{kind}, {place}") })
        }
        Label::Thread(_, pid, tid) => (*tid != 0).then(|| format!("process {pid}, thread {tid}")),
        Label::State(state) | Label::Wait(state, _) => Some(state.label().to_owned()),
        Label::NotSampled(state) => Some(format!(
            "{}: the ledger counts this time, and no sample fell into it: waits that still go on, or \
             events that were lost",
            state.label()
        )),
        Label::Truncated(_) => Some(String::from("outer frames are missing")),
        Label::NoStack => Some(String::from("the stack could not be taken, or its names are gone")),
        Label::Root | Label::Process(_) => None,
    }
}
