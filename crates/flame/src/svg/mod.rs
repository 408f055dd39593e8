//! Flame graphs as SVG: one file without references to anything outside, readable without scripts.
//!
//! The root is on top: stacks of a thousand frames are read from where they begin. With scripts, the
//! picture fits the window, a click zooms, `/` searches, arrow keys walk, Escape resets; zoom and search
//! are kept in the URL's fragment (`#zoom=N&search=TEXT`). The script finds what stands above the boxes in
//! the groups `.line` and `.key`, and sets it anew for the window's width.

mod boxes;
mod colour;
mod words;

use std::fmt::Write as _;

use serde::Serialize;
use underspan_model::{FrameKind, State};

use crate::diff::{Diff, Per};
use crate::tree::{ROOT, Tree};
use boxes::Shapes;
use words::{cut, escaped, share, wrapped};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 17.0;
/// Of the fixed-width font, at its size.
const CHARACTER: f64 = 6.65;
const LINE: f64 = 16.0;
/// From a colour of the legend to what it means, and from there to the next.
const KEY: f64 = 15.0;
const KEY_GAP: f64 = 18.0;

/// What colours mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colouring {
    /// What threads did.
    #[default]
    State,
    /// Instructions per cycle.
    Ipc,
    /// Cache misses per instruction.
    CacheMisses,
    /// Branches predicted wrongly, per instruction.
    BranchMisses,
}

/// What is said above the picture.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// What is shown.
    pub title: String,
    /// Of what, when, and what to know about it.
    pub lines: Vec<String>,
}

/// A call tree as a flame graph.
pub fn svg(tree: &Tree, heading: &Heading, colouring: Colouring) -> String {
    let shapes = Shapes::of_tree(tree, colouring);
    let (good, bad) = match colouring {
        Colouring::State => return document(&shapes, heading, &states(tree)),
        Colouring::Ipc => ("2 and more instructions per cycle", "0.5 and fewer: the core waits"),
        Colouring::CacheMisses => ("no cache misses", "10 and more per 1000 instructions"),
        Colouring::BranchMisses => ("no branch misses", "10 and more per 1000 instructions"),
    };
    let legend = [(LOW, good), (HIGH, bad), (colour::NEUTRAL, "not counted: waits, or no PMU")];
    document(&shapes, heading, &legend.map(|(colour, text)| (colour_text(colour), text.to_owned())))
}

/// A difference as a flame graph: as wide as the greater of both sides, red for more, blue for less.
/// `sides`: what the first and the second are called, such as `before` and `after`.
pub fn svg_diff(diff: &Diff, heading: &Heading, per: Per, sides: (&str, &str)) -> String {
    let (first, second) = sides;
    let entry = |change, text| (colour_text(colour::by_change(change, 1.0)), text);
    let legend = vec![
        entry(1.0, format!("{second}: more than {first}")),
        entry(0.0, String::from("the same")),
        entry(-1.0, format!("{second}: less than {first}")),
    ];
    document(&Shapes::of_diff(diff, per, sides), heading, &legend)
}

const LOW: u32 = 0x3d_75_ca;
const HIGH: u32 = 0xda_47_47;

fn colour_text(rgb: u32) -> String {
    format!("#{rgb:06x}")
}

/// The states of a tree with their shares; the shades of frames after them.
fn states(tree: &Tree) -> Vec<(String, String)> {
    let root = &tree.nodes()[ROOT];
    let whole = tree.total().max(1) as f64;
    let mut legend: Vec<_> = root
        .total
        .largest_first()
        .into_iter()
        .map(|(state, ns): (State, u64)| {
            (colour_text(state.colour()), format!("{} {}", state.name(), share(ns as f64 / whole)))
        })
        .collect();
    if root.idle_ns > 0 {
        legend.push((
            colour_text(colour::IDLE),
            format!("idle {}", share(root.idle_ns as f64 / whole)),
        ));
    }
    // Shown on the largest state's hue. Where there is one kind only, its shade says nothing.
    let kinds = kinds(tree);
    if let Some((state, _)) = root.total.largest_first().first()
        && kinds.len() > 1
    {
        let shades = kinds.into_iter().map(|kind| colour::shade_of(kind, *state));
        legend.extend(shades.map(|(shade, text)| (colour_text(shade), text.to_owned())));
    }
    legend
}

/// The kinds of functions in a tree.
fn kinds(tree: &Tree) -> Vec<FrameKind> {
    let functions = || tree.nodes().iter().filter_map(|node| node.label.function());
    let occurs = |kind: &FrameKind| functions().any(|function| function.kind == *kind);
    FrameKind::ALL.into_iter().filter(occurs).collect()
}

fn document(shapes: &Shapes, heading: &Heading, legend: &[(String, String)]) -> String {
    let characters = ((WIDTH - 2.0 * MARGIN) / CHARACTER) as usize;
    let mut lines: Vec<_> = heading.lines.iter().map(|line| wrapped(line, characters)).collect();
    if shapes.left_out > 0 {
        lines.push(vec![format!("{} boxes are too narrow to be drawn", shapes.left_out)]);
    }
    let legend = legend_rows(legend);
    let rows = lines.iter().map(Vec::len).sum::<usize>() + legend.len();
    let head = 34.0 + LINE * rows as f64 + 24.0;
    let depth = shapes.shapes.iter().map(|shape| shape.depth + 1).max().unwrap_or(1);
    let height = head + ROW * depth as f64 + MARGIN;

    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"group\" aria-label=\"{title}\" data-head=\"{head}\" data-row=\"{ROW}\" \
         data-margin=\"{MARGIN}\" data-character=\"{CHARACTER}\" data-line=\"{LINE}\">\n\
         <title>{title}</title>\n<style>{style}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"22\">{title}</text>\n",
        title = escaped(&heading.title),
        style = include_str!("style.css"),
    );
    let mut y = 40.0;
    for line in &lines {
        out.push_str("<g class=\"line\">");
        for row in line {
            let row = escaped(row);
            let _ = write!(out, "<text class=\"note\" x=\"{MARGIN}\" y=\"{y}\">{row}</text>");
            y += LINE;
        }
        out.push_str("</g>\n");
    }
    for row in legend {
        for (x, colour, text) in row {
            let _ = writeln!(
                out,
                "<g class=\"key\" transform=\"translate({x:.2} {y})\">\
                 <rect y=\"-10\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
                 <text class=\"note\" x=\"{KEY}\">{}</text></g>",
                escaped(&text),
            );
        }
        y += LINE;
    }
    let _ = writeln!(
        out,
        "<g id=\"tools\"></g>\n<text id=\"status\" class=\"note\" x=\"{MARGIN}\" y=\"{}\" aria-live=\"polite\"></text>",
        head - 8.0
    );
    out.push_str("<g id=\"boxes\">\n");
    for shape in &shapes.shapes {
        push_box(&mut out, shape, head);
    }
    let _ =
        write!(out, "</g>\n<script><![CDATA[\n{}]]></script>\n</svg>\n", include_str!("script.js"));
    out
}

fn push_box(out: &mut String, shape: &boxes::Shape, head: f64) {
    let inner = WIDTH - 2.0 * MARGIN;
    let (x, width) = (MARGIN + shape.x * inner, shape.width * inner);
    let y = head + shape.depth as f64 * ROW;
    let shown = cut(&shape.text, ((width - 6.0) / CHARACTER).max(0.0) as usize);
    let class = if colour::is_dark(shape.fill) { " class=\"d\"" } else { "" };
    let _ = writeln!(
        out,
        "<g{class} data-x=\"{:.9}\" data-w=\"{:.9}\" data-d=\"{}\"><title>{}</title>\
         <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"16\" fill=\"{}\"/>\
         <text x=\"{:.2}\" y=\"{}\">{}</text></g>",
        shape.x,
        shape.width,
        shape.depth,
        shape.details,
        colour_text(shape.fill),
        x + 3.0,
        y + 12.0,
        escaped(&shown),
    );
}

/// Entries side by side, in as many rows as it takes.
fn legend_rows(entries: &[(String, String)]) -> Vec<Vec<(f64, String, String)>> {
    let mut rows: Vec<Vec<_>> = Vec::new();
    let mut x = WIDTH;
    for (colour, text) in entries {
        let width = KEY + KEY_GAP + text.chars().count() as f64 * CHARACTER;
        if x + width > WIDTH - MARGIN {
            rows.push(Vec::new());
            x = MARGIN;
        }
        if let Some(row) = rows.last_mut() {
            row.push((x, colour.clone(), text.clone()));
        }
        x += width;
    }
    rows
}
