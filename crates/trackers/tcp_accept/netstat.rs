//! What a network namespace counts of its listening sockets, all of them together.

/// `TcpExt` counters of `/proc/TID/net/netstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Netstat {
    /// Connections refused since an accept queue was full.
    pub(super) listen_overflows: u64,
    /// SYN cookies sent, since a queue of handshakes was full.
    pub(super) syn_cookies_sent: u64,
}

impl Netstat {
    /// Of the namespace that a thread is in. `None`: it is gone, or may not be looked at.
    pub(super) fn of(tid: u32) -> Option<Netstat> {
        parse(&std::fs::read_to_string(format!("/proc/{tid}/net/netstat")).ok()?)
    }
}

/// Which of a namespace's overflows were one socket's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overflows {
    /// What the namespace had counted. `None`: it could not be read.
    counted: Option<u64>,
    /// What it counted last that the socket had not dropped yet.
    spare: u64,
}

impl Overflows {
    /// Begins at this reading.
    pub(super) fn new(counted: Option<u64>) -> Self {
        Overflows { counted, spare: 0 }
    }

    /// Of what the namespace has counted since the reading before, what is this socket's, which dropped so
    /// many while its queue was full: no more than those. The socket is read first, and on a busy host much earlier: what overflows in
    /// between is among its drops only at the next reading.
    pub(super) fn since(&mut self, counted: Option<u64>, drops: u32) -> u32 {
        let new = match (counted, self.counted) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        let drops = u64::from(drops);
        let before = self.spare.min(drops);
        let now = new.min(drops - before);
        *self = Overflows { counted: counted.or(self.counted), spare: new - now };
        u32::try_from(before + now).unwrap_or(u32::MAX)
    }
}

/// Two lines: names, then values.
fn parse(text: &str) -> Option<Netstat> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut found = Netstat::default();
    for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
        match name {
            "ListenOverflows" => found.listen_overflows = value.parse().ok()?,
            "SyncookiesSent" => found.syn_cookies_sent = value.parse().ok()?,
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::{Netstat, Overflows, parse};

    /// Readings: what the namespace had counted, what the socket dropped, what was its.
    fn read(readings: &[(Option<u64>, u32, u32)]) {
        let mut overflows = Overflows::new(Some(100));
        for (counted, drops, expected) in readings {
            assert_eq!(
                overflows.since(*counted, *drops),
                *expected,
                "{counted:?}, {drops} of {readings:?}"
            );
        }
    }

    #[test]
    fn a_socket_has_no_more_overflows_than_it_dropped() {
        read(&[(Some(103), 3, 3), (Some(103), 5, 0), (Some(110), 2, 2)]);
    }

    #[test]
    fn what_overflowed_after_the_socket_was_read_is_its_at_the_next_reading() {
        read(&[(Some(102), 0, 0), (Some(102), 2, 2), (Some(102), 2, 0)]);
        read(&[(Some(105), 2, 2), (Some(106), 4, 4)]);
        // Two readings later it was another's.
        read(&[(Some(102), 0, 0), (Some(102), 0, 0), (Some(102), 2, 0)]);
    }

    #[test]
    fn a_namespace_that_cannot_be_read_has_counted_nothing() {
        read(&[(None, 4, 0), (Some(101), 4, 1)]);
        let mut overflows = Overflows::new(None);
        assert_eq!(overflows.since(Some(700), 9), 0, "from any time");
        assert_eq!(overflows.since(Some(701), 9), 1);
    }

    #[test]
    fn names_and_values_belong_together_by_place() {
        let text = "TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops\n\
                    TcpExt: 3 4 5 6\n\
                    IpExt: InNoRoutes ListenOverflows\nIpExt: 7 8\n";
        let expected = Netstat { listen_overflows: 5, syn_cookies_sent: 3 };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("TcpExt: ListenOverflows\n"), None);
        assert_eq!(parse("TcpExt: ListenOverflows\nTcpExt: many\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        assert!(Netstat::of(std::process::id()).is_some());
        assert_eq!(Netstat::of(0), None);
    }
}
