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
    use super::{Netstat, parse};

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
