//! What each program costs, by the kernel's own count. Prints; asks for a quiet machine:
//! `sudo -E cargo test -p underspan-trackers --test session tcp::cost -- --ignored --nocapture`

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;

use super::wire::{Family, Wire};
use super::{connect, connected, listen};
use crate::watcher::Watcher;

/// How often each program whose name begins so ran, and for how long. Nanoseconds.
pub(crate) fn counts(watcher: &Watcher, prefix: &str) -> BTreeMap<String, [u64; 2]> {
    let mut counts = BTreeMap::new();
    watcher.session.each_program(|name, fd| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        let info = info.unwrap();
        let number = |what: &str| -> u64 {
            let value = info.lines().find_map(|line| line.strip_prefix(what)).unwrap();
            value.trim().parse().unwrap()
        };
        if name.starts_with(prefix) {
            counts.insert(name.to_owned(), [number("run_cnt:"), number("run_time_ns:")]);
        }
    });
    counts
}

/// Connections one after the other, then much on one.
fn load(wire: &Wire) {
    let listener = listen(wire, Family::V4);
    let to = listener.local_addr().unwrap();
    wire.client.within(|| {
        for _ in 0..3_000 {
            let client = std::net::TcpStream::connect(to).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop((client, server));
        }
    });
    let (mut client, mut server) = connected(wire, Family::V4);
    let bytes = 30_000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5_000 {
                client.write_all(&vec![1; bytes]).unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        });
        for _ in 0..5_000 {
            server.read_exact(&mut vec![0; bytes]).unwrap();
            server.write_all(&[1]).unwrap();
        }
    });
    drop(connect(wire, to));
}

/// The kernel counts until this is dropped.
pub(crate) fn statistics() -> OwnedFd {
    // SAFETY: it makes a descriptor, and takes a number.
    let statistics = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    assert!(statistics >= 0, "the kernel counts");
    // SAFETY: it was just made, and is nobody else's.
    unsafe { OwnedFd::from_raw_fd(statistics) }
}

/// Prints what each program cost since `before`.
pub(crate) fn print(before: &BTreeMap<String, [u64; 2]>, after: &BTreeMap<String, [u64; 2]>) {
    for (name, [runs, ns]) in after {
        let [runs, ns] = [runs - before[name][0], ns - before[name][1]];
        println!("{name:26} {runs:8} times, {:6.0} ns each", ns as f64 / runs.max(1) as f64);
    }
}

#[test]
#[ignore = "it measures"]
fn of_each_program() {
    let _statistics = statistics();
    for watched in [false, true] {
        let mut watcher = Watcher::new();
        let wire = Wire::new();
        for end in [&wire.client, &wire.server] {
            end.ip("link set wire gso_max_segs 65535");
        }
        if watched {
            watcher.watch(std::process::id());
        }
        let before = counts(&watcher, "tcp_");
        load(&wire);
        watcher.drain();
        println!("watched: {watched}");
        print(&before, &counts(&watcher, "tcp_"));
    }
}
