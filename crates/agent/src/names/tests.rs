use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use super::*;

/// Answers what the test says, and counts how often it is asked.
struct Scripted {
    reading: Reading,
    reads: u32,
    takes: Duration,
}

impl ReadNames for Scripted {
    fn read(&mut self, _pid: u32) -> Reading {
        self.reads += 1;
        let begun = cpu_time();
        while cpu_time() - begun < self.takes {
            std::hint::spin_loop();
        }
        self.reading.clone()
    }

    fn forget(&mut self, _pid: u32) {}
}

fn scripted(reading: Reading) -> Names<Scripted> {
    Names::with_reader(Scripted { reading, reads: 0, takes: Duration::ZERO })
}

/// A thread of this process that lives until it is dropped.
struct Sleeper {
    tid: u32,
    stop: Option<mpsc::Sender<()>>,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl Sleeper {
    fn start(name: &str) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let handle = thread.spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            let _ = stopped.recv();
        });
        let tid = told.recv().unwrap();
        Sleeper { tid, stop: Some(stop), handle: Some(handle.unwrap()) }
    }

    fn end(mut self) {
        drop(self.stop.take());
        self.handle.take().unwrap().join().unwrap();
        // The entry in /proc goes a moment after the join.
        while Observed::read(self.tid).is_some() {
            std::thread::yield_now();
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_native_thread_has_the_kernels_name_and_both_ids() {
    let mut names = scripted(Reading::NotPython);
    let sleeper = Sleeper::start("sorter");
    let me = std::process::id();
    let name = names.resolve(0, sleeper.tid, "");
    assert_eq!((name.thread.as_ref(), name.pid, name.ns_pid), ("sorter", me, me));
    assert_eq!(name.ns_tid, sleeper.tid);
    assert!(name.process.starts_with("underspan_agent"), "{name:?}");
    assert_eq!(*names.resolve(0, 0, "swapper/0"), ThreadName::default());
}

#[test]
fn a_name_outlives_its_thread_by_a_minute() {
    let mut names = scripted(Reading::NotPython);
    let sleeper = Sleeper::start("shortlived");
    let tid = sleeper.tid;
    let start = Instant::now();
    names.resolve_at(0, tid, "", start);
    sleeper.end();
    for seconds in [1, 30, 59] {
        let name = names.resolve_at(0, tid, "", start + seconds * SECOND);
        assert_eq!(&*name.thread, "shortlived", "after {seconds} s");
    }
    assert_eq!(names.len(), 1);
    names.resolve_at(0, 0, "", start + 130 * SECOND);
    names.sweep(start + 130 * SECOND);
    assert!(names.is_empty());
}

#[test]
fn a_thread_that_was_idle_for_long_still_has_its_minute() {
    let mut names = scripted(Reading::NotPython);
    let sleeper = Sleeper::start("idle");
    let tid = sleeper.tid;
    let start = Instant::now();
    names.resolve_at(0, tid, "", start);
    names.sweep(start + 600 * SECOND);
    sleeper.end();
    names.sweep(start + 620 * SECOND);
    assert_eq!(&*names.resolve_at(0, tid, "", start + 670 * SECOND).thread, "idle");
}

#[test]
fn a_thread_never_seen_alive_is_called_what_the_event_says() {
    let mut names = scripted(Reading::NotPython);
    let gone = Sleeper::start("x");
    let tid = gone.tid;
    gone.end();
    let name = names.resolve(77, tid, "oneshot");
    assert_eq!((name.thread.as_ref(), name.pid, name.ns_tid), ("oneshot", 77, 0));
    assert_eq!(&*names.resolve(77, tid, "").thread, "oneshot");
}

#[test]
fn a_reused_id_is_another_thread() {
    let mut names = scripted(Reading::NotPython);
    let sleeper = Sleeper::start("second");
    let start = Instant::now();
    names.resolve_at(0, sleeper.tid, "", start);
    let thread = names.threads.get_mut(&sleeper.tid).unwrap();
    // As if the entry were of a thread that had the id before.
    thread.starttime -= 1;
    thread.call("first");
    thread.python = true;
    assert_eq!(&*names.resolve_at(0, sleeper.tid, "", start).thread, "first");
    assert_eq!(&*names.resolve_at(0, sleeper.tid, "", start + SECOND).thread, "second");
}

#[test]
fn python_is_asked_with_growing_pauses_until_the_thread_has_a_name_of_its_own() {
    let sleeper = Sleeper::start("python3");
    let (tid, me) = (sleeper.tid, std::process::id());
    let mut names = scripted(Reading::Names(vec![]));
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    assert_eq!(&*names.resolve_at(0, tid, "", at(0)).thread, "python3");
    assert_eq!(names.reader.reads, 1);
    // Known at once: the first thread of a Python process.
    assert_eq!(&*names.resolve_at(0, me, "", at(0)).thread, "MainThread");

    names.reader.reading = Reading::Names(vec![(tid, "Thread-1 (work)".into())]);
    names.resolve_at(0, tid, "", at(100));
    assert_eq!(names.reader.reads, 1, "not yet time");
    assert_eq!(&*names.resolve_at(0, tid, "", at(300)).thread, "Thread-1 (work)");
    assert_eq!(names.reader.reads, 2);

    for _ in 0..1000 {
        names.resolve_at(0, tid, "", at(301));
    }
    assert_eq!(names.reader.reads, 2);
    names.reader.reading = Reading::Names(vec![(tid, "ThreadPoolExecutor-0_3".into())]);
    assert_eq!(&*names.resolve_at(0, tid, "", at(2000)).thread, "ThreadPoolExecutor-0_3");
    for minute in 1..60 {
        let name = names.resolve_at(0, tid, "", at(minute * 60_000));
        assert_eq!(&*name.thread, "ThreadPoolExecutor-0_3");
    }
    assert_eq!(names.reader.reads, 3, "it has its name");
}

#[test]
fn a_new_thread_is_asked_for_again_until_it_has_its_name() {
    let (first, second) = (Sleeper::start("python3"), Sleeper::start("python3"));
    let me = std::process::id();
    let mut names = scripted(Reading::Later);
    names.runs_python(me);
    names.started(me, first.tid, "python3");
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    names.reader.reads = 0;
    names.read_due_at(at(5));
    names.read_due_at(at(6));
    assert_eq!(names.reader.reads, 1, "too soon for a second look");
    // `threading` knows of it only when it has run.
    names.reader.reading = Reading::Names(vec![(me, "MainThread".into())]);
    names.read_due_at(at(50));
    names.started(me, second.tid, "python3");
    let both = vec![(first.tid, "first".into()), (second.tid, "second".into())];
    names.reader.reading = Reading::Names(both);
    names.read_due_at(at(100));
    assert_eq!(names.reader.reads, 3);
    assert_eq!(names.read_due_at(at(101)), None, "both have their names");
    assert_eq!(&*names.resolve_at(me, first.tid, "", at(101)).thread, "first");
    assert_eq!(&*names.resolve_at(me, second.tid, "", at(101)).thread, "second");
}

#[test]
fn a_thread_that_is_never_named_is_asked_for_a_few_times() {
    let sleeper = Sleeper::start("native");
    let me = std::process::id();
    let mut names = scripted(Reading::Names(vec![]));
    names.runs_python(me);
    names.started(me, sleeper.tid, "native");
    names.reader.reads = 0;
    let mut now = Instant::now();
    while let Some(next) = names.read_due_at(now) {
        now = next;
    }
    assert_eq!(names.reader.reads, FRESH_LOOKS);
}

#[test]
fn a_name_is_waited_for_until_it_was_read_and_no_longer_than_it_is_looked_for() {
    let (named, nameless, gone) =
        (Sleeper::start("python3"), Sleeper::start("native"), Sleeper::start("python3"));
    let me = std::process::id();
    let mut names = scripted(Reading::NotPython);
    names.started(me, named.tid, "python3");
    assert!(!names.is_soon_named(named.tid), "nobody knows that it is Python");
    names.reader.reading = Reading::Names(vec![]);
    names.runs_python(me);
    for sleeper in [&named, &nameless, &gone] {
        names.started(me, sleeper.tid, "python3");
        assert!(names.is_soon_named(sleeper.tid));
    }
    names.ended(gone.tid);
    assert!(!names.is_soon_named(gone.tid), "a thread that is gone has no name to be read");
    names.reader.reading = Reading::Names(vec![(named.tid, "ThreadPoolExecutor-0_0".into())]);
    let mut now = names.read_due_at(Instant::now() + FRESH).unwrap();
    assert!(!names.is_soon_named(named.tid));
    assert!(names.is_soon_named(nameless.tid));
    while let Some(next) = names.read_due_at(now) {
        now = next;
    }
    assert!(!names.is_soon_named(nameless.tid));
}

#[test]
fn a_thread_that_somebody_spoke_of_before_it_was_known_gets_its_name_still() {
    let mut names = scripted(Reading::NotPython);
    let gone = Sleeper::start("x");
    let tid = gone.tid;
    gone.end();
    assert_eq!(&*names.resolve(77, tid, "").thread, "");
    assert_eq!(&*names.resolve(77, tid, "oneshot").thread, "oneshot");
    assert_eq!(&*names.resolve(77, tid, "").thread, "oneshot");
}

#[test]
fn another_program_is_called_what_its_event_says_also_when_it_has_ended() {
    let mut names = scripted(Reading::NotPython);
    let gone = Sleeper::start("x");
    let pid = gone.tid;
    gone.end();
    names.resolve(pid, pid, "sh");
    names.began_program(pid, "oneshot");
    let name = names.resolve(pid, pid, "");
    assert_eq!((&*name.thread, &*name.process), ("oneshot", "oneshot"));
    // A thread of it that nobody saw alive either.
    assert_eq!(&*names.resolve(pid, pid + 1, "worker").process, "oneshot");
}

#[test]
fn readings_are_bounded_per_second() {
    let sleepers: Vec<_> = (0..60).map(|_| Sleeper::start("worker")).collect();
    let mut names = scripted(Reading::Later);
    let now = Instant::now();
    for sleeper in &sleepers {
        names.resolve_at(0, sleeper.tid, "", now);
        // Without the pause per process the bound on all readings must hold.
        names.owners.values_mut().for_each(|owner| owner.read = Backoff::due(now, ASK.0, ASK.1));
    }
    assert_eq!(names.reader.reads, READS_PER_SECOND);
}

#[test]
fn readings_that_take_long_are_rare() {
    let sleepers: Vec<_> = (0..20).map(|_| Sleeper::start("worker")).collect();
    let mut names = scripted(Reading::Later);
    names.reader.takes = Duration::from_millis(30);
    let start = Instant::now();
    for (index, sleeper) in sleepers.iter().enumerate() {
        // One asks every 20 ms.
        let now = start + Duration::from_millis(20) * index as u32;
        names.resolve_at(0, sleeper.tid, "", now);
        names.owners.values_mut().for_each(|owner| owner.read = Backoff::due(now, ASK.0, ASK.1));
    }
    // At 0 ms, and 300 ms after that at the earliest.
    assert!((1..=2).contains(&names.reader.reads), "{}", names.reader.reads);
    names.resolve_at(0, sleepers[0].tid, "", start + 60 * SECOND);
    assert!((2..=3).contains(&names.reader.reads), "{}", names.reader.reads);
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A real interpreter: `ThreadPoolExecutor-0_0` is longer than what the kernel keeps.
#[test]
fn a_real_python_names_its_threads() {
    let script = "import time, concurrent.futures as c\n\
                  p = c.ThreadPoolExecutor(2)\n\
                  [p.submit(time.sleep, 60) for _ in range(2)]\n\
                  time.sleep(60)";
    // A shell first: what it becomes must be noticed.
    let mut command = Command::new("sh");
    let child = command
        .args(["-c", "sleep 0.3; exec python3 -c \"$0\"", script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    let _running = Running(child);
    let mut names = Names::new();
    let expected = ["MainThread", "ThreadPoolExecutor-0_0", "ThreadPoolExecutor-0_1"];
    let mut found = vec![];
    for _ in 0..200 {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        found = tids.map(|tid: u32| names.resolve(pid, tid, "").thread.clone()).collect();
        found.sort();
        if found.iter().map(AsRef::as_ref).eq(expected) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("found {found:?}");
}

/// `cargo test -p underspan-agent --release -- --ignored --nocapture cost_of_names`
#[test]
#[ignore = "a measurement"]
fn cost_of_names() {
    let sleepers: Vec<_> = (0..200).map(|_| Sleeper::start("worker")).collect();
    let mut names = scripted(Reading::NotPython);
    for round in ["unknown", "known"] {
        let before = Instant::now();
        for sleeper in &sleepers {
            std::hint::black_box(names.resolve(0, sleeper.tid, ""));
        }
        println!("{round}: {:?} a thread", before.elapsed() / 200);
    }
}
