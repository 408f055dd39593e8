//! `underspan top`, as a user runs it: on a terminal, for a script, and where it cannot run. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use serde_json::Value;

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underspan"));
    command.arg("top").args(arguments).env("TERM", "xterm-256color");
    command
}

/// A process that only sleeps, in a known way.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: File,
    shown: String,
}

impl OnTerminal {
    fn new(arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let copy = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = top(arguments);
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: both are system calls, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(pty.slave);
        let terminal = File::from(pty.master);
        let flags = nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&terminal, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        OnTerminal { child, terminal, shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn read(&mut self) {
        let mut bytes = [0; 65_536];
        while let Ok(len @ 1..) = self.terminal.read(&mut bytes) {
            self.shown += &String::from_utf8_lossy(&bytes[..len]);
        }
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            self.read();
            if self.shown.contains(text) {
                self.shown.clear();
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no {text:?} in {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn assert_ends(&mut self) {
        let start = Instant::now();
        loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}: {}", self.shown);
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.read();
        // The other screen is left, and the cursor is there again.
        assert!(self.shown.contains("\u{1b}[?1049l"), "{:?}", self.shown);
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn on_a_terminal_it_shows_looks_into_a_thread_and_gives_the_terminal_back() {
    let sleeper = Sleeper::new();
    let mut shown = OnTerminal::new(&["--pid", &sleeper.pid(), "--interval", "200ms"]);
    shown.wait_for("1 process, 1 thread");
    shown.press("?");
    shown.wait_for("any key closes this");
    shown.press("x");
    shown.press("\u{1b}[B\r");
    shown.wait_for("hrtimer_nanosleep");
    shown.press("q");
    shown.assert_ends();
}

#[test]
fn a_signal_ends_it_and_gives_the_terminal_back() {
    let sleeper = Sleeper::new();
    let mut shown = OnTerminal::new(&["--pid", &sleeper.pid()]);
    shown.wait_for("sleep");
    let pid = nix::unistd::Pid::from_raw(shown.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    shown.assert_ends();
}

#[test]
fn for_a_script_it_prints_intervals_that_add_up() {
    let sleeper = Sleeper::new();
    let arguments = ["--pid", &sleeper.pid(), "--batch", "2", "--interval", "300ms"];
    let text = top(&arguments).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.matches("1 process, 1 thread, 0 requests in flight").count(), 2, "{text}");
    assert!(text.contains("sleep 100%"), "{text}");

    let json = top(&arguments).arg("--json").output().unwrap();
    assert!(json.status.success());
    let lines = String::from_utf8(json.stdout).unwrap();
    let views: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(views.len(), 2);
    for view in views {
        let interval = view["interval_ns"].as_u64().unwrap();
        let thread = &view["processes"][0]["threads"][0];
        assert_eq!(thread["state"], "sleep");
        let cells = underspan_model::State::ALL
            .map(|state| thread[underspan_model::column(state)].as_u64().unwrap());
        assert_eq!(cells.iter().sum::<u64>(), interval);
        assert!(view["cost"]["cpu_ns"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_request_is_in_flight_until_it_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pid = std::process::id().to_string();
    // Every interval's length is known, so the server's is, too.
    let serve = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut bytes = [0; 1024];
        let _ = connection.read(&mut bytes).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let _ = connection.read(&mut bytes);
    });
    let watching = top(&["--pid", &pid, "--batch", "8", "--interval", "1s", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /slow?x=1 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let output = watching.wait_with_output().unwrap();
    drop(client);
    serve.join().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let views: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Another test of this process has requests, too.
    let slow = |request: &&Value| request["path"] == "/slow";
    let of = |view: &Value| -> Vec<Value> {
        view["requests"].as_array().unwrap().iter().filter(slow).cloned().collect()
    };
    let requests: Vec<_> = views.iter().flat_map(of).collect();
    assert!((2..=4).contains(&requests.len()), "{requests:#?}");
    for request in &requests {
        assert_eq!(
            (request["method"].as_str(), request["path"].as_str()),
            (Some("GET"), Some("/slow"))
        );
        assert_eq!(request["state"], "sleep");
        assert!(request["age_ns"].as_u64().unwrap() < 3_200_000_000);
    }
    assert!(of(views.last().unwrap()).is_empty());
}

/// Reads a request, has `work` done, and answers.
fn serve_one(listener: &TcpListener, work: impl FnOnce()) {
    let (mut connection, _) = listener.accept().unwrap();
    let mut bytes = [0; 1024];
    let _ = connection.read(&mut bytes).unwrap();
    work();
    connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    let _ = connection.read(&mut bytes);
}

#[test]
fn a_worker_without_a_request_is_idle_and_one_that_waits_for_a_lock_in_a_request_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pid = std::process::id().to_string();
    let lock = Arc::new(Mutex::new(()));
    let (work, queue) = mpsc::channel();
    let same = Arc::clone(&lock);
    let worker = std::thread::Builder::new().name("pool-worker".to_owned());
    let worker = worker.spawn(move || {
        serve_one(&listener, || {});
        queue.recv().unwrap();
        serve_one(&listener, || drop(same.lock().unwrap()));
    });
    let watching = top(&["--pid", &pid, "--batch", "24", "--interval", "500ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ask = |path: &str| {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        client
    };
    let pause = || std::thread::sleep(Duration::from_secs(3));
    pause();
    let _ = ask("/first").read(&mut [0; 1024]).unwrap();
    pause();
    let held = lock.lock().unwrap();
    work.send(()).unwrap();
    let client = ask("/locked");
    pause();
    drop(held);
    drop(client);
    worker.unwrap().join().unwrap();
    let output = watching.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let views: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (mut free, mut at_work) = (0, 0);
    for view in &views {
        let threads = view["processes"][0]["threads"].as_array().unwrap();
        let worker = threads.iter().find(|thread| thread["thread"] == "pool-worker");
        // An interval that it waited for a lock, or work, from beginning to end.
        let waited = |thread: &&Value| thread["lock_wait_ns"] == view["interval_ns"];
        let Some(worker) = worker.filter(waited) else { continue };
        let requests = view["requests"].as_array().unwrap();
        let serves = requests.iter().any(|request| request["tid"] == worker["tid"]);
        assert_eq!(worker["idle"], !serves, "{view:#}");
        let idle = if serves { &Value::from(0) } else { &view["interval_ns"] };
        assert_eq!(&worker["idle_ns"], idle, "{view:#}");
        if serves { at_work += 1 } else { free += 1 }
    }
    assert!(free >= 3 && at_work >= 3, "{free} {at_work} {views:#?}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output = top(&[]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--once or --batch N"), "{error}");
}

#[test]
fn without_root_it_says_what_to_do() {
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    // It need not be able to reach the executable by its path.
    let binary = File::open(env!("CARGO_BIN_EXE_underspan")).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&binary));
    let copy = tempfile::Builder::new().prefix("underspan").tempfile_in("/tmp").unwrap();
    std::fs::copy(path, copy.path()).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(copy.path(), executable).unwrap();
    let copy = copy.into_temp_path();
    let output = Command::new(&copy)
        .args(["top", "--once"])
        .uid(nobody.uid.as_raw())
        .gid(nobody.gid.as_raw())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("needs root") && error.contains("sudo"), "{error}");
}
