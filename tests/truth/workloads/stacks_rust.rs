//! Threads sleep, and wait for a mutex, at the ends of known call trees, in an optimised program without
//! frame pointers.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PAUSE: Duration = Duration::from_millis(12);
const ROUNDS: usize = 125;

static LOCK: Mutex<()> = Mutex::new(());
/// Somebody holds it; who waited for it had it. Both are asked for again and again: to wait for them would
/// be a wait for a lock, too.
static HELD: AtomicBool = AtomicBool::new(false);
static DONE: AtomicBool = AtomicBool::new(false);

/// What the kernel says of this thread: nanoseconds on a CPU, and in run queues.
fn accounts() -> (u64, u64) {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let mut fields = text.split(' ').map(|field| field.parse().expect("a number"));
    (fields.next().expect("time on a CPU"), fields.next().expect("delay"))
}

fn unix() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}

mod tree {
    use super::*;

    #[inline(never)]
    pub fn leaf() {
        thread::sleep(black_box(PAUSE));
        black_box(());
    }

    #[inline(never)]
    pub fn locks() {
        drop(black_box(LOCK.lock()));
        black_box(());
    }

    #[inline(never)]
    pub fn dig(depth: usize, wait: fn()) -> usize {
        if black_box(depth) > 1 { black_box(dig(depth - 1, wait)) + 1 } else { wait(); 1 }
    }

    #[inline(never)]
    pub fn outermost(depth: usize, wait: fn()) {
        black_box(dig(depth, wait));
    }
}

/// Time blocked in a call at that depth.
fn blocked(depth: usize, wait: fn()) -> u64 {
    let (before, wall) = (accounts(), Instant::now());
    tree::outermost(depth, wait);
    let (elapsed, after) = (wall.elapsed().as_nanos() as u64, accounts());
    elapsed - (after.0 - before.0) - (after.1 - before.1)
}

fn sleeps(depth: usize) {
    let begin = unix();
    let ns = (0..ROUNDS).map(|_| blocked(depth, tree::leaf)).sum();
    claim(&format!("sleep at depth {depth}"), "sleep", "leaf", depth, begin, ns);
}

fn until(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        thread::sleep(Duration::from_micros(100));
    }
}

fn holds() {
    for _ in 0..ROUNDS {
        let guard = LOCK.lock();
        DONE.store(false, Ordering::Release);
        HELD.store(true, Ordering::Release);
        thread::sleep(PAUSE);
        drop(guard);
        until(&DONE);
    }
}

fn waits(depth: usize) {
    let (begin, mut ns) = (unix(), 0);
    for _ in 0..ROUNDS {
        until(&HELD);
        ns += blocked(depth, tree::locks);
        HELD.store(false, Ordering::Release);
        DONE.store(true, Ordering::Release);
    }
    claim("mutex", "lock_wait", "locks", depth, begin, ns);
}

fn claim(label: &str, state: &str, leaf: &str, depth: usize, begin: u128, ns: u64) {
    let (pid, tid) = (std::process::id(), fs::read_link("/proc/thread-self").expect("proc"));
    let tid = tid.file_name().and_then(|name| name.to_str()).expect("a number").to_owned();
    let dig = "\"stacks_rust::tree::dig\", ".repeat(depth);
    let mut text = String::new();
    write!(
        text,
        r#"{{"kind": "stack", "label": "{label}", "thread": "", "pid": {pid},
            "tid": {tid}, "start": {begin}, "end": {}, "states": ["{state}"], "at_least": 1000000000,
            "trees": [{{"ns": {ns}, "functions":
            ["stacks_rust::tree::outermost", {dig}"stacks_rust::tree::{leaf}"]}}]}}"#,
        unix()
    )
    .expect("memory");
    let line = text.replace('\n', " ") + "\n";
    let path = std::env::var("TRUTH_CLAIMS").expect("TRUTH_CLAIMS");
    let mut out = OpenOptions::new().append(true).create(true).open(path).expect("the claims");
    out.write_all(line.as_bytes()).expect("written");
}

fn main() {
    // Until then the agent may not have read this program's tables.
    (0..100).for_each(|_| tree::leaf());
    let sleeping = [5, 40, 120, 400].map(|depth| thread::spawn(move || sleeps(depth)));
    let mut threads = Vec::from(sleeping);
    threads.extend([thread::spawn(holds), thread::spawn(|| waits(10))]);
    for thread in threads {
        thread.join().expect("it ends well");
    }
}
