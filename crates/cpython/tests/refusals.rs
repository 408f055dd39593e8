//! What is no running interpreter is refused, in words, and never hangs.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Program, interpreters};
use underspan_cpython::{InspectError, Inspector, inspect, pthread_tid, thread_names};

#[test]
fn other_programs_are_not_python() {
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleep.id() as i32;
    // Until it has been executed, the child is this very program, which is no Python either.
    assert!(matches!(inspect(pid), Err(InspectError::NotPython)));
    assert!(matches!(thread_names(pid), Err(InspectError::NotPython)));
    assert_eq!(pthread_tid(pid, 0x7f00_0000_0000), None);
    sleep.kill().unwrap();
    // A zombie, then nothing at all.
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z") {}
    assert!(matches!(inspect(pid), Err(InspectError::Gone)));
    sleep.wait().unwrap();
    assert!(matches!(inspect(pid), Err(InspectError::Gone)));
    assert!(matches!(inspect(-1), Err(InspectError::Gone)));
}

#[test]
fn old_versions_are_named_and_refused() {
    for path in common::old_interpreters() {
        let mut child = Command::new(&path)
            .args(["-c", "import sys; print(1); sys.stdout.flush(); sys.stdin.read()"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        std::io::Read::read(&mut output, &mut [0]).unwrap();
        let error = inspect(child.id() as i32).unwrap_err();
        child.kill().unwrap();
        child.wait().unwrap();
        eprintln!("{}: {error}", path.display());
        let InspectError::Unsupported { version, .. } = error else { panic!("{error}") };
        assert!(version.minor_pair() < (3, 8));
    }
}

#[test]
fn kernel_threads_are_not_python() {
    // kthreadd is process 2, unless we are in a pid namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        assert!(matches!(inspect(2), Err(InspectError::NotPython)));
    }
}

#[test]
fn a_starting_interpreter_is_not_ready_and_then_is() {
    for python in interpreters() {
        let mut inspector = Inspector::new();
        let mut not_ready = 0;
        for _ in 0..5 {
            let mut child = Command::new(&python.path)
                .args(["-c", "import time; time.sleep(60)"])
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                match inspector.inspect(child.id() as i32) {
                    Ok(_) => break,
                    Err(error @ InspectError::NotReady(_)) => {
                        assert!(error.is_transient());
                        not_ready += 1;
                    }
                    // Before exec it is this program.
                    Err(InspectError::NotPython) => {}
                    Err(error) => panic!("{python:?}: {error}"),
                }
                assert!(Instant::now() < deadline, "{python:?} never became ready");
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(not_ready > 0, "{python:?} was never caught at start-up");
    }
}

#[test]
fn a_process_that_dies_in_the_middle_is_gone() {
    let busy = "
import threading
def churn():
    while True:
        t = threading.Thread(target=lambda: None)
        t.start()
        t.join()
for _ in range(4): threading.Thread(target=churn, daemon=True).start()
say('ready')
sys.stdin.readline()
";
    for python in interpreters() {
        let mut program = Program::start(&python, busy);
        program.hear();
        let pid = program.pid();
        let mut inspector = Inspector::new();
        // Threads that come and go all the time must not upset the self-check.
        for _ in 0..100 {
            let interpreter = inspector.inspect(pid).unwrap_or_else(|e| panic!("{python:?}: {e}"));
            assert!(!interpreter.thread_names().unwrap().is_empty());
        }
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            program.kill();
        });
        loop {
            let names = inspector.inspect(pid).and_then(|interpreter| interpreter.thread_names());
            match names {
                Ok(_) => {}
                Err(InspectError::Gone) => break,
                Err(error) => panic!("{python:?}: {error}"),
            }
        }
        killer.join().unwrap();
    }
}

#[test]
fn a_deleted_binary_is_still_read() {
    for python in interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let (command, copy) = common::from_copy(&python, folder.path());
        let mut program = Program::run(command, "say('ready')\nsys.stdin.readline()\n");
        program.hear();
        std::fs::remove_file(&copy).unwrap();
        let found = inspect(program.pid()).unwrap_or_else(|error| panic!("{python:?}: {error}"));
        assert_eq!(found.binary.mapped_path, copy.display().to_string());
        assert_eq!(found.version.minor, python.version.1);
    }
}
