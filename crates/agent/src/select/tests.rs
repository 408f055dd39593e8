use std::process::{Child, Command, Stdio};

use super::*;

/// A process that is killed with the test.
struct Running(Child);

impl Running {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const WAIT: &str = "import time; time.sleep(60)";
const LISTEN: &str = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); \
                      s.listen(); time.sleep(60)";

fn why(selector: &mut Selector, pid: u32) -> String {
    match selector.decide(pid) {
        Verdict::Watch { why } => why.to_string(),
        Verdict::Ignore { why } => why.to_string(),
    }
}

/// Waits for a process that is still starting.
fn becomes(selector: &mut Selector, pid: u32, expected: &str) {
    let mut last = String::new();
    for _ in 0..200 {
        last = why(selector, pid);
        if last == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{pid} is {last:?}, not {expected:?}");
}

#[test]
fn by_default_python_and_servers_are_watched() {
    let mut selector = Selector::new(Selection::default());
    let sleep = Running::start("sleep", &["60"]);
    let idle = Running::start("python3", &["-c", WAIT]);
    let server = Running::start("python3", &["-c", LISTEN]);
    let neither = Ignored::NeitherPythonNorServer;
    becomes(&mut selector, sleep.pid(), &neither.to_string());
    becomes(&mut selector, idle.pid(), "runs python");
    becomes(&mut selector, server.pid(), "runs python, accepts tcp");

    let scanned: HashMap<_, _> = selector.scan(|_| false).into_iter().collect();
    assert!(scanned.contains_key(&idle.pid()) && scanned.contains_key(&server.pid()));
    assert!(!scanned.contains_key(&sleep.pid()));
    assert!(!scanned.contains_key(&std::process::id()));
}

#[test]
fn underspans_own_are_left_alone_unless_they_are_named() {
    // As the embedded store's host is called, wherever it was started from.
    let store = Running::start("python3", &["-c", WAIT, "-m", "underspan.store"]);
    let mut selector = Selector::new(Selection::default());
    becomes(&mut selector, store.pid(), &Ignored::Underspan.to_string());
    let named = Selection { pids: vec![store.pid()], ..Selection::default() };
    becomes(&mut Selector::new(named), store.pid(), "selected, runs python");
}

#[test]
fn a_process_that_becomes_another_program_is_looked_at_again() {
    let mut selector = Selector::new(Selection::default());
    // The same pid is a shell first and Python after it.
    let process =
        Running::start("sh", &["-c", "sleep 0.4; exec python3 -c 'import time; time.sleep(60)'"]);
    becomes(&mut selector, process.pid(), &Ignored::NeitherPythonNorServer.to_string());
    becomes(&mut selector, process.pid(), "runs python");
}

#[test]
fn underspan_kernel_threads_and_the_dead_are_never_watched() {
    let store = Running::start("python3", &["-c", WAIT]);
    let pids = vec![store.pid(), std::process::id(), 2];
    let mut selector = Selector::new(Selection { pids, ..Selection::default() });
    selector.never(store.pid());
    let ignored = |why| Verdict::Ignore { why };
    assert_eq!(selector.decide(store.pid()), ignored(Ignored::Underspan));
    assert_eq!(selector.decide(std::process::id()), ignored(Ignored::Underspan));
    assert_eq!(selector.decide(u32::MAX), ignored(Ignored::Gone));
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_eq!(selector.decide(2), ignored(Ignored::KernelThread));
    }
    assert!(selector.scan(|_| false).is_empty());
}

#[test]
fn each_kind_that_is_named_must_match() {
    let sleep = Running::start("sleep", &["60"]);
    let other = Running::start("sleep", &["60"]);
    let pids = vec![sleep.pid()];
    let comms = |pattern| vec![comm_pattern(pattern).unwrap()];
    let named = |selection| Selector::new(selection);

    let mut selector = named(Selection { pids: pids.clone(), ..Selection::default() });
    becomes(&mut selector, sleep.pid(), "selected");
    assert_eq!(why(&mut selector, other.pid()), Ignored::NotSelected.to_string());

    let mut selector = named(Selection { comms: comms("sl[e]*p"), ..Selection::default() });
    becomes(&mut selector, other.pid(), "selected");

    let narrow = Selection { pids, comms: comms("python*"), ..Selection::default() };
    becomes(&mut named(narrow), sleep.pid(), &Ignored::NotSelected.to_string());

    let default_too =
        Selection { comms: comms("sleep"), all_default: true, ..Selection::default() };
    let neither = Ignored::NeitherPythonNorServer.to_string();
    becomes(&mut named(default_too), sleep.pid(), &neither);

    let nowhere = vec![CgroupPath::parse("/no/such/cgroup").unwrap()];
    let mut selector = named(Selection { cgroups: nowhere, ..Selection::default() });
    assert_eq!(why(&mut selector, sleep.pid()), Ignored::NotSelected.to_string());
    let everywhere = vec![CgroupPath::parse("/").unwrap()];
    let mut selector = named(Selection { cgroups: everywhere, ..Selection::default() });
    assert_eq!(why(&mut selector, sleep.pid()), "selected");
}

#[test]
fn a_bad_pattern_says_what_is_wrong() {
    let error = comm_pattern("a[").unwrap_err().to_string();
    assert!(error.contains("\"a[\""), "{error}");
    assert!(comm_pattern("").is_err());
}

#[test]
fn a_tree_keeps_its_orphans() {
    // The shell starts a grandchild and ends its parent, so that init adopts the grandchild.
    let script = "sh -c 'sleep 61 & echo $! > \"$0\"; sleep 1' \"$0\"; exec sleep 60";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let root = Running::start("sh", &["-c", script, file.to_str().unwrap()]);
    let outside = Running::start("sleep", &["60"]);
    let mut selector = Selector::new(Selection { root: Some(root.pid()), ..Selection::default() });
    becomes(&mut selector, root.pid(), "selected");
    let orphan = loop {
        match std::fs::read_to_string(&file).map(|pid| pid.trim().parse::<u32>()) {
            Ok(Ok(pid)) => break pid,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(why(&mut selector, orphan), "selected");
    let parent = || Process::new(orphan as i32).unwrap().stat().unwrap().ppid;
    let before = parent();
    while parent() == before {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(why(&mut selector, orphan), "selected");
    assert_eq!(why(&mut selector, outside.pid()), Ignored::NotSelected.to_string());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(orphan as i32), nix::sys::signal::SIGKILL)
        .unwrap();
}

/// `cargo test -p underspan-agent --release -- --ignored --nocapture cost_of_a_scan`
#[test]
#[ignore = "a measurement: starts 500 processes"]
fn cost_of_a_scan() {
    let _processes: Vec<_> = (0..500).map(|_| Running::start("sleep", &["60"])).collect();
    let mut selector = Selector::new(Selection::default());
    for round in ["first", "second", "third"] {
        let before = Instant::now();
        let chosen = selector.scan(|_| false).len();
        let (took, known) = (before.elapsed(), selector.known.len());
        println!("{round} scan of {known} processes, {chosen} chosen: {took:?}");
    }
}
