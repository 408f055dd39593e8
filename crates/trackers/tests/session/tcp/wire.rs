//! Two network namespaces, the wire between them, and what went over it.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use libbpf_rs::{
    MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, TC_EGRESS, TcHookBuilder,
};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};

use super::relay::Relay;

/// Kinds of segments, as in `wire.bpf.c`.
pub(super) const SYN: u32 = 1;
pub(super) const SYN_ACK: u32 = 2;
pub(super) const DATA: u32 = 4;
pub(super) const ACK: u32 = 8;

/// A segment, as it was put on the wire. Times are CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) time: u64,
    interface: u32,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) len: u32,
    /// As in the header: not scaled.
    pub(super) window: u32,
    pub(super) flags: u32,
    pub(super) lost: bool,
}

impl Packet {
    /// What it acknowledges is not before `seq`.
    pub(super) fn acknowledges(&self, seq: u32) -> bool {
        self.flags & 0x10 != 0 && (self.ack.wrapping_sub(seq) as i32) >= 0
    }

    pub(super) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }
}

/// An end of the wire.
pub(super) struct End {
    name: String,
    namespace: File,
    interface: u32,
    host: u8,
}

impl End {
    pub(super) fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 77, 0, self.host).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.host.into()).into(),
        }
    }

    /// Calls `what` on a thread that is in the namespace. The sockets it makes stay there.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.namespace, what)
    }

    /// Runs `ip` in the namespace.
    pub(super) fn ip(&self, arguments: &str) {
        run("ip", &format!("-n {} {arguments}", self.name));
    }

    /// Runs `tc` in the namespace.
    pub(super) fn tc(&self, arguments: &str) {
        run("tc", &format!("-n {} {arguments}", self.name));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const BOTH: [Family; 2] = [Family::V4, Family::V6];
}

/// Goes with its namespaces when it is dropped.
pub(super) struct Wire {
    /// Where clients are.
    pub(super) client: End,
    /// Where servers are.
    pub(super) server: End,
    rules: MapHandle,
    packets: MapHandle,
    count: MapHandle,
    _object: Object,
}

fn within<T: Send>(namespace: &File, what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("a namespace");
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Of a namespace that there is not yet.
fn name(end: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    format!("us{}-{number}{end}", std::process::id())
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program} (package iproute2): {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {said}");
}

fn compile() -> Object {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire.bpf.o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session/tcp/wire.bpf.c");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-Wall", "-Werror"])
        .args(["-idirafter", "/usr/include/x86_64-linux-gnu", "-c"])
        .arg(source)
        .arg("-o")
        .arg(&output)
        .status()
        .expect("clang, which the build needs too");
    assert!(status.success(), "the wire does not compile");
    let open = ObjectBuilder::default().open_file(&output).expect("it was just compiled");
    open.load().expect("these tests load BPF programs and need root")
}

impl Wire {
    pub(super) fn new() -> Self {
        let (client, server) = (name("c"), name("s"));
        for name in [&client, &server] {
            run("ip", &format!("netns add {name}"));
        }
        // Their numbers tell them apart; without them each would be the first of its namespace.
        let link = format!("link add wire index 1001 netns {client} type veth");
        run("ip", &format!("{link} peer name wire index 1002 netns {server}"));
        Wire::of(client, server)
    }

    /// One on which everything takes as long as the relay says.
    pub(super) fn far() -> (Self, Relay) {
        let (client, server, middle) = (name("c"), name("s"), name("m"));
        for name in [&client, &server, &middle] {
            run("ip", &format!("netns add {name}"));
        }
        let ends = [("wire index 1001", &client, "near"), ("wire index 1002", &server, "far")];
        for (wire, end, other) in ends {
            let link = format!("link add {wire} netns {end} type veth");
            run("ip", &format!("{link} peer name {other} netns {middle}"));
            run("ip", &format!("-n {middle} link set {other} addrgenmode none up"));
        }
        let namespace = File::open(format!("/run/netns/{middle}")).expect("ip has just made it");
        let relay = within(&namespace, || Relay::between(["near", "far"]));
        // The interfaces stay for as long as the ends are there and the relay has it open.
        run("ip", &format!("netns delete {middle}"));
        (Wire::of(client, server), relay)
    }

    fn of(client: String, server: String) -> Self {
        let object = compile();
        let program = object.progs_mut().next().expect("a program").as_fd().as_raw_fd();
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name).expect("a map");
            MapHandle::try_from(&map).expect("a map")
        };
        let (rules, packets, count) = (map("rules"), map("packets"), map("count"));
        Wire {
            client: end(client, 1, program),
            server: end(server, 2, program),
            rules,
            packets,
            count,
            _object: object,
        }
    }

    /// From now on loses, of what `end` sends of these kinds, so many segments after so many.
    pub(super) fn lose(&self, end: &End, kinds: u32, skip: u32, drop: u32) {
        self.rule(end, [kinds, skip, drop, 0]);
    }

    /// From now on loses each segment of these kinds that `end` sends with a chance of so many in a thousand.
    pub(super) fn lose_some(&self, end: &End, kinds: u32, per_mille: u32) {
        self.rule(end, [kinds, 0, 0, per_mille]);
    }

    fn rule(&self, end: &End, rule: [u32; 4]) {
        let rule: Vec<u8> = rule.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.rules
            .update(&end.interface.to_ne_bytes(), &rule, MapFlags::ANY)
            .expect("rules can be made");
    }

    /// What this end has put on the wire since the wire was made, in order.
    pub(super) fn sent(&self, end: &End) -> Vec<Packet> {
        let count = self.count.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let count = count.expect("an array").expect("an array");
        let count = u64::from_ne_bytes(count.try_into().expect("eight bytes"));
        assert!(count < 65_536, "the log of the wire is full");
        (0..count as u32)
            .map(|index| {
                let bytes = self.packets.lookup(&index.to_ne_bytes(), MapFlags::ANY);
                packet(&bytes.expect("an array").expect("an array"))
            })
            .filter(|packet| packet.interface == end.interface)
            .collect()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in [&self.client, &self.server] {
            let _ = Command::new("ip").args(["netns", "delete", &end.name]).status();
        }
    }
}

fn end(name: String, host: u8, program: i32) -> End {
    run("ip", &format!("-n {name} link set lo up"));
    // One segment a packet, so that each can be lost.
    run("ip", &format!("-n {name} link set wire gso_max_segs 1 up"));
    run("ip", &format!("-n {name} addr add 10.77.0.{host}/24 dev wire"));
    run("ip", &format!("-n {name} addr add fd77::{host}/64 dev wire nodad"));
    let namespace = File::open(format!("/run/netns/{name}")).expect("ip has just made it");
    let mut end = End { name, namespace, interface: 0, host };
    end.interface = end.within(|| {
        let index = if_nametoindex("wire").expect("the interface is there");
        // SAFETY: the object, and with it the program, outlives this call.
        let program = unsafe { BorrowedFd::borrow_raw(program) };
        let mut hook = TcHookBuilder::new(program).ifindex(index as i32).hook(TC_EGRESS);
        hook.create().expect("a queue for programs");
        hook.attach().expect("the wire");
        index
    });
    end
}

fn packet(bytes: &[u8]) -> Packet {
    let word = |index: usize| {
        let bytes = bytes[8 + index * 4..][..4].try_into().expect("four bytes");
        u32::from_ne_bytes(bytes)
    };
    Packet {
        time: u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes")),
        interface: word(0),
        seq: word(1),
        ack: word(2),
        len: word(3),
        window: word(4),
        flags: word(6),
        lost: word(7) != 0,
    }
}
