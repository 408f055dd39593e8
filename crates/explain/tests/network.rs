//! Stories of sockets: what must be found beneath them, and what must not.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::network::*;
use common::*;
use underspan_explain::{Evidence, Explanation, Finding, Kind, Relation, SocketWait, explain};
use underspan_model::State;

fn findings(evidence: &Evidence) -> Vec<Finding> {
    explain(evidence).unwrap().findings
}

fn only(evidence: &Evidence) -> Finding {
    let mut findings = findings(evidence);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

fn kinds(evidence: &Evidence) -> Vec<(Kind, u64)> {
    findings(evidence).into_iter().map(|finding| (finding.kind, finding.ns / MS)).collect()
}

fn parts(socket: &SocketWait) -> Vec<(&str, u64)> {
    socket.parts.iter().map(|part| (part.part, part.ns / MS)).collect()
}

fn one_socket(explanation: &Explanation) -> &SocketWait {
    let [socket] = explanation.sockets.as_slice() else { panic!("{:#?}", explanation.sockets) };
    socket
}

#[test]
fn a_lost_answer_is_told_from_a_slow_peer() {
    let explanation = explain(&lost_segments()).unwrap();
    let socket = one_socket(&explanation);
    assert_eq!((socket.local.as_str(), socket.peer.as_str()), (LOCAL, PEER));
    assert_eq!(parts(socket), [("rto", 610), ("peer", 40)]);
    let [stall] = explanation.findings.as_slice() else { panic!("{:#?}", explanation.findings) };
    assert_eq!((stall.kind, stall.relation), (Kind::Retransmission, Relation::Caused));
    assert_eq!(stall.ns, 610 * MS);
    assert_eq!(stall.parts[0].part, "net_read");
    assert_eq!(stall.culprit.as_ref().unwrap().peer, PEER);
    assert!(stall.text.contains("retransmission timeout 610.0 ms"), "{}", stall.text);
    assert!(stall.text.contains("timer doubled once"), "{}", stall.text);
}

#[test]
fn each_kind_of_loss_has_its_own_time() {
    let mut evidence = waited(State::NetRead, 900);
    evidence.losses = vec![
        loss("fast_retransmit", 20, 40),
        loss("tail_loss_probe", 100, 200),
        loss("rto", 400, 300),
        // Both ends tell of it: it is one stall.
        loss_there("rto", 420, 200),
    ];
    let explanation = explain(&evidence).unwrap();
    assert_eq!(
        parts(one_socket(&explanation)),
        [("rto", 300), ("tail_loss_probe", 200), ("fast_retransmit", 40), ("peer", 360)]
    );
    assert_eq!(kinds(&evidence), [(Kind::Retransmission, 540), (Kind::NetRead, 360)]);
}

#[test]
fn losses_of_other_connections_and_other_times_are_not_its_own() {
    let mut evidence = waited(State::NetRead, 650);
    let mut other = loss("rto", 40, 600);
    other.local = String::from("10.0.0.1:40002");
    let mut elsewhere = loss("rto", 40, 600);
    elsewhere.host = String::from("web-2");
    let before = loss("rto", 0, 9);
    // What the request's own side does not read delays nobody whom it waits for.
    let own_window = loss("zero_window_local", 40, 600);
    let reset = loss("reset_received", 640, 0);
    evidence.losses = vec![other, elsewhere, before, own_window, reset];
    assert_eq!(kinds(&evidence), [(Kind::NetRead, 650)]);
    assert_eq!(parts(one_socket(&explain(&evidence).unwrap())), [("peer", 650)]);
}

#[test]
fn a_loopback_address_is_another_one_on_another_host() {
    let mut evidence = lost_segments();
    evidence.waits[0].local = String::from("127.0.0.1:40001");
    evidence.waits[0].peer = String::from("127.0.0.1:8001");
    evidence.losses[0].local = String::from("127.0.0.1:8001");
    evidence.losses[0].peer = String::from("127.0.0.1:40001");
    assert_eq!(only(&evidence).kind, Kind::NetRead);
    evidence.losses[0].host = String::from("web-1");
    assert_eq!(findings(&evidence)[0].kind, Kind::Retransmission);
}

#[test]
fn a_short_stall_stays_with_its_wait() {
    let mut evidence = waited(State::NetRead, 650);
    evidence.losses = vec![loss("fast_retransmit", 40, 9)];
    assert_eq!(kinds(&evidence), [(Kind::NetRead, 650)]);
}

#[test]
fn a_full_accept_queue_is_told_from_a_lost_syn() {
    let full = only(&full_queue());
    assert_eq!((full.kind, full.relation), (Kind::AcceptQueueFull, Relation::Caused));
    assert_eq!(full.ns, 1030 * MS);
    let culprit = full.culprit.as_ref().unwrap();
    assert_eq!(
        (culprit.host.as_str(), culprit.pid, culprit.peer.as_str()),
        ("backend-1", 900, PEER)
    );
    assert!(full.text.contains("holds 6, and 3 were dropped"), "{}", full.text);
    assert!(full.advice.contains("somaxconn"), "{}", full.advice);

    let mut evidence = full_queue();
    evidence.listeners.iter_mut().for_each(|listener| listener.overflows = 0);
    let lost = only(&evidence);
    assert_eq!((lost.kind, lost.ns), (Kind::Retransmission, 1030 * MS));
    assert!(lost.text.contains("SYN not answered"), "{}", lost.text);
}

#[test]
fn a_listener_that_need_not_be_the_peer_is_not_blamed() {
    // Another one with the same port: which of the two it was is not known.
    let mut evidence = full_queue();
    let mut second = listener("0.0.0.0:8001", 0, 0);
    second.pid = 700;
    evidence.listeners.push(second);
    let finding = only(&evidence);
    assert_eq!(finding.relation, Relation::Coincided);
    assert_eq!(finding.culprit.as_ref().unwrap().pid, 0);

    // Nothing says that the peer is on that host.
    let mut evidence = full_queue();
    evidence.accepts.clear();
    assert_eq!(only(&evidence).kind, Kind::Retransmission);

    // It overflowed at another time.
    let mut evidence = full_queue();
    evidence.listeners = vec![listener("0.0.0.0:8001", 3, 5000)];
    assert_eq!(only(&evidence).kind, Kind::Retransmission);
}

#[test]
fn a_handshake_whose_end_was_dropped_is_the_queues_fault() {
    // Connected at once for the client, which sent in vain until the queue had room.
    let mut evidence = waited(State::NetRead, 1030);
    evidence.losses = vec![loss("rto", 12, 1000)];
    evidence.listeners = vec![listener("10.0.0.2:8001", 2, 0)];
    assert_eq!(only(&evidence).kind, Kind::Retransmission);
    evidence.accepts = vec![accepted(1010)];
    assert_eq!(only(&evidence).kind, Kind::AcceptQueueFull);
    // Where the handshake was complete before, the loss was another.
    evidence.accepts = vec![accepted(5)];
    assert_eq!(only(&evidence).kind, Kind::Retransmission);
}

#[test]
fn a_reader_is_named_with_what_it_did_instead() {
    let window = only(&closed_window());
    assert_eq!((window.kind, window.relation), (Kind::ZeroWindow, Relation::Caused));
    assert_eq!(window.ns, 701 * MS, "from either end's first sign to its last");
    let culprit = window.culprit.as_ref().unwrap();
    assert_eq!((culprit.pid, culprit.tid, culprit.thread.as_str()), (900, 905, "importer"));
    assert!(window.text.contains("was in sleep"), "{}", window.text);
}

#[test]
fn a_reader_that_is_not_watched_stays_an_address() {
    let mut evidence = closed_window();
    evidence.losses.truncate(1);
    evidence.reader_waits.clear();
    let window = only(&evidence);
    assert_eq!(window.culprit.as_ref().unwrap().pid, 0);
    assert!(window.text.contains("not watched"), "{}", window.text);
}

#[test]
fn what_a_reader_did_is_not_guessed() {
    let mut evidence = closed_window();
    evidence.reader_waits[0].duration_ns = 100 * MS;
    let window = only(&evidence);
    assert!(window.text.contains("nothing recorded shows what"), "{}", window.text);
    // Its request is known.
    evidence.peers = vec![served(0, 800, &[])];
    let window = only(&evidence);
    assert!(window.text.contains("serving GET /stock"), "{}", window.text);
    assert_eq!(window.culprit.unwrap().route, "GET /stock");
}

#[test]
fn a_connection_for_every_query_is_found() {
    let evidence = connection_per_query();
    let unpooled = only(&evidence);
    assert_eq!((unpooled.kind, unpooled.relation), (Kind::Unpooled, Relation::Caused));
    assert_eq!(unpooled.ns, 80 * MS, "all but the first");
    assert!(unpooled.text.contains("4 connections to 10.0.0.2:8001"), "{}", unpooled.text);
    assert!(unpooled.advice.contains("pool"), "{}", unpooled.advice);
}

#[test]
fn connections_too_quick_for_a_row_count_as_much_as_the_ledger_has() {
    let mut evidence = connection_per_query();
    evidence.waits.retain(|wait| wait.state != State::NetConnect);
    for connect in &mut evidence.connects {
        connect.duration_ns = 6 * MS;
    }
    evidence.request.as_mut().unwrap().ledger[State::NetConnect] = 15 * MS;
    let found = findings(&evidence);
    let unpooled = found.iter().find(|finding| finding.kind == Kind::Unpooled).unwrap();
    assert_eq!(unpooled.ns, 15 * MS);
}

#[test]
fn a_pool_that_grows_is_not_accused() {
    // One more connection in this request: it may be kept from now on.
    let mut evidence = connection_per_query();
    evidence.connects.truncate(1);
    evidence.connects[0].reconnect_ns = 300 * MS;
    let found = findings(&evidence);
    let unpooled = found.iter().find(|finding| finding.kind == Kind::Unpooled).unwrap();
    assert_eq!((unpooled.relation, unpooled.ns), (Relation::Coincided, 20 * MS));

    // Each to another peer, or long after the last, or in vain.
    for change in [
        |c: &mut underspan_model::TcpConnect| c.reconnect_ns = 0,
        |c: &mut underspan_model::TcpConnect| c.reconnect_ns = 5_000 * MS,
        |c: &mut underspan_model::TcpConnect| c.outcome = String::from("refused"),
        |c: &mut underspan_model::TcpConnect| c.tid = 4112,
    ] {
        let mut evidence = connection_per_query();
        evidence.connects.iter_mut().for_each(change);
        assert!(findings(&evidence).iter().all(|finding| finding.kind != Kind::Unpooled));
    }
}

#[test]
fn the_peer_is_followed_into_its_request() {
    let explanation = explain(&followed()).unwrap();
    let [read] = explanation.findings.as_slice() else { panic!("{:#?}", explanation.findings) };
    assert_eq!((read.kind, read.relation, read.ns), (Kind::NetRead, Relation::Caused, 2000 * MS));
    let culprit = read.culprit.as_ref().unwrap();
    assert_eq!((culprit.pid, culprit.tid), (900, 905));
    assert_eq!((culprit.route.as_str(), culprit.peer.as_str()), ("GET /stock", PEER));
    assert!(
        read.text.contains(
            "the peer 10.0.0.2:8001 was gunicorn (900) on backend-1, thread stock-worker, serving \
             GET /stock (request 0000000000000041), which spent 1800.0 ms in gil_wait"
        ),
        "{}",
        read.text
    );
    assert!(read.advice.contains("underspan explain 0000000000000041"), "{}", read.advice);
    let served = one_socket(&explanation).request.as_ref().unwrap();
    assert_eq!((served.longest.part, served.ns), ("gil_wait", 1998 * MS));
}

#[test]
fn a_peer_is_followed_only_by_all_four_of_its_numbers() {
    for change in [
        |r: &mut underspan_model::Request| r.peer = String::from("10.0.0.1:40002"),
        |r: &mut underspan_model::Request| r.local = String::from("10.0.0.2:8002"),
        |r: &mut underspan_model::Request| r.start_time += 60_000 * MS,
        // It was there, but not for what the wait was for.
        |r: &mut underspan_model::Request| r.duration_ns = 500 * MS,
    ] {
        let mut evidence = followed();
        evidence.peers.iter_mut().for_each(change);
        let read = only(&evidence);
        assert_eq!(read.culprit.unwrap().pid, 0);
        assert!(read.text.contains("was slow to answer"), "{}", read.text);
    }
}

/// Many connections, and a thread for each at the other end: none of them has had all of the time.
#[test]
fn of_several_threads_at_the_peer_none_is_blamed_for_all_of_it() {
    let mut evidence = followed();
    let whole = evidence.peers.remove(0);
    evidence.peers = (0..4)
        .map(|n| underspan_model::Request {
            request_id: format!("{:016x}", 0x50 + n),
            tid: 905 + u32::try_from(n).unwrap(),
            start_time: whole.start_time + n * 499 * MS,
            duration_ns: 499 * MS,
            ..whole.clone()
        })
        .collect();
    let read = only(&evidence);
    assert!(read.text.contains(", the longest of 4 on 4 threads)"), "{}", read.text);
    let culprit = read.culprit.unwrap();
    assert_eq!((culprit.pid, culprit.tid, culprit.thread.as_str()), (900, 0, "4 threads"));
    // One thread that serves them all is.
    evidence.peers.iter_mut().for_each(|r| r.tid = 905);
    assert_eq!(only(&evidence).culprit.unwrap().tid, 905);
    for peer in &mut evidence.peers {
        (peer.method, peer.path) = <_>::default();
    }
    let text = only(&evidence).text;
    assert!(text.contains("serving request 00000000000000"), "{text}");
}

#[test]
fn its_own_queue_was_full() {
    let finding = only(&own_queue_full());
    assert_eq!((finding.kind, finding.pattern), (Kind::AcceptQueue, "queue_full"));
    assert!(finding.text.contains("6 allowed by its limit of 5"), "{}", finding.text);
    // What a second counts may lie just before or after.
    assert!(
        finding.text.contains("4 more were dropped within a second of that"),
        "{}",
        finding.text
    );
    assert!(finding.advice.contains("--backlog"), "{}", finding.advice);
    let mut evidence = own_queue_full();
    // It holds one more than its limit.
    for length in [2, 5] {
        evidence.accepts[0].queue_length = length;
        assert_eq!(only(&evidence).pattern, "", "{length}");
    }
}

#[test]
fn what_the_host_counted_only_coincided() {
    let explanation = explain(&busy_host()).unwrap();
    let kinds: Vec<_> =
        explanation.meanwhile.iter().map(|c| (c.kind, c.what.as_str(), c.amount)).collect();
    assert_eq!(
        kinds,
        [
            ("host_throttled", "node_ethtool_bw_in_allowance_exceeded", 812),
            ("packets_late", "firewall", 2_500_000),
        ]
    );
    assert!(explanation.meanwhile.iter().all(|c| c.relation == Relation::Coincided));
    assert_eq!(explanation.findings.len(), 1, "no time is claimed for it");
}

#[test]
fn counters_that_do_not_fit_the_request_are_not_told() {
    let steal = counter("cpu", "node_cpu_seconds_total", "1", "ns", 400 * MS);
    let quota = "container_cpu_cfs_throttled_seconds_total";
    let own = counter("cgroup", quota, "/system.slice/shop.service", "ns", 600 * MS);
    let other = counter("cgroup", quota, "/system.slice/other.service", "ns", 600 * MS);
    // It waited for its peer, not for a CPU.
    let mut evidence = waited(State::NetRead, 900);
    evidence.counters = vec![steal.clone(), own.clone()];
    evidence.counters.push(counter(
        "ena",
        "node_ethtool_bw_in_allowance_exceeded",
        "e",
        "count",
        0,
    ));
    assert_eq!(explain(&evidence).unwrap().meanwhile, []);
    // Now it did.
    let subjects = |evidence: &Evidence| -> Vec<String> {
        explain(evidence).unwrap().meanwhile.into_iter().map(|c| c.subject).collect()
    };
    let mut evidence = waited(State::Runnable, 500);
    evidence.counters = vec![steal, own, other];
    assert_eq!(subjects(&evidence), ["/system.slice/shop.service", "1"]);
    // Of its own time that the quota took a finding is certain.
    let counters = std::mem::take(&mut evidence.counters);
    let evidence = Evidence { counters, ..waited(State::Throttled, 500) };
    assert_eq!(subjects(&evidence), ["1"]);
    let explanation = explain(&evidence).unwrap();
    assert_eq!(explanation.findings[0].kind, Kind::Throttled);
    assert_eq!(explanation.findings[0].relation, Relation::Caused);
    // Ticks of a hypervisor are always there.
    let mut evidence = waited(State::Runnable, 500);
    evidence.counters = vec![counter("cpu", "node_cpu_seconds_total", "1", "ns", 20 * MS)];
    assert_eq!(explain(&evidence).unwrap().meanwhile, []);
}

#[test]
fn an_undisturbed_request_has_nothing() {
    let mut evidence = quiet();
    evidence.counters = busy_host().counters;
    evidence.packets = busy_host().packets;
    evidence.losses = lost_segments().losses;
    let explanation = explain(&evidence).unwrap();
    assert_eq!(explanation.findings, []);
    assert_eq!(explanation.meanwhile, []);
    assert_eq!(explanation.sockets, []);
}

/// Its SYN was dropped, and sent again a second later: of that time no row here tells.
#[test]
fn what_was_dropped_before_it_came_may_have_been_its_own() {
    let note = |evidence: &Evidence| {
        let notes = explain(evidence).unwrap().notes;
        notes.into_iter().find(|note| note.contains("queue of its listener"))
    };
    let mut evidence = dropped_before();
    let request = evidence.request.clone().unwrap();
    let second = |from_ms: u64, overflows| {
        let mut row = listener("0.0.0.0:8000", overflows, 0);
        row.host.clone_from(&request.host);
        row.start_time = T0 - from_ms * MS;
        row
    };
    let told = note(&evidence).unwrap();
    assert!(told.starts_with("18 attempts to connect found the queue"), "{told}");
    assert!(told.contains("1 or 3 s more"), "{told}");
    assert!(explain(&evidence).unwrap().findings.is_empty());
    // Longer ago, another port, another host's.
    let mut port = second(1100, 16);
    port.local = String::from("0.0.0.0:8001");
    for row in [second(4100, 16), port, listener("0.0.0.0:8000", 16, 0)] {
        evidence.listeners = vec![row];
        assert_eq!(note(&evidence), None);
    }
    // A later request of its connection.
    evidence.listeners = vec![second(1100, 16)];
    evidence.request.as_mut().unwrap().conn_request = 1;
    assert_eq!(note(&evidence), None);
}
