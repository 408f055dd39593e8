//! Writes every export of a made-up service into a folder, for other programs to read.

// An example may stop where it stands.
#![allow(clippy::unwrap_used)]

#[path = "../tests/story/mod.rs"]
mod story;

use std::path::PathBuf;

use underspan_flame::pprof::Header;
use underspan_flame::svg::{Colouring, Heading};
use underspan_flame::{Diff, Grouping, Per, Side, Tree};
use underspan_flame::{firefox, folded, perfetto, pprof, speedscope, svg};

fn main() {
    let folder = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| ".".into()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();

    let samples = story::samples();
    let grouping = Grouping { process: true, thread: true, states: true, ..Grouping::default() };
    let tree = Tree::new(&samples, grouping);
    let heading = Heading {
        title: String::from("Wall-clock time of gunicorn"),
        lines: vec![String::from("2026-02-02 02:40:00 to 02:40:01 UTC, 733 ms")],
    };
    write("wall.svg", svg::svg(&tree, &heading, Colouring::State).as_bytes());
    write("ipc.svg", svg::svg(&tree, &heading, Colouring::Ipc).as_bytes());
    write("wall.folded", folded::folded(&tree).as_bytes());
    let header = Header {
        program: String::from("gunicorn"),
        start_time: story::T0,
        duration_ns: 1_000_000_000,
        comments: heading.lines.clone(),
    };
    write("wall.pb.gz", &pprof::pprof(&samples, &header).unwrap());
    write("wall.speedscope.json", &speedscope::speedscope(&samples, &heading.title).unwrap());
    write("wall.firefox.json", &firefox::firefox(&story::timeline()).unwrap());
    write("wall.pftrace", &perfetto::perfetto(&story::timeline()));

    let faster: Vec<_> = samples.iter().skip(2).cloned().collect();
    let after = Tree::new(&faster, grouping);
    let side = |tree| Side { tree, requests: 1, range_ns: 1_000_000_000 };
    let diff = Diff::new(side(&tree), side(&after), Per::Request);
    write("diff.svg", svg::svg_diff(&diff, &heading, Per::Request, ("before", "after")).as_bytes());
    write("diff.folded", folded::folded_diff(&diff).as_bytes());
    write("diff.pb.gz", &pprof::pprof_diff(&diff, &header).unwrap());
}
