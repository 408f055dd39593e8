//! A picture in a few numbers.

use std::collections::BTreeMap;

use serde::Serialize;
use underspan_model::{Frame, FrameKind, Ledger, most_telling};

use crate::kind::is_on_cpu;
use crate::label::{Function, Label};
use crate::sample::{Place, Sample};

/// How many functions are named.
const TOP: usize = 5;

/// What samples sum to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// All of them, in nanoseconds.
    pub total_ns: u64,
    /// Those that merely waited for something to do.
    pub idle_ns: u64,
    /// Those without a stack: it could not be taken, or its names are gone.
    pub no_stack_ns: u64,
    /// Those whose stack lacks its outer frames.
    pub truncated_ns: u64,
    /// Time that the ledger counts and no sample stands for.
    pub not_sampled_ns: u64,
    /// How many samples there are.
    pub samples: u64,
    /// Nanoseconds by state.
    pub states: Ledger,
    /// Where most of the time that is not idle was, longest first: by the function of a stack that says
    /// most ([`most_telling`]).
    pub top: Vec<Share>,
}

/// A function's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Its name.
    pub function: String,
    /// Its source file, or empty.
    pub file: String,
    /// The line at which most of the time was, or 0.
    pub line: u32,
    /// Its executable or library, or empty.
    pub module: String,
    /// `python`, `native` or `kernel`.
    pub kind: &'static str,
    /// Nanoseconds.
    pub ns: u64,
    /// Of all time that is not idle, from 0 to 1.
    pub share: f64,
}

impl Summary {
    /// Sums samples up.
    pub fn of(samples: &[Sample]) -> Summary {
        let mut summary = Summary::default();
        let mut functions: BTreeMap<Function, (u64, BTreeMap<u32, u64>)> = BTreeMap::new();
        for sample in samples {
            let ns = sample.weight_ns;
            add(&mut summary.total_ns, ns);
            add(&mut summary.states[sample.state], ns);
            summary.samples = summary.samples.saturating_add(sample.count);
            match &sample.place {
                Place::NoStack => add(&mut summary.no_stack_ns, ns),
                Place::NotSampled => add(&mut summary.not_sampled_ns, ns),
                Place::Stack(stack) if stack.truncated.is_empty() => {}
                Place::Stack(_) => add(&mut summary.truncated_ns, ns),
            }
            if sample.idle {
                add(&mut summary.idle_ns, ns);
            } else if let Some(frame) = telling(sample) {
                let (total, lines) = functions.entry(Function::of(frame, false)).or_default();
                add(total, ns);
                add(lines.entry(frame.line).or_default(), ns);
            }
        }
        let busy = summary.total_ns.saturating_sub(summary.idle_ns);
        let mut top: Vec<_> = functions.into_iter().collect();
        top.sort_by(|(a, (x, _)), (b, (y, _))| (y, a).cmp(&(x, b)));
        summary.top =
            top.into_iter().take(TOP).map(|(f, (ns, lines))| share(f, ns, &lines, busy)).collect();
        summary
    }
}

fn share(function: Function, ns: u64, lines: &BTreeMap<u32, u64>, whole: u64) -> Share {
    let line = lines.iter().max_by_key(|(line, ns)| (**ns, std::cmp::Reverse(**line)));
    Share {
        line: line.map_or(0, |(line, _)| *line),
        kind: function.kind.name(),
        function: function.name,
        file: function.file,
        module: function.module,
        ns,
        share: ns as f64 / whole.max(1) as f64,
    }
}

/// The frame that says most about a sample.
fn telling(sample: &Sample) -> Option<&Frame> {
    let frames = || sample.stack().into_iter().flat_map(|stack| stack.frames.iter().rev());
    let at = most_telling(frames().map(Frame::code), is_on_cpu(sample.state))?;
    frames().nth(at)
}

/// The function that says most about the time that ends at a box. `path`: from the outermost box to it.
pub fn telling_function<'a>(path: &[&'a Label]) -> Option<&'a Function> {
    let functions = || path.iter().rev().filter_map(|label| label.function());
    let runs = matches!(path.last(), Some(Label::State(state)) if is_on_cpu(*state));
    let at = most_telling(functions().map(Function::code), runs)?;
    functions().nth(at)
}

impl Share {
    /// As in pictures: `export (reports.py:88)`, `inflate_fast`, `futex_wait_[k]`.
    pub fn name(&self) -> String {
        Label::Function(Function {
            name: self.function.clone(),
            file: self.file.clone(),
            module: self.module.clone(),
            line: self.line,
            kind: FrameKind::from_name(self.kind).unwrap_or(FrameKind::Native),
        })
        .text()
    }
}

fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}
