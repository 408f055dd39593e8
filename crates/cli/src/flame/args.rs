//! Options of `underspan flame`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use underspan_evidence::flame::{FlameQuery, ThreadFilter};
use underspan_flame::svg::Colouring;
use underspan_flame::{Grouping, Kind, Per};

use super::time::{Instant, Range};
use crate::diff::method_and_path;
use crate::failure::{Failure, USAGE};
use crate::interval::duration;

const HOUR: u64 = 3_600_000_000_000;

/// Options of `underspan flame`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which time to show
    #[arg(long, value_name = "KIND", default_value = "wall")]
    #[arg(help_heading = "What to show")]
    kind: KindName,
    /// File to write; its ending says the format
    #[arg(long, short, value_name = "FILE")]
    #[arg(help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
    /// Format, where the file's ending does not say it; without a file, to standard output
    #[arg(long, value_name = "FORMAT")]
    #[arg(help_heading = "Output")]
    pub(super) format: Option<Format>,

    /// Only the last such time, such as 90s, 15m, 2h [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    #[arg(conflicts_with_all = ["since", "until"])]
    #[arg(help_heading = "Time range")]
    last: Option<std::time::Duration>,
    /// From this time on: 10m (ago), 12:30, '2026-03-02 12:30' (UTC), or with an offset
    #[arg(long, value_name = "TIME", value_parser = Instant::parse)]
    #[arg(help_heading = "Time range")]
    since: Option<Instant>,
    /// Up to this time
    #[arg(long, value_name = "TIME", value_parser = Instant::parse)]
    #[arg(help_heading = "Time range")]
    until: Option<Instant>,
    /// Only this process
    #[arg(long, value_name = "PID")]
    #[arg(help_heading = "Filters")]
    pid: Option<u32>,
    /// Only processes with this name
    #[arg(long, value_name = "NAME", visible_alias = "comm")]
    #[arg(help_heading = "Filters")]
    process: Option<String>,
    /// Only threads with this name, or the thread with this id
    #[arg(long, value_name = "NAME|TID")]
    #[arg(help_heading = "Filters")]
    thread: Option<String>,
    /// Only while threads served this route, such as 'GET /export' or '/export'
    #[arg(long, value_name = "ROUTE")]
    #[arg(help_heading = "Filters")]
    pub(super) route: Option<String>,
    /// Only while a thread served this request
    #[arg(long, value_name = "ID", conflicts_with_all = ["route", "trace"])]
    #[arg(help_heading = "Filters")]
    pub(super) request: Option<String>,
    /// Only while threads served requests of this trace
    #[arg(long, value_name = "ID", conflicts_with = "route")]
    #[arg(help_heading = "Filters")]
    pub(super) trace: Option<String>,

    /// Compare requests slower than this percentile with those faster than that of --vs
    #[arg(long, value_name = "PERCENTILE", value_parser = percentile)]
    #[arg(conflicts_with_all = ["request", "trace", "before", "after"])]
    #[arg(help_heading = "Differences")]
    pub(super) slow: Option<f64>,
    /// Fast requests: `p50`, or `fast p50` [default: p50]
    #[arg(long, value_name = "PERCENTILE", num_args = 1..=2, requires = "slow")]
    #[arg(help_heading = "Differences")]
    vs: Option<Vec<String>>,
    /// Compare this time range, FROM..UNTIL, with that of --after
    #[arg(long, value_name = "RANGE", value_parser = Range::parse, requires = "after")]
    #[arg(conflicts_with_all = ["last", "since", "until", "request", "trace"])]
    #[arg(help_heading = "Differences")]
    pub(super) before: Option<Range>,
    /// The later time range
    #[arg(long, value_name = "RANGE", value_parser = Range::parse, requires = "before")]
    #[arg(help_heading = "Differences")]
    pub(super) after: Option<Range>,
    /// What to compare [default: request, or second where there are none]
    #[arg(long, value_name = "WHAT")]
    #[arg(help_heading = "Differences")]
    pub(super) per: Option<PerName>,

    /// Show idle waits too, in grey
    #[arg(long)]
    #[arg(help_heading = "What to show")]
    pub(super) idle: bool,
    /// Boxes per process name, per thread, or neither
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "process")]
    #[arg(help_heading = "What to show")]
    by: Vec<By>,
    /// The same function at two lines is two boxes
    #[arg(long)]
    #[arg(help_heading = "What to show")]
    lines: bool,
    /// What colours mean
    #[arg(
        long = "colour-by",
        visible_alias = "color-by",
        value_name = "WHAT",
        default_value = "state"
    )]
    #[arg(help_heading = "What to show")]
    colouring: ColouringName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindName {
    /// On a CPU
    Cpu,
    /// Not on a CPU
    OffCpu,
    /// Both
    Wall,
    /// Waiting for the interpreter lock
    Gil,
    /// Waiting for another lock
    Lock,
    /// Collecting garbage, or waiting for a sibling that does
    Gc,
    /// Stalls of event loops
    Loop,
    /// Go's goroutines
    Goroutine,
}

/// A file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Flame graph (.svg)
    Svg,
    /// Folded stacks, for flame graph scripts (.folded, .collapsed, .txt)
    Folded,
    /// For `go tool pprof` (.pb.gz, .pprof)
    Pprof,
    /// For speedscope.app (.speedscope.json)
    Speedscope,
    /// For profiler.firefox.com (.firefox.json)
    Firefox,
    /// For ui.perfetto.dev (.pftrace, .perfetto-trace)
    Perfetto,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PerName {
    /// Nanoseconds per request
    Request,
    /// Nanoseconds per second of the range
    Second,
    /// Shares of each picture
    Share,
    /// Nanoseconds
    Absolute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Process,
    Thread,
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ColouringName {
    /// What threads did
    State,
    /// Instructions per cycle
    Ipc,
    /// Cache misses per instruction
    CacheMisses,
    /// Branches predicted wrongly, per instruction
    BranchMisses,
}

impl Args {
    pub(super) fn kind(&self) -> Kind {
        match self.kind {
            KindName::Cpu => Kind::Cpu,
            KindName::OffCpu => Kind::OffCpu,
            KindName::Wall => Kind::Wall,
            KindName::Gil => Kind::Gil,
            KindName::Lock => Kind::Lock,
            KindName::Gc => Kind::Gc,
            KindName::Loop => Kind::Loop,
            KindName::Goroutine => Kind::Goroutine,
        }
    }

    pub(super) fn grouping(&self) -> Grouping {
        let has = |by: By| self.by.contains(&by) && !self.by.contains(&By::None);
        Grouping {
            process: has(By::Process),
            thread: has(By::Thread),
            by_name: self.slow.is_some() || self.before.is_some(),
            lines: self.lines,
            // Where there is one state only, it says nothing.
            states: self.kind().states().count() > 1,
        }
    }

    pub(super) fn colouring(&self) -> Colouring {
        match self.colouring {
            ColouringName::State => Colouring::State,
            ColouringName::Ipc => Colouring::Ipc,
            ColouringName::CacheMisses => Colouring::CacheMisses,
            ColouringName::BranchMisses => Colouring::BranchMisses,
        }
    }

    pub(super) fn per(&self) -> Option<Per> {
        self.per.map(|per| match per {
            PerName::Request => Per::Request,
            PerName::Second => Per::Second,
            PerName::Share => Per::Share,
            PerName::Absolute => Per::Absolute,
        })
    }

    /// The time range and the filters that need no requests.
    pub(super) fn query(&self, now: u64) -> anyhow::Result<FlameQuery> {
        let last =
            self.last.map_or(HOUR, |last| u64::try_from(last.as_nanos()).unwrap_or(u64::MAX));
        let until = self.until.unwrap_or(Instant::Ago(0)).resolve(now);
        let since = self.since.map_or_else(
            || {
                if self.until.is_some() {
                    until.saturating_sub(last)
                } else {
                    now.saturating_sub(last)
                }
            },
            |since| since.resolve(now),
        );
        self.query_of(since, until)
    }

    /// The same filters in another range.
    pub(super) fn query_of(&self, since: u64, until: u64) -> anyhow::Result<FlameQuery> {
        if since >= until {
            return Err(Failure::new("the time range is empty: it ends before it begins")
                .hint(
                    "durations count back from now: --since 20m --until 10m, or --before 20m..10m",
                )
                .status(USAGE)
                .into());
        }
        let thread = self.thread.as_ref().map(|thread| match thread.parse() {
            Ok(tid) => ThreadFilter::Id(tid),
            Err(_) => ThreadFilter::Name(thread.clone()),
        });
        Ok(FlameQuery {
            kind: self.kind(),
            since,
            until,
            pid: self.pid,
            process: self.process.clone(),
            thread,
        })
    }

    /// Method and path; each may be empty.
    pub(super) fn method_and_path(&self) -> (String, String) {
        method_and_path(self.route.as_deref().unwrap_or_default())
    }

    /// The percentile of fast requests.
    pub(super) fn fast(&self) -> anyhow::Result<f64> {
        let words: Vec<&str> = self.vs.iter().flatten().map(String::as_str).collect();
        let text = match words[..] {
            [] => "p50",
            [text] | ["fast", text] => text,
            _ => return Err(usage("--vs takes a percentile: --vs p50")),
        };
        percentile(text).map_err(|error| usage(&format!("--vs {text}: {error}")))
    }

    /// Whether the picture is of requests, not of a time range.
    pub(super) fn is_of_requests(&self) -> bool {
        let one = self.route.is_some() || self.request.is_some() || self.trace.is_some();
        one || self.slow.is_some()
    }

    /// What the picture is restricted to, for its heading.
    pub(super) fn filters(&self) -> Vec<String> {
        let pid = self.pid.map(|pid| format!("process {pid}"));
        let named = |what: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{what} {value}"))
        };
        pid.into_iter()
            .chain(self.process.clone())
            .chain(named("thread", &self.thread))
            .chain(self.route.clone())
            .chain(named("request", &self.request))
            .chain(named("trace", &self.trace))
            .collect()
    }

    /// The output's format: as asked for, or by the file's ending.
    pub(super) fn format(&self) -> anyhow::Result<Option<Format>> {
        match (self.format, &self.output) {
            (Some(format), _) => Ok(Some(format)),
            (None, None) => Ok(None),
            (None, Some(path)) => Format::of(path).map(Some).ok_or_else(|| {
                Failure::new(format!("{}: the ending says no format", path.display()))
                    .hint("end it in .svg, .folded, .pb.gz, .speedscope.json, .firefox.json or .pftrace, or give --format")
                    .status(USAGE)
                    .into()
            }),
        }
    }
}

impl Format {
    fn of(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let endings = [
            (".svg", Format::Svg),
            (".folded", Format::Folded),
            (".collapsed", Format::Folded),
            (".txt", Format::Folded),
            (".pb.gz", Format::Pprof),
            (".pprof", Format::Pprof),
            ("speedscope.json", Format::Speedscope),
            ("speedscope", Format::Speedscope),
            ("firefox.json", Format::Firefox),
            (".pftrace", Format::Perfetto),
            (".perfetto-trace", Format::Perfetto),
            ("perfetto", Format::Perfetto),
        ];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Svg => "svg",
            Format::Folded => "folded",
            Format::Pprof => "pprof",
            Format::Speedscope => "speedscope",
            Format::Firefox => "firefox",
            Format::Perfetto => "perfetto",
        }
    }
}

/// `p95`, `95` or `p99.9`.
fn percentile(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_start_matches(['p', 'P']);
    match number.parse::<f64>() {
        Ok(p) if (0.0..100.0).contains(&p) => Ok(p),
        _ => Err(String::from("give a percentile such as p95")),
    }
}

fn usage(message: &str) -> anyhow::Error {
    Failure::new(message).status(USAGE).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_format() {
        for (name, format) in [
            ("out.svg", Some(Format::Svg)),
            ("a/b.PB.GZ", Some(Format::Pprof)),
            ("x.speedscope.json", Some(Format::Speedscope)),
            ("trace.pftrace", Some(Format::Perfetto)),
            ("x.firefox.json", Some(Format::Firefox)),
            ("x.json", None),
            ("x", None),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn percentiles_are_below_a_hundred() {
        assert_eq!(percentile("p99.9"), Ok(99.9));
        assert_eq!(percentile("50"), Ok(50.0));
        assert!(percentile("p100").is_err() && percentile("slow").is_err());
    }
}
