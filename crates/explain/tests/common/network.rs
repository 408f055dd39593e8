//! Requests that waited on sockets, and what happened on these.

use underspan_explain::Evidence;
use underspan_model::{
    HostCounter, PacketAges, Request, State, TcpAccept, TcpConnect, TcpListener, TcpLoss, Wait,
};

use super::{MS, Shape, T0, process, request, wait};

pub const LOCAL: &str = "10.0.0.1:40001";
pub const PEER: &str = "10.0.0.2:8001";

/// A request whose handler waited on one socket, 10 ms after it began.
pub fn waited(state: State, ms: u64) -> Evidence {
    let slow = request(
        "/checkout",
        &Shape {
            id: 0x40,
            worker: 1,
            at_ms: 0,
            accept_queue: 0,
            handoff: 0,
            handler: ms + 20,
            cells: &[(state, ms)],
        },
    );
    Evidence {
        waits: vec![socket_wait(&slow, state, 10, ms)],
        process: process(),
        request: Some(slow),
        ..Evidence::default()
    }
}

pub fn socket_wait(request: &Request, state: State, from_ms: u64, ms: u64) -> Wait {
    let mut wait = wait(request, state, from_ms, ms);
    wait.local = LOCAL.to_owned();
    wait.peer = PEER.to_owned();
    wait.fd = 9;
    wait
}

/// Seen from this end.
pub fn loss(kind: &str, from_ms: u64, ms: u64) -> TcpLoss {
    TcpLoss {
        host: String::from("web-1"),
        pid: super::PID,
        tid: 4111,
        thread: String::from("ThreadPoolExecutor-0_1"),
        process: String::from("gunicorn"),
        start_time: T0 + from_ms * MS,
        duration_ns: ms * MS,
        local: LOCAL.to_owned(),
        peer: PEER.to_owned(),
        kind: kind.to_owned(),
        retransmits: 2,
        backoff: 1,
    }
}

/// Seen from the other end.
pub fn loss_there(kind: &str, from_ms: u64, ms: u64) -> TcpLoss {
    TcpLoss {
        host: String::from("backend-1"),
        pid: 900,
        tid: 905,
        thread: String::from("importer"),
        process: String::from("python"),
        local: PEER.to_owned(),
        peer: LOCAL.to_owned(),
        ..loss(kind, from_ms, ms)
    }
}

/// What the peer served on that connection.
pub fn served(from_ms: u64, ms: u64, cells: &[(State, u64)]) -> Request {
    let shape = Shape {
        id: 0x41,
        worker: 1,
        at_ms: from_ms,
        accept_queue: 0,
        handoff: 0,
        handler: ms,
        cells,
    };
    let mut served = request("/stock", &shape);
    served.host = String::from("backend-1");
    (served.pid, served.tid) = (900, 905);
    served.process = String::from("gunicorn");
    served.thread = String::from("stock-worker");
    (served.local, served.peer) = (PEER.to_owned(), LOCAL.to_owned());
    served
}

pub fn listener(local: &str, overflows: u32, from_ms: u64) -> TcpListener {
    TcpListener {
        host: String::from("backend-1"),
        pid: 900,
        tid: 900,
        process: String::from("gunicorn"),
        start_time: T0 + from_ms * MS,
        duration_ns: 1000 * MS,
        local: local.to_owned(),
        queue_length: 6,
        queue_limit: 5,
        overflows,
    }
}

pub fn accepted(from_ms: u64) -> TcpAccept {
    TcpAccept {
        host: String::from("backend-1"),
        pid: 901,
        tid: 902,
        start_time: T0 + from_ms * MS,
        duration_ns: MS,
        local: PEER.to_owned(),
        peer: LOCAL.to_owned(),
        queue_length: 1,
        queue_limit: 5,
    }
}

/// The peer's answer was lost, and sent again after the timer had run out twice.
pub fn lost_segments() -> Evidence {
    let mut evidence = waited(State::NetRead, 650);
    evidence.losses = vec![loss_there("rto", 40, 610)];
    evidence
}

/// A burst of connections: the peer's queue was full, and the SYN was sent again after a second.
pub fn full_queue() -> Evidence {
    let mut evidence = waited(State::NetConnect, 1030);
    evidence.losses = vec![loss("syn_retry", 10, 1030)];
    evidence.listeners = vec![listener("0.0.0.0:8001", 3, 0), listener("0.0.0.0:8001", 0, 1000)];
    evidence.accepts = vec![accepted(1040)];
    evidence
}

/// The peer did not read for 700 ms: it slept.
pub fn closed_window() -> Evidence {
    let mut evidence = waited(State::NetWrite, 720);
    evidence.losses =
        vec![loss("zero_window_peer", 25, 700), loss_there("zero_window_local", 24, 700)];
    let mut slept = socket_wait(&served(0, 800, &[]), State::Sleep, 20, 705);
    (slept.local, slept.peer, slept.fd) = (String::new(), String::new(), -1);
    evidence.reader_waits = vec![slept];
    evidence
}

/// A connection for each of five queries.
pub fn connection_per_query() -> Evidence {
    let cells = [(State::NetConnect, 100), (State::NetRead, 45)];
    let shape = Shape {
        id: 0x42,
        worker: 1,
        at_ms: 0,
        accept_queue: 0,
        handoff: 0,
        handler: 160,
        cells: &cells,
    };
    let slow = request("/list", &shape);
    let mut evidence = Evidence { process: process(), ..Evidence::default() };
    for n in 0..5 {
        let from = n * 32;
        let local = format!("10.0.0.1:{}", 40_100 + n);
        for (state, from, ms) in [(State::NetConnect, from, 20), (State::NetRead, from + 20, 9)] {
            let mut wait = socket_wait(&slow, state, from, ms);
            wait.local.clone_from(&local);
            evidence.waits.push(wait);
        }
        evidence.connects.push(TcpConnect {
            host: slow.host.clone(),
            pid: slow.pid,
            tid: slow.tid,
            start_time: T0 + from * MS,
            duration_ns: 20 * MS,
            local,
            peer: PEER.to_owned(),
            outcome: String::from("connected"),
            reconnect_ns: if n == 0 { 0 } else { 32 * MS },
            syn_retransmits: 0,
        });
    }
    evidence.request = Some(slow);
    evidence
}

/// The peer is a watched service, and its request waited for the interpreter.
pub fn followed() -> Evidence {
    let mut evidence = waited(State::NetRead, 2000);
    evidence.peers = vec![served(11, 1998, &[(State::GilWait, 1800)])];
    evidence
}

/// Its own connection waited in a full queue.
pub fn own_queue_full() -> Evidence {
    let slow = request(
        "/late",
        &Shape {
            id: 0x43,
            worker: 1,
            at_ms: 0,
            accept_queue: 400,
            handoff: 0,
            handler: 20,
            cells: &[],
        },
    );
    let accepted = TcpAccept {
        host: slow.host.clone(),
        pid: slow.pid,
        tid: slow.accept_tid,
        start_time: T0,
        duration_ns: 400 * MS,
        local: slow.local.clone(),
        peer: slow.peer.clone(),
        queue_length: 6,
        queue_limit: 5,
    };
    let mut listener = listener("0.0.0.0:8000", 4, 0);
    listener.host.clone_from(&slow.host);
    Evidence {
        accepts: vec![accepted],
        listeners: vec![listener],
        request: Some(slow),
        ..Evidence::default()
    }
}

/// Connections were dropped a second before it came.
pub fn dropped_before() -> Evidence {
    let mut evidence = super::quiet();
    let host = evidence.request.as_ref().map(|request| request.host.clone()).unwrap_or_default();
    for (from_ms, overflows) in [(2100, 0), (1100, 16), (100, 2)] {
        let mut row = listener("0.0.0.0:8000", overflows, 0);
        row.host.clone_from(&host);
        row.start_time = T0 - from_ms * MS;
        evidence.listeners.push(row);
    }
    evidence
}

pub fn counter(source: &str, metric: &str, subject: &str, unit: &str, delta: u64) -> HostCounter {
    HostCounter {
        host: String::from("web-1"),
        start_time: T0,
        duration_ns: 1000 * MS,
        source: source.to_owned(),
        metric: metric.to_owned(),
        subject: subject.to_owned(),
        unit: unit.to_owned(),
        delta,
    }
}

pub fn ages(point: &str, average_us: u64) -> PacketAges {
    PacketAges {
        host: String::from("web-1"),
        start_time: T0,
        duration_ns: 1000 * MS,
        point: point.to_owned(),
        count: 100,
        sum_ns: 100 * average_us * 1000,
    }
}

/// The host was held back by its cloud, and packets by their firewall.
pub fn busy_host() -> Evidence {
    let mut evidence = waited(State::NetRead, 900);
    let bandwidth = "node_ethtool_bw_in_allowance_exceeded";
    evidence.counters = vec![counter("ena", bandwidth, "eth0", "count", 812)];
    evidence.packets = vec![
        ages("ip-start", 30),
        ages("tcp-start", 2_530),
        ages("tcp-socket-enqueued", 2_540),
        ages("tcp-socket-read", 2_900),
    ];
    evidence
}
