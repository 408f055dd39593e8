//! One request's evidence, put in order for the rules, and how a rule states what it found.

use std::collections::{BTreeMap, BTreeSet};

use underspan_model::{
    Frame, FrameKind, GcPause, GilWait, Idle, LoopStall, Request, Sample, State, TcpAccept,
    TcpConnect, TcpListener, TcpLoss, Wait, idle,
};

use crate::Evidence;
use crate::finding::{Culprit, Finding, Kind, PROOF, Part, Relation, RowRef, Threshold};
use crate::interval::{Cover, Interval};
use crate::losses::gaps;
use crate::place::{Place, mostly};
use crate::server::Server;
use crate::socket::{Ends, Socket, sockets};
use crate::window::{Window, is_gil};
use crate::words;

/// Waits that are shorter have no row of their own, unless the agent was told otherwise.
pub(crate) const ROW_NS: u64 = 1_000_000;

/// Rows of the request's process, sorted, so that no rule can depend on the order they came in.
pub(crate) struct Case<'a> {
    pub(crate) request: &'a Request,
    pub(crate) window: Window,
    pub(crate) evidence: &'a Evidence,
    pub(crate) waits: Vec<&'a Wait>,
    pub(crate) pauses: Vec<&'a GcPause>,
    pub(crate) gil_waits: Vec<&'a GilWait>,
    pub(crate) siblings: Vec<&'a Request>,
    pub(crate) samples: Vec<&'a Sample>,
    pub(crate) connects: Vec<&'a TcpConnect>,
    /// Of any process, on any host.
    pub(crate) losses: Vec<&'a TcpLoss>,
    pub(crate) listeners: Vec<&'a TcpListener>,
    pub(crate) accepts: Vec<&'a TcpAccept>,
    pub(crate) peers: Vec<&'a Request>,
    pub(crate) reader_waits: Vec<&'a Wait>,
    /// What its thread waited on.
    pub(crate) sockets: BTreeMap<Ends<'a>, Socket<'a>>,
    /// What child spans cover.
    pub(crate) visible: Cover,
}

impl<'a> Case<'a> {
    pub(crate) fn new(
        request: &'a Request,
        evidence: &'a Evidence,
        window: Window,
        visible: Cover,
    ) -> Self {
        let here = |host: &str, pid: u32| host == request.host && pid == request.pid;
        let mut waits: Vec<_> = evidence.waits.iter().filter(|w| here(&w.host, w.pid)).collect();
        waits.sort_by_key(|w| {
            let blame = (w.holder_tid, w.waker_tid, &w.holder_thread, &w.waker_thread, &w.peer);
            (w.start_time, w.tid, w.duration_ns, w.state, w.futex_addr, blame)
        });
        let mut pauses: Vec<_> =
            evidence.gc_pauses.iter().filter(|p| here(&p.host, p.pid)).collect();
        pauses.sort_by_key(|p| {
            (p.start_time, p.tid, p.duration_ns, p.generation, p.collected, &p.thread)
        });
        let mut gil_waits: Vec<_> =
            evidence.gil_waits.iter().filter(|w| here(&w.host, w.pid)).collect();
        gil_waits.sort_by_key(|w| {
            (w.start_time, w.tid, w.duration_ns, w.holder_tid, w.holder_ns, &w.holder_thread)
        });
        let mut seen = BTreeSet::from([request.request_id.as_str()]);
        let mut siblings: Vec<_> =
            evidence.siblings.iter().filter(|s| here(&s.host, s.pid)).collect();
        siblings.sort_by_key(|s| (s.start_time, s.tid, &s.request_id, s.duration_ns));
        siblings.retain(|s| seen.insert(&s.request_id));
        let samples = evidence.samples.iter().chain(&evidence.ongoing);
        let samples = samples.filter(|s| s.host == request.host).collect::<Vec<_>>();
        let mut connects: Vec<_> =
            evidence.connects.iter().filter(|c| here(&c.host, c.pid)).collect();
        connects.sort_by_key(|c| (c.start_time, c.tid, c.duration_ns, &c.peer, &c.local));
        let mut losses: Vec<_> = evidence.losses.iter().collect();
        losses.sort_by_key(|l| {
            let ends = (&l.host, l.pid, l.tid, &l.local, &l.peer);
            (l.start_time, l.duration_ns, &l.kind, ends, l.retransmits, l.backoff)
        });
        let mut listeners: Vec<_> = evidence.listeners.iter().collect();
        listeners.sort_by_key(|l| (l.start_time, &l.host, l.pid, &l.local, l.overflows));
        let mut accepts: Vec<_> = evidence.accepts.iter().collect();
        accepts.sort_by_key(|a| (a.start_time, &a.host, a.pid, &a.local, &a.peer));
        let mut peers: Vec<_> = evidence.peers.iter().collect();
        peers.sort_by_key(|r| (r.start_time, &r.host, r.tid, &r.request_id, r.duration_ns));
        peers.dedup_by_key(|r| &r.request_id);
        peers.retain(|r| r.request_id != request.request_id);
        let mut reader_waits: Vec<_> = evidence.reader_waits.iter().collect();
        reader_waits.sort_by_key(|w| (w.start_time, &w.host, w.tid, w.duration_ns, w.state));
        let mut case = Case {
            request,
            window,
            evidence,
            waits,
            pauses,
            gil_waits,
            siblings,
            samples,
            connects,
            losses,
            listeners,
            accepts,
            peers,
            reader_waits,
            sockets: BTreeMap::new(),
            visible,
        };
        case.sockets = sockets(&case);
        case
    }

    /// Whether `ns` is worth a finding.
    pub(crate) fn worth(&self, ns: u64, threshold: Threshold) -> bool {
        threshold.reached(ns, self.window.whole.len())
    }

    /// The waits of a thread in some states, with what of each it was blocked for in the window.
    pub(crate) fn waits_of(
        &self,
        tid: u32,
        within: Interval,
        state: impl Fn(State) -> bool,
    ) -> Vec<(&'a Wait, Interval)> {
        let of_thread = self.waits.iter().filter(|w| w.tid == tid && state(w.state));
        clipped(of_thread.map(|w| (*w, blocked(w))), within)
    }

    /// Whether a wait of the request's own thread went on when it was answered, by another one: whoever ended
    /// it in the end did not do that for this request.
    pub(crate) fn outlasts(&self, wait: Interval) -> bool {
        let request = self.request;
        let elsewhere = request.sent_tid != request.tid && request.end != "open";
        elsewhere && wait.end > self.window.handler.end
    }

    /// `when thread worker-2 (4711) had sent the answer`, or that it was over.
    pub(crate) fn answered_words(&self) -> String {
        match self.request.sent_tid {
            0 => String::from("when the request was over"),
            tid => format!("when thread {} ({tid}) had sent the answer", self.request.sent_thread),
        }
    }

    /// In how many waits at least a thread spent the time of which no row tells, if rows show less than half of
    /// it and none is missing: of a wait that goes on there is none yet, nor of one that another thread's
    /// answer left behind.
    pub(crate) fn short_waits(&self, ns: u64, shown: u64) -> Option<u64> {
        let request = self.request;
        let is_over = request.end == "sent" && [0, request.tid].contains(&request.sent_tid);
        let rest = ns.saturating_sub(shown);
        let lost = || gaps(self).any(|lost| ["ledger", "agent"].contains(&lost.tracker.as_str()));
        (is_over && rest > ns / 2 && !lost()).then(|| rest.div_ceil(ROW_NS))
    }

    /// When a thread waited for the GIL, by both tables that tell.
    pub(crate) fn gil_cover(&self, tid: u32, within: Interval) -> Cover {
        let waits = self.waits_of(tid, within, is_gil).into_iter().map(|(_, part)| part);
        let gil = self.gil_waits.iter().filter(|w| w.tid == tid);
        let gil = gil.map(|w| Interval::new(w.start_time, w.duration_ns).overlap(within));
        waits.chain(gil).collect()
    }

    /// Whether its process is certainly no Python: nothing shows an interpreter, and a stack
    /// that is whole, or another runtime's, would have.
    pub(crate) fn is_no_python(&self) -> bool {
        let request = self.request;
        let interpreter = self.evidence.process.as_ref().is_some_and(|p| !p.python.is_empty())
            || !self.gil_waits.is_empty()
            || !self.pauses.is_empty()
            || [State::GilWait, State::GcWait, State::GcRun]
                .iter()
                .any(|state| request.ledger[*state] > 0);
        let samples = self.samples.iter().filter(|s| s.pid == request.pid).map(|s| &s.stack);
        let stalls = self.evidence.stalls.iter();
        let stalls = stalls.filter(|s| s.host == request.host && s.pid == request.pid);
        let stacks: Vec<_> = samples.chain(stalls.map(|s| &s.stack)).collect();
        let any = |what: fn(&Frame) -> bool| stacks.iter().any(|s| s.frames.iter().any(what));
        let whole = stacks.iter().any(|stack| {
            let native = stack.frames.iter().any(|frame| frame.kind == FrameKind::Native);
            native && stack.truncated.is_empty()
        });
        !interpreter && !any(is_of_python) && (whole || any(is_of_another_runtime))
    }

    /// Which server its process is, unless that is one of Python's and the process certainly is none.
    pub(crate) fn server(&self) -> Server {
        let server = Server::of(self.evidence);
        if server.is_pythons() && self.is_no_python() { Server::Other } else { server }
    }

    /// What helps a service in Python only, unless its process certainly is none.
    pub(crate) fn if_python(&self, words: &'static str) -> &'static str {
        if self.is_no_python() { "" } else { words }
    }

    /// The request that a thread was serving for most of the given time.
    pub(crate) fn serving(&self, tid: u32, during: &Cover) -> Option<&'a Request> {
        let overlap = |r: &Request| during.within(Window::of(r).handler).total();
        let served = self.siblings.iter().filter(|r| r.tid == tid).map(|r| (overlap(r), *r));
        let (ns, request) = served.max_by_key(|(ns, r)| (*ns, &r.request_id))?;
        // Of a request that was over soon after, one says nothing when asked what kept the thread.
        (ns > 0 && ns >= during.total() / 2).then_some(request)
    }

    /// In which code a thread was for most of the time given.
    pub(crate) fn place(&self, tid: u32, during: &Cover) -> Option<Place> {
        let samples = self.samples.iter().filter(|s| s.tid == tid).copied();
        mostly(samples, during)
    }

    /// In which code a thread was while it waited in one state.
    pub(crate) fn place_in(&self, tid: u32, during: &Cover, state: State) -> Option<Place> {
        let samples = self.samples.iter().filter(|s| s.tid == tid && s.state == state);
        mostly(samples.copied(), during)
    }

    /// Why the request's own thread had nothing to do while it waited in one state, if its stacks show
    /// that for most of what was sampled. A runtime has many tasks to a thread: what such a thread waits
    /// for, and who wakes it, is its scheduler's business and not the request's.
    pub(crate) fn without_work(&self, during: &Cover, state: State) -> Option<Idle> {
        let own = self.samples.iter().filter(|s| s.tid == self.request.tid && s.state == state);
        let (mut reasons, mut total) = (BTreeMap::<Idle, u64>::new(), 0u64);
        for sample in own {
            let ns = during.within(Interval::new(sample.start_time, sample.duration_ns)).total();
            total = total.saturating_add(ns);
            if let Some(idle) = idle(&sample.stack.frames, state, true) {
                let sum = reasons.entry(idle).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
        let (reason, ns) = reasons.into_iter().max_by_key(|(_, ns)| *ns)?;
        (words::fraction(ns, total) > 0.5).then_some(reason)
    }

    /// In which code the request's own thread was while in some states.
    pub(crate) fn own_place(&self, during: &Cover, state: impl Fn(State) -> bool) -> Option<Place> {
        let own = self.samples.iter().filter(|s| s.tid == self.request.tid && state(s.state));
        mostly(own.copied(), during)
    }

    /// A culprit that is a thread of this process.
    pub(crate) fn thread(&self, tid: u32, name: &str, ns: u64, during: &Cover) -> Culprit {
        let serving = self.serving(tid, during);
        Culprit {
            host: self.request.host.clone(),
            pid: self.request.pid,
            tid,
            thread: name.to_owned(),
            request_id: serving.map(|r| r.request_id.clone()).unwrap_or_default(),
            route: serving.map(route).unwrap_or_default(),
            place: self.place(tid, during),
            ..Culprit::new(ns)
        }
    }

    /// Names one thread if it alone accounts for enough of `total`; several if only together they do.
    pub(crate) fn blame(
        &self,
        suspects: &BTreeMap<u32, Suspect>,
        total: u64,
        during: &Cover,
    ) -> Option<Culprit> {
        let mut ranked: Vec<_> = suspects.iter().filter(|(_, s)| s.ns > 0).collect();
        ranked.sort_by_key(|(tid, s)| (std::cmp::Reverse(s.ns), **tid));
        let (tid, top) = ranked.first()?;
        if proven(top.ns, total) {
            return Some(self.thread(**tid, &top.name, top.ns.min(total), during));
        }
        let together = ranked.iter().fold(0u64, |sum, (_, s)| sum.saturating_add(s.ns));
        proven(together, total).then(|| Culprit {
            thread: several(&ranked.iter().map(|(_, s)| s.name.as_str()).collect::<Vec<_>>()),
            host: self.request.host.clone(),
            pid: self.request.pid,
            ..Culprit::new(together.min(total))
        })
    }

    /// Starts a finding of these parts.
    pub(crate) fn draft(&self, kind: Kind, parts: &[(&'static str, u64)]) -> Draft {
        let whole = self.window.whole.len();
        let parts: Vec<_> = parts
            .iter()
            .filter(|(_, ns)| *ns > 0)
            .map(|&(part, ns)| Part { part, ns, fraction: words::fraction(ns, whole) })
            .collect();
        let ns = parts.iter().map(|part| part.ns).sum();
        Draft(Finding {
            kind,
            relation: Relation::Unknown,
            ns,
            fraction: words::fraction(ns, whole),
            hidden_ns: 0,
            in_spans_ns: 0,
            parts,
            pattern: "",
            place: None,
            culprit: None,
            evidence: Vec::new(),
            evidence_rows: 0,
            text: String::new(),
            advice: String::new(),
        })
    }
}

/// Python's code, or the interpreter's own.
fn is_of_python(frame: &Frame) -> bool {
    let native = || frame.module.contains("python") || frame.function.starts_with("_PyEval");
    frame.kind == FrameKind::Python || frame.kind == FrameKind::Native && native()
}

/// Of Go's, Java's or Node's, by what their symbols are called.
fn is_of_another_runtime(frame: &Frame) -> bool {
    const NAMES: [&str; 3] = ["runtime.", "node::", "v8::"];
    let named = || NAMES.iter().any(|name| frame.function.starts_with(name));
    frame.kind == FrameKind::Native && (frame.module.contains("libjvm.so") || named())
}

/// How long a thread was seen to be in the way, and its name.
#[derive(Default)]
pub(crate) struct Suspect {
    pub(crate) name: String,
    pub(crate) ns: u64,
}

impl Suspect {
    pub(crate) fn add(&mut self, name: &str, ns: u64) {
        self.ns = self.ns.saturating_add(ns);
        if self.name.is_empty() {
            name.clone_into(&mut self.name);
        }
    }
}

/// A finding in the making.
pub(crate) struct Draft(Finding);

impl Draft {
    pub(crate) fn relation(mut self, relation: Relation) -> Self {
        self.0.relation = relation;
        self
    }

    pub(crate) fn culprit(mut self, culprit: Option<Culprit>) -> Self {
        self.0.culprit = culprit;
        self
    }

    /// Where in time the finding lies, as far as rows tell.
    pub(crate) fn located(mut self, case: &Case<'_>, at: &Cover) -> Self {
        let hidden = at.subtract(&case.visible).total();
        self.0.hidden_ns = hidden.min(self.0.ns);
        self.0.in_spans_ns = at.intersect(&case.visible).total().min(self.0.ns - self.0.hidden_ns);
        self
    }

    /// It is a known pattern.
    pub(crate) fn pattern(mut self, pattern: &'static str) -> Self {
        self.0.pattern = pattern;
        self
    }

    /// The rows behind it: the longest overlaps are cited.
    pub(crate) fn rows(mut self, mut rows: Vec<(u64, RowRef)>) -> Self {
        rows.sort_by(|(a, left), (b, right)| {
            let key = |r: &RowRef| (r.table, r.start_time, r.tid, r.duration_ns);
            b.cmp(a).then_with(|| key(left).cmp(&key(right)))
        });
        self.0.evidence_rows = rows.len();
        self.0.evidence = rows.into_iter().take(Finding::MAX_ROWS).map(|(_, row)| row).collect();
        self
    }

    pub(crate) fn say(mut self, text: String, advice: impl Into<String>) -> Finding {
        self.0.text = text;
        self.0.advice = advice.into();
        self.0
    }
}

/// What is told of a thread that had nothing to do while the request went on, and what would help.
pub(crate) fn without_work_words(waited: &str, idle: Idle) -> (String, &'static str) {
    let text = format!(
        "Its thread had nothing to do for most of {waited} ({}). What the request itself waited \
         for is not known: a timer, a socket, or work on another thread",
        idle.reason
    );
    let advice = match idle.is_go_scheduler() {
        true => {
            "Look at where its goroutines wait (`underspan flame --kind goroutine`): a thread of Go's \
             scheduler is not bound to a request"
        }
        false => "Look at what this handler awaits, and at the peers and threads it asks",
    };
    (text, advice)
}

/// Whether rows show enough of the time.
pub(crate) fn proven(shown: u64, total: u64) -> bool {
    total > 0 && shown as f64 >= PROOF * total as f64
}

/// `GET /export`, or the thread's peer where the bytes were not HTTP.
pub(crate) fn route(request: &Request) -> String {
    match (request.method.is_empty(), request.path.is_empty()) {
        (true, true) => String::new(),
        _ => format!("{} {}", request.method, request.path).trim().to_owned(),
    }
}

/// ` in json.dumps at reports.py:88, serving GET /export`, as far as it is known.
pub(crate) fn doing_words(culprit: &Culprit) -> String {
    let place = culprit.place.as_ref().map(|place| format!(" in {}", place.words()));
    let mut text = place.unwrap_or_default();
    if !culprit.route.is_empty() {
        text += &format!(", serving {}", culprit.route);
    }
    text
}

fn several(names: &[&str]) -> String {
    let shown = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    let more = if names.len() > 3 { ", …" } else { "" };
    format!("{} threads ({shown}{more})", names.len())
}

/// The part of a wait that is in its state's cell of the ledger. Ready at last, the thread waited for a
/// CPU, which nobody is to blame for who made it wait before. How a wait for the GIL splits, its row does
/// not tell.
pub(crate) fn blocked(wait: &Wait) -> Interval {
    let whole = Interval::new(wait.start_time, wait.duration_ns);
    let ready = match wait.state {
        State::Runnable | State::Throttled => 0,
        state if is_gil(state) => 0,
        _ => wait.runnable_ns.min(whole.len()),
    };
    Interval::between(whole.start, whole.end - ready)
}

/// The rest of it: ready, and waiting for a CPU.
pub(crate) fn ready(wait: &Wait) -> Interval {
    let whole = Interval::new(wait.start_time, wait.duration_ns);
    match wait.state {
        State::Runnable | State::Throttled => whole,
        _ => Interval::between(whole.end - wait.runnable_ns.min(whole.len()), whole.end),
    }
}

/// Whether the thread was stopped or frozen. Of the waits that are `other` only those are in no
/// system call, and those of io_uring's own threads.
pub(crate) fn stopped(wait: &Wait) -> bool {
    wait.state == State::Other && wait.syscall == -1 && !wait.thread.starts_with("iou-")
}

/// How that is told. Who did it is not recorded.
pub(crate) const STOPPED: &str =
    "stopped or frozen (by a signal such as SIGSTOP, a debugger or a freezer)";

pub(crate) const WHO_STOPS: &str = "Look for what stops this process: job control or `kill -STOP`, \
    a debugger or tracer (gdb, strace), a freezer (of a cgroup, or of the whole machine as it is \
    suspended)";

/// Rows with what of each lies in the window; those outside are left out.
pub(crate) fn clipped<T>(
    rows: impl Iterator<Item = (T, Interval)>,
    within: Interval,
) -> Vec<(T, Interval)> {
    rows.map(|(row, interval)| (row, interval.overlap(within)))
        .filter(|(_, part)| part.len() > 0)
        .collect()
}

macro_rules! row_ref {
    ($name:ident, $type:ty, $table:literal) => {
        pub(crate) fn $name(row: &$type) -> RowRef {
            RowRef {
                table: $table,
                host: row.host.clone(),
                pid: row.pid,
                tid: row.tid,
                start_time: row.start_time,
                duration_ns: row.duration_ns,
                request_id: String::new(),
            }
        }
    };
}

row_ref!(wait_row, Wait, "waits");
row_ref!(gil_row, GilWait, "gil_wait");
row_ref!(gc_row, GcPause, "gc_pause");
row_ref!(stall_row, LoopStall, "loop_stall");
row_ref!(loss_row, TcpLoss, "tcp_loss");
row_ref!(connect_row, TcpConnect, "tcp_connect");
row_ref!(accept_row, TcpAccept, "tcp_accept");
row_ref!(listener_row, TcpListener, "tcp_listener");
row_ref!(plain_request_row, Request, "requests");

pub(crate) fn request_row(request: &Request) -> RowRef {
    RowRef { request_id: request.request_id.clone(), ..plain_request_row(request) }
}
