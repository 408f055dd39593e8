//! The process that is watched: `workload.c`, what its threads can do (`workload_roles.h`), and its server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `done` returns something.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The compiled program. Its addresses are those that it was linked at.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workload");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session/workload.c");
        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
        let status = Command::new(clang)
            .args(["-O1", "-g", "-no-pie", "-pthread"])
            .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-result"])
            .arg(source)
            .arg("-o")
            .arg(&output)
            .status()
            .expect("clang, which the build needs too");
        assert!(status.success(), "the workload does not compile");
        output
    })
}

/// Where the workload keeps what CPython would.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) gil: u64,
    pub(crate) collecting: u64,
    pub(crate) stats: u64,
}

/// A running workload. It ends when this is dropped.
pub(crate) struct Workload {
    pub(crate) pid: u32,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Workload {
    pub(crate) fn new() -> Self {
        Self::start_with(&mut Command::new(binary()))
    }

    /// Its threads have no restartable sequences, as those of Go and musl have none.
    pub(crate) fn without_rseq() -> Self {
        Self::start_with(Command::new(binary()).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0"))
    }

    fn start_with(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workload starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut workload = Workload { pid: child.id(), child, input, output };
        assert_eq!(workload.answer(), workload.pid);
        workload
    }

    /// Sends a command without waiting for its answer.
    pub(crate) fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open until it is dropped");
        writeln!(input, "{line}").expect("the workload reads");
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> u32 {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the workload answers");
        line.trim().parse().unwrap_or_else(|_| panic!("the workload said {line:?}"))
    }

    pub(crate) fn ask(&mut self, line: &str) -> u32 {
        self.send(line);
        self.answer()
    }

    /// Starts a thread that plays `role`; its tid.
    pub(crate) fn start(&mut self, role: &str) -> u32 {
        self.ask(&format!("start {role}"))
    }

    /// Starts such a thread and waits until it sleeps, and goes on to.
    pub(crate) fn start_and_block(&mut self, role: &str) -> u32 {
        let tid = self.start(role);
        // It may sleep a moment on its way there.
        eventually(role, || {
            let turns = self.schedstat(tid)[2];
            let sleeps = || self.stat_state(tid).filter(|state| matches!(state, 'S' | 'D'));
            sleeps()?;
            std::thread::sleep(Duration::from_millis(30));
            sleeps().filter(|_| self.schedstat(tid)[2] == turns)
        });
        tid
    }

    pub(crate) fn addresses(&mut self) -> Addresses {
        let gil = self.ask("addresses").into();
        let collecting = self.answer().into();
        let stats = self.answer().into();
        Addresses { gil, collecting, stats }
    }

    /// Its threads, as `/proc` lists them.
    pub(crate) fn tids(&self) -> Vec<u32> {
        fs::read_dir(format!("/proc/{}/task", self.pid))
            .expect("the workload runs")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// The letter that `/proc` has for what a thread does.
    pub(crate) fn stat_state(&self, tid: u32) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.pid)).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// Whether one of its threads waits in a system call, by its number.
    pub(crate) fn is_in(&self, call: libc::c_long) -> bool {
        self.tids().into_iter().any(|tid| self.call_of(tid) == Some(call))
    }

    /// Whether a thread that serves waits for a request, or for more of one. Its first waits for commands.
    pub(crate) fn reads_a_request(&self) -> bool {
        let calls = [Some(libc::SYS_read), Some(libc::SYS_readv)];
        let serving = self.tids().into_iter().filter(|tid| *tid != self.pid);
        serving.map(|tid| self.call_of(tid)).any(|call| calls.contains(&call))
    }

    fn call_of(&self, tid: u32) -> Option<libc::c_long> {
        let path = format!("/proc/{}/task/{tid}/syscall", self.pid);
        fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
    }

    /// Nanoseconds on a CPU, nanoseconds waiting for one, and how often it got one.
    pub(crate) fn schedstat(&self, tid: u32) -> [u64; 3] {
        let path = format!("/proc/{}/task/{tid}/schedstat", self.pid);
        let text = fs::read_to_string(path).expect("the kernel has schedstat");
        let numbers: Vec<_> =
            text.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        numbers.try_into().expect("three numbers")
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid as i32);
        nix::sys::signal::kill(pid, signal).expect("the workload runs");
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        drop(self.input.take());
        // Not all roles let it end by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
