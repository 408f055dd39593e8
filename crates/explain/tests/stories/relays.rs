//! Requests that a proxy passes on.

use underspan_explain::{Evidence, Relay, explain};
use underspan_model::{Request, State};

use crate::common::*;
use crate::{handler, of};

/// nginx's request, of 800 ms.
fn at_proxy() -> Request {
    let mut own = handler(&[(State::PollWait, 780)]);
    (own.process, own.thread) = (String::from("nginx"), String::from("nginx"));
    own
}

/// What another process made of it.
fn upstream(id: u64, pid: u32, from_ms: u64, ms: u64) -> Request {
    let shape = Shape {
        id,
        worker: 1,
        at_ms: from_ms,
        accept_queue: 0,
        handoff: 0,
        handler: ms,
        cells: &[],
    };
    Request { pid, ..request("/x", &shape) }
}

fn relay(own: Request, upstreams: Vec<Request>) -> Option<Relay> {
    explain(&Evidence { upstreams, ..of(own) }).unwrap().relay
}

#[test]
fn the_upstreams_request_is_named() {
    let told = relay(at_proxy(), vec![upstream(7, 9000, 40, 758)]).unwrap();
    assert_eq!((told.request_id.as_str(), told.pid), ("0000000000000007", 9000));
    assert_eq!((told.after_ns, told.duration_ns), (40 * MS, 758 * MS));
    assert_eq!((told.process.as_str(), told.known_by), ("gunicorn", "route_and_time"));
}

#[test]
fn a_chain_of_proxies_begins_with_the_next() {
    let inner = upstream(8, 9100, 41, 756);
    let told = relay(at_proxy(), vec![inner, upstream(7, 9000, 40, 758)]).unwrap();
    assert_eq!(told.pid, 9000);
}

#[test]
fn one_of_several_is_not_guessed() {
    // Another request of the same route ended as soon before; it came earlier, or to the same process.
    assert_eq!(
        relay(at_proxy(), vec![upstream(7, 9000, 40, 757), upstream(8, 9100, 20, 776)]),
        None
    );
    assert_eq!(
        relay(at_proxy(), vec![upstream(7, 9000, 40, 758), upstream(8, 9000, 50, 747)]),
        None
    );
}

#[test]
fn what_was_not_passed_on_is_not_told() {
    let own = at_proxy();
    let other = |change: fn(&mut Request)| {
        let mut other = upstream(7, 9000, 40, 758);
        change(&mut other);
        relay(own.clone(), vec![other])
    };
    assert!(other(|_| {}).is_some());
    assert_eq!(other(|r| r.path = String::from("/y")), None);
    assert_eq!(other(|r| r.status = 500), None);
    assert_eq!(other(|r| r.host = String::from("web-2")), None);
    assert_eq!(other(|r| r.pid = PID), None);
    // It began before, ended after, or long before.
    assert_eq!(other(|r| r.start_time -= 50 * MS), None);
    assert_eq!(other(|r| r.start_time += 5 * MS), None);
    assert_eq!(other(|r| r.start_time -= 10 * MS), None);
    // Without a route anything would do.
    let mut unnamed = own.clone();
    unnamed.path = String::new();
    let nameless = Request { path: String::new(), ..upstream(7, 9000, 40, 758) };
    assert_eq!(relay(unnamed, vec![nameless]), None);
}

#[test]
fn a_trace_is_better_than_a_route() {
    let traced = |mut request: Request, parent: &str| {
        request.trace_id = String::from("0af7651916cd43dd8448eb211c80319c");
        request.parent_span_id = parent.to_owned();
        request
    };
    let own = traced(at_proxy(), "b7ad6b7169203331");
    let rewritten = Request { path: String::from("/v2/x"), ..upstream(7, 9000, 40, 500) };
    let told = relay(own.clone(), vec![traced(rewritten.clone(), "b7ad6b7169203331")]).unwrap();
    assert_eq!((told.route.as_str(), told.known_by), ("GET /v2/x", "trace"));
    // Another span called that one: a service's own call, or that of a third.
    assert_eq!(relay(own, vec![traced(rewritten, "00f067aa0ba902b7")]), None);
}
