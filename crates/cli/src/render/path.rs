//! The critical path: who was on it, for how long, doing what.

use underspan_explain::Explanation;
use underspan_explain::words::{self, duration};
use underspan_model::PathStep;

use super::Ink;
use super::explanation::hanging;

/// Lines at the most; the longest stretches are shown.
const LINES: usize = 12;

/// Waits below the threshold have no rows of their own.
const RUN: &str = "running or in short waits";

/// A stretch in which one thread is on the path.
struct Stretch<'a> {
    first: &'a PathStep,
    ns: u64,
    /// Nanoseconds by state.
    states: Vec<(&'static str, u64)>,
}

pub(super) fn path(it: &Explanation, width: usize, ink: Ink) -> String {
    let stretches = stretches(&it.path);
    let mut shown: Vec<_> = (0..stretches.len()).collect();
    shown.sort_by_key(|n| std::cmp::Reverse(stretches[*n].ns));
    shown.truncate(LINES);
    shown.sort_unstable();
    let begin = it.path.first().map_or(0, |step| step.start_time);
    let mut text = String::new();
    for stretch in shown.iter().map(|n| &stretches[*n]) {
        let at = stretch.first.start_time.saturating_sub(begin);
        let label = format!("  +{:<10} {:>11}  ", duration(at), duration(stretch.ns));
        let doing = stretch.states.iter().map(|(state, ns)| format!("{state} {}", duration(*ns)));
        let doing: Vec<_> = doing.collect();
        let request = &it.request;
        let who = match stretch.first.depth {
            0 if stretch.first.tid == request.tid => String::from("its own thread"),
            0 => format!("{}, which answered", named(stretch.first)),
            _ if stretch.first.tid == request.tid => {
                format!("{}, which read it", named(stretch.first))
            }
            _ => named(stretch.first),
        };
        text += &hanging(&label, &format!("{who}: {}", doing.join(", ")), width, str::to_owned);
    }
    let left_out = stretches.len() - shown.len();
    if left_out > 0 {
        let noun = if left_out == 1 { "stretch" } else { "stretches" };
        text += &ink.dim(&format!("  and {left_out} shorter {noun}\n"));
    }
    text
}

fn named(step: &PathStep) -> String {
    match step.process.as_str() {
        "" => format!("{} ({})", step.thread, step.tid),
        process => words::thread(&step.thread, step.tid, step.pid, process),
    }
}

/// Steps of one thread that follow each other, together.
fn stretches(path: &[PathStep]) -> Vec<Stretch<'_>> {
    let mut stretches: Vec<Stretch<'_>> = Vec::new();
    for step in path {
        if stretches.last().is_none_or(|last| last.first.tid != step.tid) {
            stretches.push(Stretch { first: step, ns: 0, states: Vec::new() });
        }
        let Some(last) = stretches.last_mut() else { continue };
        last.ns = last.ns.saturating_add(step.duration_ns);
        let name = match step.kind.as_str() {
            "unknown" => "not known",
            "run" => RUN,
            _ => step.state.name(),
        };
        match last.states.iter_mut().find(|(state, _)| *state == name) {
            Some((_, ns)) => *ns = ns.saturating_add(step.duration_ns),
            None => last.states.push((name, step.duration_ns)),
        }
    }
    for stretch in &mut stretches {
        stretch.states.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    }
    stretches
}

#[cfg(test)]
mod tests {
    use underspan_model::State;

    use super::*;

    #[test]
    fn a_thread_of_another_process_is_named_with_it() {
        let mut step = PathStep {
            pid: 10,
            tid: 12,
            thread: "main".to_owned(),
            process: String::new(),
            start_time: 0,
            duration_ns: 1,
            step: 0,
            depth: 1,
            kind: "run".to_owned(),
            state: State::Running,
        };
        assert_eq!(named(&step), "main (12)");
        step.process = "convert".to_owned();
        assert_eq!(named(&step), "thread main of convert (pid 10)");
    }
}
