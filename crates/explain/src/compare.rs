//! Did the fix work? Two sets of requests, side by side.

use std::collections::BTreeMap;

use serde::Serialize;
use underspan_model::{Request, State};

use crate::case::route;
use crate::window::Window;

/// Before against after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// All requests.
    pub before: Summary,
    /// All requests.
    pub after: Summary,
    /// Per cause, the largest change first. Causes that took no time on either side are left out.
    pub causes: Vec<CauseChange>,
    /// Per method and path, the largest change of the 95th percentile first.
    pub routes: Vec<RouteChange>,
}

/// How long requests took. Percentiles are durations that occurred (nearest rank); 0 without requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How many.
    pub requests: usize,
    /// Their mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The slowest.
    pub max_ns: u64,
}

/// Nanoseconds per request that went to one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CauseChange {
    /// `accept_queue`, `handoff`, a ledger state, `handler` (an event loop's) or `unaccounted`.
    pub cause: &'static str,
    /// Mean per request.
    pub before_ns: u64,
    /// Mean per request.
    pub after_ns: u64,
}

/// One method and path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteChange {
    /// Method and path, or empty where the requests were not HTTP.
    pub route: String,
    /// Its requests.
    pub before: Summary,
    /// Its requests.
    pub after: Summary,
    /// Per cause, the largest change first.
    pub causes: Vec<CauseChange>,
}

/// Compares two sets of requests.
pub fn compare(before: &[Request], after: &[Request]) -> Comparison {
    let (before, after): (Vec<_>, Vec<_>) = (before.iter().collect(), after.iter().collect());
    let mut routes: BTreeMap<String, (Vec<&Request>, Vec<&Request>)> = BTreeMap::new();
    for request in &before {
        routes.entry(route(request)).or_default().0.push(request);
    }
    for request in &after {
        routes.entry(route(request)).or_default().1.push(request);
    }
    let mut routes: Vec<_> = routes
        .into_iter()
        .map(|(route, (before, after))| RouteChange {
            route,
            before: summary(durations(&before)),
            after: summary(durations(&after)),
            causes: changes(&before, &after),
        })
        .collect();
    // One that is on one side only was not changed by the fix.
    routes.sort_by_key(|r| {
        let is_on_both = r.before.requests > 0 && r.after.requests > 0;
        std::cmp::Reverse((is_on_both, r.before.p95_ns.abs_diff(r.after.p95_ns)))
    });
    Comparison {
        before: summary(durations(&before)),
        after: summary(durations(&after)),
        causes: changes(&before, &after),
        routes,
    }
}

fn durations(requests: &[&Request]) -> Vec<u64> {
    requests.iter().map(|request| request.duration_ns).collect()
}

fn changes(before: &[&Request], after: &[&Request]) -> Vec<CauseChange> {
    let (before, after) = (causes(before), causes(after));
    let names = std::iter::once("accept_queue").chain(["handoff", "handler", "unaccounted"]);
    let names = names.chain(State::ALL.into_iter().map(State::name));
    let mut changes: Vec<_> = names
        .map(|cause| CauseChange {
            cause,
            before_ns: before.get(cause).copied().unwrap_or(0),
            after_ns: after.get(cause).copied().unwrap_or(0),
        })
        .filter(|change| change.before_ns > 0 || change.after_ns > 0)
        .collect();
    changes.sort_by_key(|c| (std::cmp::Reverse(c.before_ns.abs_diff(c.after_ns)), c.cause));
    changes
}

fn summary(mut durations: Vec<u64>) -> Summary {
    durations.sort_unstable();
    // Nearest rank: the smallest duration that at least this share of requests did not exceed.
    let percentile = |p: usize| {
        let rank = (durations.len() * p).div_ceil(100).max(1);
        durations.get(rank - 1).copied().unwrap_or(0)
    };
    let sum: u128 = durations.iter().map(|&ns| u128::from(ns)).sum();
    let mean = sum / (durations.len().max(1) as u128);
    Summary {
        requests: durations.len(),
        mean_ns: u64::try_from(mean).unwrap_or(u64::MAX),
        p50_ns: percentile(50),
        p95_ns: percentile(95),
        p99_ns: percentile(99),
        max_ns: percentile(100),
    }
}

/// Mean nanoseconds per request and cause.
fn causes(requests: &[&Request]) -> BTreeMap<&'static str, u64> {
    let mut sums: BTreeMap<&'static str, u128> = BTreeMap::new();
    let mut add = |cause, ns: u64| *sums.entry(cause).or_default() += u128::from(ns);
    for request in requests {
        let window = Window::of(request);
        add("accept_queue", window.accept_queue.len());
        add("handoff", window.handoff.len());
        if request.shared_thread != 0 {
            add("handler", window.handler.len());
            continue;
        }
        window.ledger.iter().for_each(|(state, ns)| add(state.name(), ns));
        add("unaccounted", window.unaccounted);
    }
    let requests = requests.len().max(1) as u128;
    sums.into_iter().map(|(c, ns)| (c, u64::try_from(ns / requests).unwrap_or(u64::MAX))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, handoff_ns: u64, handler_ns: u64) -> Request {
        let mut request = Request {
            method: String::from("GET"),
            path: path.to_owned(),
            duration_ns: handoff_ns + handler_ns,
            handoff_ns,
            handler_ns,
            ..Request::default()
        };
        request.ledger[State::NetRead] = handler_ns;
        request
    }

    #[test]
    fn percentiles_are_durations_that_occurred() {
        let summary = summary((1..=200).collect());
        assert_eq!((summary.p50_ns, summary.p95_ns, summary.p99_ns), (100, 190, 198));
        assert_eq!((summary.max_ns, summary.requests), (200, 200));
        assert_eq!(super::summary(vec![]), Summary::default());
    }

    #[test]
    fn the_cause_that_went_away_comes_first() {
        let before = [request("/a", 3000, 200), request("/a", 1000, 200), request("/b", 0, 50)];
        let after = [request("/a", 0, 210), request("/b", 0, 50)];
        let comparison = compare(&before, &after);
        assert_eq!(
            comparison.causes,
            [
                CauseChange { cause: "handoff", before_ns: 1333, after_ns: 0 },
                CauseChange { cause: "net_read", before_ns: 150, after_ns: 130 },
            ]
        );
        assert_eq!(comparison.routes[0].route, "GET /a");
        assert_eq!(comparison.routes[0].before.max_ns, 3200);
        assert_eq!(
            comparison.routes[0].causes[0],
            CauseChange { cause: "handoff", before_ns: 2000, after_ns: 0 }
        );
        assert_eq!(comparison.routes[1].after.requests, 1);
    }

    #[test]
    fn a_route_of_one_side_comes_last() {
        let before = [request("/a", 0, 200), request("/gone", 0, 9000)];
        let comparison = compare(&before, &[request("/a", 0, 100)]);
        let routes: Vec<_> = comparison.routes.iter().map(|r| r.route.as_str()).collect();
        assert_eq!(routes, ["GET /a", "GET /gone"]);
        assert_eq!(comparison.routes[1].after, Summary::default());
    }
}
