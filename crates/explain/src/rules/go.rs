//! Go: a thread runs many goroutines, and a goroutine on many threads. What the thread that read a request does and
//! waits for is its scheduler's business; only a stack that is the request's own goroutine's shows more.

use underspan_model::{Frame, State};

use crate::case::Case;
use crate::finding::{Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::words;

/// Where the stacks of goroutines, and of the scheduler's threads, begin.
const BEGINNINGS: [&str; 4] =
    ["runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.mcall"];

/// In whose goroutines requests are served: one goroutine to a connection.
const SERVING: [&str; 3] = [
    "net/http.(*conn).serve",
    "google.golang.org/grpc.(*Server).handleStream",
    "github.com/valyala/fasthttp.(*workerPool).workerFunc",
];

const LOOK: &str = "Look at where its goroutines wait (`underspan flame --kind goroutine`): what is runnable there waits for \
    one of GOMAXPROCS to be free";

/// Whether the request's process runs Go.
pub(super) fn is_go(case: &Case<'_>) -> bool {
    let begins = |frame: &Frame| BEGINNINGS.iter().any(|name| frame.function.starts_with(name));
    // A lock's holder, or a peer, may be of another process.
    let own = case.samples.iter().filter(|sample| sample.pid == case.request.pid);
    own.flat_map(|sample| &sample.stack.frames).any(begins)
}

/// The time until the request was read. Threads that were free mean little: a goroutine needs a thread that may run
/// Go code, of which there are GOMAXPROCS.
pub(super) fn queues(case: &Case<'_>, explained: &Cover) -> Vec<Finding> {
    let window = &case.window;
    let phases = [
        (Kind::AcceptQueue, "accept_queue", window.accept_queue, "accepted its connection"),
        (Kind::Handoff, "handoff", window.handoff, "read it"),
    ];
    let late = |(kind, part, phase, done): (Kind, &'static str, Interval, &str)| {
        let at = Cover::from(phase).subtract(explained);
        let ns = at.total();
        if !case.worth(ns, INTERFERENCE) {
            return None;
        }
        let text = format!(
            "The request waited {} until a goroutine {done}; what the others did meanwhile, rows of threads do not tell",
            words::duration(ns)
        );
        Some(case.draft(kind, &[(part, ns)]).located(case, &at).say(text, LOOK))
    };
    phases.into_iter().filter_map(late).collect()
}

/// A finding about what the thread did, as far as it holds for the request.
pub(super) fn doubted(case: &Case<'_>, finding: Finding) -> Finding {
    match finding.kind {
        // They hold up every thread.
        Kind::Throttled | Kind::AcceptQueue | Kind::Handoff => finding,
        Kind::Running if computed_itself(case) => finding,
        _ => {
            let said = "its thread is one of Go's scheduler, and may have run or waited for other goroutines than this \
                request's";
            Finding {
                relation: Relation::Unknown,
                culprit: None,
                text: format!("{}; {said}", finding.text),
                advice: String::from(LOOK),
                ..finding
            }
        }
    }
}

/// Whether nearly all that was sampled while the thread ran was a goroutine that serves requests.
fn computed_itself(case: &Case<'_>) -> bool {
    let serves = |frame: &Frame| SERVING.iter().any(|name| frame.function.starts_with(name));
    let (mut own, mut all) = (0u64, 0u64);
    for sample in case.samples.iter().filter(|s| s.tid == case.request.tid) {
        let ran = Interval::new(sample.start_time, sample.duration_ns);
        if sample.state != State::Running || case.window.handler.overlap(ran).len() == 0 {
            continue;
        }
        all = all.saturating_add(sample.weight_ns);
        if sample.stack.frames.iter().any(serves) {
            own = own.saturating_add(sample.weight_ns);
        }
    }
    crate::case::proven(own, all)
}
