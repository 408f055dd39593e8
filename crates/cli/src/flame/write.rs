//! Writing a picture in a format.

use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;
use underspan_flame::pprof::Header;
use underspan_flame::svg::Heading;
use underspan_flame::{Diff, Per, Side, Timeline, Tree};
use underspan_flame::{firefox, folded, perfetto, pprof, speedscope, svg};

use super::args::Format;
use super::picture::Picture;
use super::{Args, Found, summary};

/// Two pictures.
pub(super) struct Comparison {
    pub(super) per: Per,
    /// Or fast requests.
    pub(super) before: Picture,
    /// Or slow requests.
    pub(super) after: Picture,
}

/// A file that was written.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Output {
    pub(super) path: PathBuf,
    pub(super) format: &'static str,
    pub(super) bytes: usize,
}

/// The file's bytes.
pub(super) fn bytes(found: &Found, args: &Args, format: Format) -> anyhow::Result<Vec<u8>> {
    match found {
        Found::One(picture, timeline) => one(picture, timeline.as_ref(), args, format),
        Found::Two(comparison) => difference(comparison, args, format),
    }
}

fn one(
    picture: &Picture,
    timeline: Option<&Timeline>,
    args: &Args,
    format: Format,
) -> anyhow::Result<Vec<u8>> {
    let samples = picture.shown(args.idle);
    let heading = summary::heading(picture, args);
    let tree = || Tree::new(&samples, args.grouping());
    Ok(match format {
        Format::Svg => svg::svg(&tree(), &heading, args.colouring()).into_bytes(),
        Format::Folded => folded::folded(&tree()).into_bytes(),
        Format::Pprof => pprof::pprof(&samples, &header(picture, &heading))
            .context("cannot compress the profile")?,
        Format::Speedscope => {
            speedscope::speedscope(&samples, &heading.title).context("cannot write JSON")?
        }
        Format::Firefox | Format::Perfetto => {
            let mut timeline = timeline.cloned().unwrap_or_default();
            timeline.title = heading.title;
            timeline.samples.retain(|sample| args.idle || !sample.idle);
            if format == Format::Perfetto {
                return Ok(perfetto::perfetto(&timeline));
            }
            firefox::firefox(&timeline).context("cannot write JSON")?
        }
    })
}

fn difference(comparison: &Comparison, args: &Args, format: Format) -> anyhow::Result<Vec<u8>> {
    let heading = summary::heading_of_two(comparison, args);
    let diff = diff(comparison, args);
    Ok(match format {
        Format::Folded => folded::folded_diff(&diff).into_bytes(),
        Format::Pprof => pprof::pprof_diff(&diff, &header(&comparison.after, &heading))
            .context("cannot compress the profile")?,
        _ => svg::svg_diff(&diff, &heading, comparison.per, summary::names(args)).into_bytes(),
    })
}

/// The two trees, merged.
pub(super) fn diff(comparison: &Comparison, args: &Args) -> Diff {
    let tree = |picture: &Picture| Tree::new(&picture.shown(args.idle), args.grouping());
    let (before, after) = (tree(&comparison.before), tree(&comparison.after));
    Diff::new(side(&before, &comparison.before), side(&after, &comparison.after), comparison.per)
}

fn side<'a>(tree: &'a Tree, picture: &Picture) -> Side<'a> {
    let (requests, range_ns) = picture.size();
    Side { tree, requests, range_ns }
}

fn header(picture: &Picture, heading: &Heading) -> Header {
    let heaviest = picture.samples.iter().max_by_key(|sample| sample.weight_ns);
    Header {
        program: heaviest.map(|sample| sample.thread.process.clone()).unwrap_or_default(),
        start_time: picture.query.since,
        duration_ns: picture.query.until - picture.query.since,
        comments: std::iter::once(&heading.title).chain(&heading.lines).cloned().collect(),
    }
}
