//! Requests that were read and have no answer yet.

use std::collections::HashMap;

use underspan_trackers::RequestRead;

/// More than this are not followed.
const MOST: usize = 65_536;

/// Requests in flight, by id.
#[derive(Debug, Default)]
pub(crate) struct InFlight(HashMap<u64, RequestRead>);

impl InFlight {
    pub(crate) fn read(&mut self, request: RequestRead) {
        if self.0.len() < MOST {
            self.0.insert(request.id, request);
        }
    }

    pub(crate) fn answered(&mut self, id: u64) {
        self.0.remove(&id);
    }

    pub(crate) fn process_ended(&mut self, pid: u32) {
        self.0.retain(|_, request| request.pid != pid);
    }

    /// Whether this thread serves a request.
    pub(crate) fn serves(&self, tid: u32) -> bool {
        self.0.values().any(|request| request.tid == tid)
    }

    /// The oldest first.
    pub(crate) fn oldest_first(&self) -> Vec<&RequestRead> {
        let mut requests: Vec<_> = self.0.values().collect();
        requests.sort_by_key(|request| (request.ready, request.id));
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, tid: u32, ready: u64) -> RequestRead {
        RequestRead {
            id,
            pid: 1,
            tid,
            ready,
            read: ready + 5,
            method: "GET".to_owned(),
            path: "/".to_owned(),
            peer: String::new(),
            ledger: None,
        }
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_answered_or_its_process_ends() {
        let mut requests = InFlight::default();
        requests.read(request(1, 10, 200));
        requests.read(request(2, 11, 100));
        let order: Vec<_> = requests.oldest_first().iter().map(|request| request.id).collect();
        assert_eq!(order, [2, 1]);
        assert!(requests.serves(10) && !requests.serves(12));
        requests.answered(2);
        requests.answered(7);
        assert!(!requests.serves(11));
        requests.process_ended(1);
        assert!(requests.oldest_first().is_empty());
    }
}
