//! Known answers: a busy loop held back by a quota, an interface that drops packets, an accept queue
//! that overflows. Needs root; everything happens in a cgroup and a network namespace of the test's.

// Everything here is test code; clippy knows only functions marked `#[test]` as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{Backlog, listen};
use underspan_trackers as api;
use underspan_trackers::throttle::{Reader, ThrottleTracker};
use underspan_trackers::{Decoder, Rows, Tracker as _};

#[path = "support/mod.rs"]
mod support;

use support::{FakeContext, Row, decode};

/// Reader and decoder, as the agent runs them.
struct Watch {
    reader: Reader,
    decoder: Box<dyn Decoder>,
    context: FakeContext,
    pids: Vec<u32>,
    began: Instant,
}

impl Watch {
    fn new(pid: u32) -> Self {
        let (reader, decoder) = (Reader::new(), ThrottleTracker.decoder());
        let began = Instant::now();
        Watch { reader, decoder, context: FakeContext::new(), pids: vec![pid], began }
    }

    fn round(&mut self) -> Vec<Row> {
        let at = 1 + self.began.elapsed().as_nanos() as u64;
        let round = self.reader.round(at, &self.pids);
        let mut rows = Rows::default();
        self.decoder.throttle(&round, &mut self.context, &mut rows);
        decode(&mut rows)
    }
}

/// What was added to a counter.
fn added(rows: &[Row], metric: &str, subject: &str, netns: u64) -> u64 {
    let of = rows.iter().filter(|row| {
        (row.text("metric"), row.text("subject"), row.u64("netns")) == (metric, subject, netns)
    });
    of.map(|row| row.u64("delta")).sum()
}

/// A cgroup with a quota of a twentieth of a CPU, and a busy loop in it.
struct Throttled {
    directory: PathBuf,
    path: String,
    child: Child,
}

impl Throttled {
    fn start() -> Self {
        let name = format!("underspan-test-{}", std::process::id());
        let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers");
        let directory = if v2.exists() {
            let subtree = "/sys/fs/cgroup/cgroup.subtree_control";
            fs::write(subtree, "+cpu").expect("the CPU controller");
            let directory = Path::new("/sys/fs/cgroup").join(&name);
            fs::create_dir(&directory).expect("root, to make a cgroup");
            fs::write(directory.join("cpu.max"), "5000 100000").unwrap();
            directory
        } else {
            let directory = Path::new("/sys/fs/cgroup/cpu").join(&name);
            fs::create_dir(&directory).expect("root, to make a cgroup");
            fs::write(directory.join("cpu.cfs_period_us"), "100000").unwrap();
            fs::write(directory.join("cpu.cfs_quota_us"), "5000").unwrap();
            directory
        };
        let mut command = Command::new("sh");
        command.args(["-c", "read go; while :; do :; done"]).stdin(Stdio::piped());
        let child = command.spawn().unwrap();
        fs::write(directory.join("cgroup.procs"), child.id().to_string()).unwrap();
        Throttled { directory, path: format!("/{name}"), child }
    }

    fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Nanoseconds of throttling, as the kernel has them now.
    fn kernels(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join("cpu.stat")).unwrap();
        let find = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().parse::<u64>().unwrap())
        };
        find("throttled_time ").or_else(|| Some(find("throttled_usec ")? * 1_000)).unwrap()
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel takes a moment to empty it.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Of each CPU, nanoseconds that the hypervisor took from it, as the kernel has them now.
fn steal() -> Vec<(String, u64)> {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    let cpus = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let each = cpus.map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // The CPU's number, and its eighth time; in ticks, of which a second has a hundred everywhere.
        (fields[0].to_owned(), fields[8].parse::<u64>().unwrap() * 10_000_000)
    });
    each.collect()
}

/// Uses every CPU for so long.
fn burn(time: Duration) {
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| while Instant::now() < end {});
        }
    });
}

/// A hypervisor takes what it likes: its own count, just before and just after each reading, holds ours.
#[test]
fn stolen_time_is_the_kernels() {
    let mut watch = Watch::new(std::process::id());
    let before = steal();
    watch.round();
    let begun = steal();
    let (mut rows, mut ending) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        burn(Duration::from_millis(500));
        ending = steal();
        rows.extend(watch.round());
        if ending != begun {
            break;
        }
    }
    let after = steal();
    for (index, (cpu, first)) in before.iter().enumerate() {
        let ours = added(&rows, "node_cpu_seconds_total", cpu, 0);
        let (least, most) = (ending[index].1 - begun[index].1, after[index].1 - first);
        assert!((least..=most).contains(&ours), "CPU {cpu}: {ours}, of {least} to {most} ns");
        println!("CPU {cpu}: {ours} ns of steal, of {least} to {most}");
    }
}

#[test]
fn throttled_time_is_the_kernels_and_nothing_is_throttled_before() {
    const THROTTLED: &str = "container_cpu_cfs_throttled_seconds_total";
    let mut busy = Throttled::start();
    let mut watch = Watch::new(busy.child.id());
    let cgroup = busy.path.clone();

    watch.round();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(added(&watch.round(), THROTTLED, &cgroup, 0), 0, "it only waits");

    let before = busy.kernels();
    busy.go();
    let began = Instant::now();
    let mut rows = Vec::new();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(1));
        rows.extend(watch.round());
    }
    let elapsed = began.elapsed().as_secs_f64();
    let last = last_total(&rows, THROTTLED, &cgroup);
    let after = busy.kernels();
    let ours = added(&rows, THROTTLED, &cgroup, 0);
    assert_eq!(ours, last - before, "differences sum to the total");
    assert!(ours <= after - before, "{ours} ns, the kernel has {}", after - before);
    // It is held back for all but a twentieth of the time, less on a machine
    // that is busy otherwise.
    let share = ours as f64 / 1e9 / elapsed;
    assert!((0.3..0.98).contains(&share), "{share:.3} of {elapsed:.2} s");
    let periods = added(&rows, "container_cpu_cfs_throttled_periods_total", &cgroup, 0);
    let most = (elapsed * 10.0).ceil() as u64 + 1;
    assert!((1..=most).contains(&periods), "{periods} periods in {elapsed:.2} s");
    println!("throttled {:.1} ms in {:.1} ms, {periods} periods", ours as f64 / 1e6, elapsed * 1e3);

    drop(busy);
    let rows = watch.round();
    let gone = rows.iter().find(|row| row.text("subject") == cgroup).expect("a row of its end");
    assert_eq!(gone.text("status"), "gone");
    assert!(watch.context.lost.is_empty(), "{:?}", watch.context.lost);
}

/// The total in the last row.
fn last_total(rows: &[Row], metric: &str, subject: &str) -> u64 {
    let mut of =
        rows.iter().filter(|row| row.text("metric") == metric && row.text("subject") == subject);
    of.next_back().expect("rows of the cgroup").u64("total")
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with `lo` up, which lives as long as its thread. The reader is outside.
struct Namespace {
    /// A thread is found under its id like a process.
    tid: u32,
    netns: u64,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let thread = std::thread::spawn(move || inbox.iter().for_each(|job| job()));
        let mut new = Namespace { tid: 0, netns: 0, jobs: Some(jobs), thread: Some(thread) };
        (new.tid, new.netns) = new.run(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root, for a network namespace");
            ip("link set lo up");
            let link = fs::read_link("/proc/thread-self/ns/net").unwrap();
            let link = link.to_string_lossy();
            let netns = link.trim_start_matches("net:[").trim_end_matches(']').parse().unwrap();
            (nix::unistd::gettid().as_raw() as u32, netns)
        });
        new
    }

    /// Does something inside.
    fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || drop(done.send(body())));
        self.jobs.as_ref().unwrap().send(job).expect("the namespace's thread");
        result.recv().expect("what was to be done inside")
    }

    /// Ends it; the reader must say so, once, and go on.
    fn end(mut self, watch: &mut Watch) {
        drop(self.jobs.take());
        self.thread.take().unwrap().join().unwrap();
        let mut gone = Vec::new();
        for _ in 0..50 {
            gone.extend(watch.round().into_iter().filter(|row| row.text("status") == "gone"));
            if !gone.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(gone.iter().any(|row| row.u64("netns") == self.netns), "{gone:?}");
        assert!(watch.context.lost.is_empty(), "{:?}", watch.context.lost);
    }
}

#[test]
fn packets_an_interface_dropped_are_counted_to_the_last() {
    const DROPPED: u64 = 137;
    let namespace = Namespace::new();
    namespace.run(|| {
        ip("link add near type veth peer name far");
        // What is longer than the other end takes is dropped there.
        ip("link set far mtu 576 up");
        ip("link set near address 02:00:00:00:00:01 up");
        ip("addr add 10.99.0.1/24 dev near");
        ip("neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev near");
    });
    let (mut watch, netns) = (Watch::new(namespace.tid), namespace.netns);
    let receive = "node_network_receive_drop_total";
    watch.round();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(added(&watch.round(), receive, "far", netns), 0, "undisturbed");

    let kernels = namespace.run(|| {
        let socket = UdpSocket::bind("10.99.0.1:0").unwrap();
        for _ in 0..DROPPED {
            socket.send_to(&[0; 1200], "10.99.0.2:9").unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
        let dev = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = dev.lines().find_map(|line| line.trim().strip_prefix("far:")).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
    });
    let rows = watch.round();
    assert_eq!(added(&rows, receive, "far", netns), DROPPED);
    assert_eq!(kernels, DROPPED);

    namespace.run(|| ip("link del near"));
    let rows = watch.round();
    let gone = rows.iter().filter(|row| row.text("status") == "gone");
    let mut gone: Vec<_> = gone.map(|row| row.text("subject")).collect();
    gone.sort_unstable();
    assert_eq!(gone, ["far", "near"]);
    // Made anew: what it counted before is not counted again.
    namespace.run(|| ip("link add near type veth peer name far"));
    assert_eq!(added(&watch.round(), receive, "far", netns), 0);
    namespace.end(&mut watch);
}

#[test]
fn connections_that_found_the_accept_queue_full_are_counted() {
    let namespace = Namespace::new();
    let (mut watch, netns) = (Watch::new(namespace.tid), namespace.netns);
    let (listener, address) = namespace.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    });
    let overflows = "node_netstat_TcpExt_ListenOverflows";
    watch.round();
    // One more than the backlog is taken.
    let connect = move || TcpStream::connect(address).unwrap();
    let taken = [namespace.run(connect), namespace.run(connect)];
    assert_eq!(added(&watch.round(), overflows, "", netns), 0, "undisturbed");

    let kernels = namespace.run(move || {
        let refused = TcpStream::connect_timeout(&address, Duration::from_millis(300));
        assert!(refused.is_err(), "the queue is full");
        overflows_inside()
    });
    assert!(kernels > 0);
    assert_eq!(added(&watch.round(), overflows, "", netns), kernels);
    drop((listener, taken));
    namespace.end(&mut watch);
}

/// As the kernel says in the thread's namespace.
fn overflows_inside() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "ListenOverflows").unwrap().1.parse().unwrap()
}
