//! Threads sleep at the ends of known call trees, in an optimised program without frame pointers.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PAUSE: Duration = Duration::from_millis(12);
const ROUNDS: usize = 125;

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
    pub fn dig(depth: usize) -> usize {
        if black_box(depth) > 1 { black_box(dig(depth - 1)) + 1 } else { black_box(leaf()); 1 }
    }

    #[inline(never)]
    pub fn outermost(depth: usize) {
        black_box(dig(depth));
    }
}

fn live(depth: usize) {
    let (begin, mut blocked) = (unix(), 0);
    for _ in 0..ROUNDS {
        let (before, wall) = (accounts(), Instant::now());
        tree::outermost(depth);
        let (elapsed, after) = (wall.elapsed().as_nanos() as u64, accounts());
        blocked += elapsed - (after.0 - before.0) - (after.1 - before.1);
    }
    claim(depth, begin, blocked);
}

fn claim(depth: usize, begin: u128, ns: u64) {
    let (pid, tid) = (std::process::id(), fs::read_link("/proc/thread-self").expect("proc"));
    let tid = tid.file_name().and_then(|name| name.to_str()).expect("a number").to_owned();
    let dig = "\"stacks_rust::tree::dig\", ".repeat(depth);
    let mut text = String::new();
    write!(
        text,
        r#"{{"kind": "stack", "label": "sleep at depth {depth}", "thread": "", "pid": {pid},
            "tid": {tid}, "start": {begin}, "end": {}, "states": ["sleep"], "at_least": 1000000000,
            "trees": [{{"ns": {ns}, "functions":
            ["stacks_rust::tree::outermost", {dig}"stacks_rust::tree::leaf"]}}]}}"#,
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
    let threads = [5, 40, 120, 400].map(|depth| thread::spawn(move || live(depth)));
    for thread in threads {
        thread.join().expect("it ends well");
    }
}
