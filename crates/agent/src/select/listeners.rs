//! Which processes own a listening socket.
//!
//! `/proc/PID/fd` tells the sockets a process holds, and `/proc/PID/net` which ones of its network
//! namespace listen. Each namespace is read once per scan.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

/// Inodes of the listening sockets of one network namespace.
#[derive(Debug, Default)]
struct Namespace {
    tcp: HashSet<u64>,
    unix: HashSet<u64>,
}

/// The listening sockets of every network namespace met so far. Make a new one for each scan.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    namespaces: HashMap<String, Namespace>,
}

/// What a process listens on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listens {
    pub(super) tcp: bool,
    pub(super) unix: bool,
}

impl Listeners {
    /// What `pid` listens on. Unix sockets are looked for only where `unix` asks for it: nearly every
    /// daemon has one. What cannot be read counts as nothing.
    pub(super) fn of(&mut self, pid: u32, unix: bool) -> Listens {
        // First, because it is cheap: most processes hold no socket, and reading the tables makes
        // the kernel walk all its connections.
        let held = sockets(pid);
        if held.is_empty() {
            return Listens::default();
        }
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else {
            return Listens::default();
        };
        let namespace = namespace.to_string_lossy().into_owned();
        let sockets = self.namespaces.entry(namespace).or_insert_with(|| Namespace::read(pid));
        let listens = |inodes: &HashSet<u64>| held.iter().any(|inode| inodes.contains(inode));
        Listens { tcp: listens(&sockets.tcp), unix: unix && listens(&sockets.unix) }
    }
}

/// Inodes of the sockets a process holds.
fn sockets(pid: u32) -> Vec<u64> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    descriptors.flatten().filter_map(|descriptor| socket_inode(&descriptor)).collect()
}

impl Namespace {
    fn read(pid: u32) -> Self {
        let mut sockets = Namespace::default();
        for table in ["tcp", "tcp6"] {
            if let Some(lines) = lines(pid, table) {
                sockets.tcp.extend(tcp_listeners(lines));
            }
        }
        if let Some(lines) = lines(pid, "unix") {
            sockets.unix.extend(unix_listeners(lines));
        }
        sockets
    }
}

fn lines(pid: u32, table: &str) -> Option<impl Iterator<Item = String>> {
    let file = File::open(format!("/proc/{pid}/net/{table}")).ok()?;
    Some(BufReader::new(file).lines().skip(1).map_while(std::io::Result::ok))
}

/// The kernel lists listening sockets first, so the rest (there may be a million) is never read.
fn tcp_listeners(lines: impl Iterator<Item = String>) -> impl Iterator<Item = u64> {
    const STATE: usize = 3;
    const INODE: usize = 9;
    lines
        .take_while(|line| line.split_ascii_whitespace().nth(STATE) == Some("0A"))
        .filter_map(|line| line.split_ascii_whitespace().nth(INODE)?.parse().ok())
}

fn unix_listeners(lines: impl Iterator<Item = String>) -> impl Iterator<Item = u64> {
    const FLAGS: usize = 3;
    const TYPE: usize = 4;
    const INODE: usize = 6;
    // __SO_ACCEPTCON, SOCK_STREAM
    lines.filter_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().take(INODE + 1).collect();
        let listens = fields.get(FLAGS) == Some(&"00010000") && fields.get(TYPE) == Some(&"0001");
        if listens { fields.get(INODE)?.parse().ok() } else { None }
    })
}

fn socket_inode(descriptor: &fs::DirEntry) -> Option<u64> {
    let target = fs::read_link(descriptor.path()).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_test_itself_listens_once_it_does() {
        let me = std::process::id();
        let dir = tempfile::tempdir().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(Listeners::default().of(me, false).tcp, "{address}");
        }
        let _listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(Listeners::default().of(me, true).unix);
        assert!(!Listeners::default().of(me, false).unix);
    }

    #[test]
    fn connections_are_no_listeners() {
        let line = |state| format!(" 0: 0100007F:1F90 00000000:0000 {state} 0:0 00:0 0 0 0 77 1 x");
        let lines = [line("0A"), line("01"), line("0A")];
        assert_eq!(tcp_listeners(lines.into_iter()).collect::<Vec<_>>(), [77]);
    }

    #[test]
    fn what_is_gone_listens_on_nothing() {
        assert_eq!(Listeners::default().of(u32::MAX, true), Listens::default());
    }
}
