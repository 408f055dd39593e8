//! Rows, one by one.

use underspan_model::{
    Frame, FrameKind, GcPause, GilWait, Request, Sample, Span, Stack, State, Wait,
};

use super::{MS, PID, T0};

/// The phases and the ledger, in milliseconds; the rest of the handler goes to `rest`.
pub struct Shape<'a> {
    pub id: u64,
    pub worker: u32,
    pub at_ms: u64,
    pub accept_queue: u64,
    pub handoff: u64,
    pub handler: u64,
    pub cells: &'a [(State, u64)],
}

pub fn request(path: &str, shape: &Shape<'_>) -> Request {
    let mut request = Request {
        request_id: format!("{:016x}", shape.id),
        host: String::from("web-1"),
        pid: PID,
        tid: 4110 + shape.worker,
        ns_pid: 7,
        ns_tid: 17 + shape.worker,
        thread: format!("ThreadPoolExecutor-0_{}", shape.worker),
        process: String::from("gunicorn"),
        start_time: T0 + shape.at_ms * MS,
        duration_ns: (shape.accept_queue + shape.handoff + shape.handler) * MS,
        accept_queue_ns: shape.accept_queue * MS,
        handoff_ns: shape.handoff * MS,
        handler_ns: shape.handler * MS,
        accept_to_read_ns: shape.handoff * MS,
        method: String::from("GET"),
        path: path.to_owned(),
        status: 200,
        peer: String::from("127.0.0.1:50112"),
        local: String::from("127.0.0.1:8000"),
        bytes_in: 412,
        bytes_out: 1834,
        accept_tid: 4102,
        sent_tid: 4110 + shape.worker,
        sent_thread: format!("ThreadPoolExecutor-0_{}", shape.worker),
        end: String::from("sent"),
        ..Request::default()
    };
    for &(state, ms) in shape.cells {
        request.ledger[state] = ms * MS;
    }
    let rest = request.handler_ns.saturating_sub(request.ledger.total());
    request.ledger[State::Running] += rest;
    request
}

pub fn span(request: &Request, id: u64, parent: u64, name: &str, from_ms: u64, ms: u64) -> Span {
    Span {
        trace_id: request.trace_id.clone(),
        span_id: format!("{id:016x}"),
        parent_span_id: if parent == 0 { String::new() } else { format!("{parent:016x}") },
        name: name.to_owned(),
        kind: String::from(if parent == 0 { "server" } else { "client" }),
        service: String::from("shop"),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        pid: request.ns_pid,
        tid: request.ns_tid,
        status: String::new(),
    }
}

pub fn wait(request: &Request, state: State, from_ms: u64, ms: u64) -> Wait {
    Wait {
        host: request.host.clone(),
        pid: request.pid,
        tid: request.tid,
        ns_pid: request.ns_pid,
        ns_tid: request.ns_tid,
        thread: request.thread.clone(),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        runnable_ns: 0,
        state,
        waker_pid: 0,
        waker_tid: 0,
        waker_thread: String::new(),
        holder_tid: 0,
        holder_thread: String::new(),
        holder_pid: 0,
        holder_process: String::new(),
        futex_addr: 0,
        syscall: -1,
        fd: -1,
        peer: String::new(),
        local: String::new(),
        slices: 1,
    }
}

pub fn pause(request: &Request, tid: u32, thread: &str, from_ms: u64, ms: u64) -> GcPause {
    GcPause {
        host: request.host.clone(),
        pid: request.pid,
        tid,
        ns_pid: 7,
        ns_tid: 3,
        thread: thread.to_owned(),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        generation: 2,
        collected: 1204,
        cpu_ns: ms * MS,
        rung: String::from("symbol"),
    }
}

pub fn gil_wait(request: &Request, from_ms: u64, ms: u64, holder: (u32, &str), gc: u64) -> GilWait {
    GilWait {
        host: request.host.clone(),
        pid: request.pid,
        tid: request.tid,
        ns_pid: request.ns_pid,
        ns_tid: request.ns_tid,
        thread: request.thread.clone(),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        holder_tid: holder.0,
        holder_thread: holder.1.to_owned(),
        holder_ns: ms * MS,
        gc_ns: gc * MS,
        slices: u32::try_from(ms / 5).unwrap_or(1),
    }
}

/// Python frames, outermost first: function, file, line.
pub fn python(frames: &[(&str, &str, u32)]) -> Stack {
    let frame = |&(function, file, line): &(&str, &str, u32)| Frame {
        kind: FrameKind::Python,
        function: function.to_owned(),
        file: file.to_owned(),
        line,
        module: String::new(),
    };
    Stack { frames: frames.iter().map(frame).collect(), truncated: String::new() }
}

/// Python frames, the innermost of which waits for Python's own lock.
pub fn acquiring(frames: &[(&str, &str, u32)]) -> Stack {
    let mut stack = python(frames);
    stack.frames.push(Frame {
        kind: FrameKind::Native,
        function: String::from("PyThread_acquire_lock_timed"),
        file: String::new(),
        line: 0,
        module: String::from("libpython3.11.so.1.0"),
    });
    stack
}

/// A stack taken of a thread of the request's process.
pub fn sample(
    request: &Request,
    tid: u32,
    state: State,
    from_ms: u64,
    ms: u64,
    stack: Stack,
) -> Sample {
    Sample {
        host: request.host.clone(),
        pid: request.pid,
        tid,
        thread: format!("thread-{tid}"),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        state,
        weight_ns: ms * MS,
        stack,
        ..Sample::default()
    }
}
