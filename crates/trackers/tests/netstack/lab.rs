//! Two network namespaces joined by veth, sockets in them, and histograms of the receiving one.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use underspan_trackers::netstack::{Error, Histogram, Netstack, Options, Point, Scope};

/// The namespaces go when it is dropped.
pub(crate) struct Lab {
    pub(crate) receiver: String,
    sender: String,
    _turn: MutexGuard<'static, ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    fn address(self) -> &'static str {
        match self {
            Family::V4 => "10.78.0.2:0",
            Family::V6 => "[fd78::2]:0",
        }
    }
}

#[track_caller]
pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {said}");
}

impl Lab {
    pub(crate) fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Each wants the CPUs for itself.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("usn{}-{number}{end}", std::process::id());
        let lab = Lab { receiver: name("r"), sender: name("s"), _turn: turn };
        for name in [&lab.receiver, &lab.sender] {
            run("ip", &format!("netns add {name}"));
            run("ip", &format!("-n {name} link set lo up"));
        }
        lab.join();
        lab
    }

    /// Lays the wire.
    pub(crate) fn join(&self) {
        let link = format!("-n {} link add wire type veth", self.sender);
        run("ip", &format!("{link} peer name wire netns {}", self.receiver));
        for (name, host) in [(&self.receiver, 2), (&self.sender, 1)] {
            run("ip", &format!("-n {name} addr add 10.78.0.{host}/24 dev wire"));
            run("ip", &format!("-n {name} addr add fd78::{host}/64 dev wire nodad"));
            run("ip", &format!("-n {name} link set wire up"));
        }
    }

    /// Takes it away, interfaces and all.
    pub(crate) fn cut(&self) {
        run("ip", &format!("-n {} link delete wire", self.receiver));
    }

    /// Ends the receiving namespace, as far as its name goes.
    pub(crate) fn end_receiver(&self) {
        run("ip", &format!("netns delete {}", self.receiver));
    }

    pub(crate) fn sender_has_wire(&self) -> bool {
        let show = format!("-n {} link show wire", self.sender);
        let shown = Command::new("ip").args(show.split(' ')).output().unwrap();
        shown.status.success()
    }

    /// Packets within the receiving namespace.
    pub(crate) fn loopback(&self) {
        Lab::within(&self.receiver, || {
            let (from, to) = ("127.0.0.1:0", UdpSocket::bind("127.0.0.1:0").unwrap());
            let from = UdpSocket::bind(from).unwrap();
            for _ in 0..10 {
                from.send_to(b"to itself", to.local_addr().unwrap()).unwrap();
                to.recv(&mut [0; 9]).unwrap();
            }
        });
    }

    /// A socket of the sender's that listens.
    pub(crate) fn listener(&self) -> TcpListener {
        Lab::within(&self.sender, || TcpListener::bind("10.78.0.1:0").unwrap())
    }

    /// Histograms of what the receiving namespace gets.
    pub(crate) fn watch(&self, options: Options) -> Watch {
        let netstack = self.open(options);
        let netstack = netstack
            .unwrap_or_else(|error| panic!("these tests load BPF programs and need root: {error}"));
        // The kernel begins to stamp packets a little later.
        std::thread::sleep(Duration::from_millis(50));
        let mut watch = Watch { netstack, before: Vec::new() };
        watch.news();
        watch
    }

    /// Why it cannot be.
    pub(crate) fn try_watch(&self, options: Options) -> Result<(), String> {
        self.open(options).map(drop).map_err(|error| error.to_string())
    }

    fn open(&self, options: Options) -> Result<Netstack, Error> {
        let scope = Scope::Namespaces(vec![PathBuf::from(&self.receiver)]);
        Netstack::open(Options { scope, ..options })
    }

    fn within<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let namespace = File::open(Path::new("/run/netns").join(name)).unwrap();
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                what()
            });
            there.join().unwrap()
        })
    }

    /// A sender's and a receiver's socket.
    pub(crate) fn udp(&self, family: Family) -> (UdpSocket, UdpSocket) {
        let receiver = Lab::within(&self.receiver, || UdpSocket::bind(family.address()).unwrap());
        let to = receiver.local_addr().unwrap();
        let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
        let sender = Lab::within(&self.sender, || UdpSocket::bind(any).unwrap());
        sender.connect(to).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (sender, receiver)
    }

    /// A connection's two ends: the sender's, and the receiver's.
    pub(crate) fn tcp(&self, family: Family) -> (TcpStream, TcpStream) {
        let listener = Lab::within(&self.receiver, || TcpListener::bind(family.address()).unwrap());
        let to: SocketAddr = listener.local_addr().unwrap();
        let sender = Lab::within(&self.sender, || TcpStream::connect(to).unwrap());
        let (receiver, _) = listener.accept().unwrap();
        sender.set_nodelay(true).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (sender, receiver)
    }

    /// Loads nftables rules into the receiving namespace.
    pub(crate) fn nft(&self, rules: &str) {
        use std::io::Write as _;
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.receiver, "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "nft (package nftables) refuses the rules");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in [&self.sender, &self.receiver] {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Readings, and what came between two of them.
pub(crate) struct Watch {
    pub(crate) netstack: Netstack,
    before: Vec<Histogram>,
}

impl Watch {
    /// What came since the last call.
    pub(crate) fn news(&mut self) -> Vec<Histogram> {
        let after = self.netstack.read().unwrap();
        let since = |now: &Histogram| {
            let then = self.before.iter().find(|then| then.group() == now.group());
            then.map_or_else(|| now.clone(), |then| now.since(then))
        };
        let new = after.iter().map(since).filter(|new| new.count() > 0).collect();
        self.before = after;
        new
    }

    /// Waits until it is said what happened.
    #[track_caller]
    pub(crate) fn notice(&mut self, what: &str) -> String {
        let give_up = Instant::now() + Duration::from_secs(10);
        let mut said = Vec::new();
        loop {
            self.netstack.refresh().unwrap();
            said.extend(self.netstack.take_notices());
            if let Some(notice) = said.iter().find(|notice| notice.contains(what)) {
                return notice.clone();
            }
            assert!(Instant::now() < give_up, "nothing {what}: {said:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn lost(&self) -> Vec<(&'static str, u64)> {
        let lost = self.netstack.lost().unwrap();
        lost.into_iter().filter(|l| l.count > 0).map(|l| (l.reason, l.count)).collect()
    }
}

/// Everything at one point.
pub(crate) fn at(histograms: &[Histogram], point: Point) -> Histogram {
    let mut all = Histogram::new(point, false);
    histograms.iter().filter(|one| one.point == point).for_each(|one| all.add(one));
    all
}
