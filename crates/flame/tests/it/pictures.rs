//! The SVG, as any XML reader sees it.

use insta::assert_snapshot;
use underspan_flame::svg::{Colouring, Heading, svg, svg_diff};
use underspan_flame::{Diff, Grouping, Per, Side, Tree};

use crate::story;

fn grouping() -> Grouping {
    Grouping { process: true, thread: true, states: true, ..Grouping::default() }
}

fn heading() -> Heading {
    Heading { title: String::from("A & B < C"), lines: vec![String::from("one line")] }
}

/// What is drawn, without styles and scripts.
fn boxes(svg: &str) -> String {
    let from = svg.find("<g id=\"boxes\">").unwrap();
    let to = svg.find("<script>").unwrap();
    svg[from..to].to_owned()
}

#[test]
fn a_picture_of_states() {
    let tree = Tree::new(&story::samples(), grouping());
    let picture = svg(&tree, &heading(), Colouring::State);
    assert!(picture.contains("aria-label=\"A &amp; B &lt; C\""));
    assert_snapshot!(boxes(&picture));
}

#[test]
fn a_picture_of_what_the_cpu_counted() {
    let tree = Tree::new(&story::samples()[3..7], Grouping::default());
    assert_snapshot!(boxes(&svg(&tree, &heading(), Colouring::Ipc)));
}

#[test]
fn a_picture_of_a_difference() {
    let samples = story::samples();
    let (before, after) =
        (Tree::new(&samples[1..4], grouping()), Tree::new(&samples[2..6], grouping()));
    let side = |tree| Side { tree, requests: 1, range_ns: 1 };
    let diff = Diff::new(side(&before), side(&after), Per::Request);
    assert_snapshot!(boxes(&svg_diff(&diff, &heading(), Per::Request, ("before", "after"))));
}

#[test]
fn nothing_outside_the_file_is_needed() {
    let tree = Tree::new(&story::samples(), grouping());
    let picture = svg(&tree, &heading(), Colouring::State);
    let links = picture.matches("http").count();
    // The two namespaces: the document's own, and the script's for the document and the search box.
    assert_eq!(links, picture.matches("http://www.w3.org/").count());
    assert!(!picture.contains("url(") && !picture.contains("href"));
}

#[test]
fn long_notes_stay_in_the_picture() {
    let heading = Heading { lines: vec!["so many words ".repeat(40)], ..heading() };
    let picture = svg(&Tree::new(&story::samples(), grouping()), &heading, Colouring::State);
    let notes: Vec<_> =
        picture.split("<text").filter(|text| text.contains("so many words")).collect();
    assert_eq!(notes.len(), 4);
    assert!(notes.iter().all(|text| text.len() < 260));
    // The script sets them anew for the window's width: it finds all of a note in one group.
    assert_eq!(picture.lines().filter(|line| line.contains("so many words")).count(), 1);
}

/// Shades that do not occur mean nothing.
#[test]
fn the_legend_tells_of_kinds_that_occur() {
    let worker = story::thread(1, "worker");
    let state = underspan_model::State::Running;
    let meanings = |frames: &[&str]| {
        let samples = [story::sample(&worker, 0, 1_000_000, state, &story::stack(frames))];
        let picture = svg(&Tree::new(&samples, grouping()), &heading(), Colouring::State);
        let all = ["light: Python", "medium: native", "dark: kernel"];
        all.into_iter().filter(|meaning| picture.contains(meaning)).collect::<Vec<_>>()
    };
    assert_eq!(meanings(&["native f", "kernel g"]), ["medium: native", "dark: kernel"]);
    assert!(meanings(&["native f", "native g"]).is_empty());
}

#[test]
fn a_picture_of_nothing_is_a_picture() {
    let picture = svg(&Tree::new(&[], grouping()), &heading(), Colouring::State);
    assert!(picture.contains("one line") && picture.ends_with("</svg>\n"));
}

#[test]
fn too_many_boxes_are_told() {
    let worker = story::thread(1, "worker");
    let samples: Vec<_> = (0..5000)
        .map(|i| {
            let frames = [1, 2, 3].map(|depth| format!("native f{i}_{depth}"));
            let code = story::stack(&frames.each_ref().map(String::as_str));
            story::sample(&worker, 0, 5000 + i, underspan_model::State::Running, &code)
        })
        .collect();
    let picture = svg(&Tree::new(&samples, Grouping::default()), &heading(), Colouring::State);
    let drawn = boxes(&picture).matches("<rect").count();
    assert!((10_000..=12_100).contains(&drawn), "{drawn}");
    assert!(picture.contains(&format!("{} boxes are too narrow", 15_001 - drawn)));
}
