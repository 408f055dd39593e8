use super::*;
use crate::STATES;

fn frame(kind: FrameKind, function: &str, file: &str) -> Frame {
    Frame {
        kind,
        function: function.to_owned(),
        file: file.to_owned(),
        line: 1,
        module: String::new(),
    }
}

fn python(functions: &[(&str, &str)]) -> Vec<Frame> {
    let lib = |file: &str| format!("/usr/lib/python3/{file}");
    functions.iter().map(|(name, file)| frame(FrameKind::Python, name, &lib(file))).collect()
}

fn native(functions: &[&str]) -> Vec<Frame> {
    functions.iter().map(|name| frame(FrameKind::Native, name, "")).collect()
}

const BOOTSTRAP: (&str, &str) = ("Thread._bootstrap", "threading.py");

#[test]
fn each_loop_of_a_python_library_is_idle_while_it_waits_and_busy_while_it_works() {
    for ((function, file), reason) in python::LOOPS {
        let own = function.rsplit('.').next().unwrap();
        for name in [function, own] {
            let mut frames = python(&[BOOTSTRAP, (name, file)]);
            let found = idle(&frames, State::LockWait, true);
            assert_eq!(found, Some(Idle { reason }), "{name} in {file}");
            frames.extend(python(&[("Queue.get", "queue.py"), ("Condition.wait", "threading.py")]));
            assert!(idle(&frames, State::LockWait, true).is_some(), "{name} waits in a queue");

            let mut works = python(&[BOOTSTRAP, (name, file), ("export", "shop/reports.py")]);
            assert_eq!(idle(&works, State::LockWait, true), None, "{name} in {file}");
            works.extend(python(&[("Queue.get", "queue.py"), ("Condition.wait", "threading.py")]));
            assert_eq!(idle(&works, State::LockWait, true), None, "application code waits");
            let elsewhere = python(&[BOOTSTRAP, (name, "shop/worker.py")]);
            assert_eq!(idle(&elsewhere, State::LockWait, true), None, "{name} of the application");
        }
    }
}

#[test]
fn each_way_of_waiting_is_looked_through() {
    for (function, file) in python::WAITS {
        let frames = python(&[("_worker", "concurrent/futures/thread.py"), (function, file)]);
        assert!(idle(&frames, State::LockWait, true).is_some(), "{function} in {file}");
        let frames = python(&[("view", "shop/views.py"), (function, file)]);
        assert_eq!(idle(&frames, State::LockWait, true), None, "{function} in {file}");
    }
}

#[test]
fn each_native_loop_is_idle_while_it_waits_and_busy_while_it_works() {
    for (name, reason) in native::LOOPS {
        let name = name.example();
        let mut frames = native(&["start_thread", &name, "pthread_cond_wait", "0x9a2f1"]);
        frames.push(frame(FrameKind::Kernel, "schedule", ""));
        assert_eq!(idle(&frames, State::LockWait, true), Some(Idle { reason }), "{name}");
        let works = native(&["start_thread", &name, "shop::export", "pthread_cond_wait"]);
        assert_eq!(idle(&works, State::LockWait, true), None, "{name}");
        let mut works = native(&["start_thread", &name]);
        works.extend(python(&[("callback", "shop/views.py")]));
        assert_eq!(idle(&works, State::LockWait, true), None, "{name}");
    }
}

/// Stacks of Node 18, as its symbols name them.
#[test]
fn a_loop_that_node_runs_until_a_child_ends_is_no_idle_one() {
    let poll = ["uv_run", "uv__io_poll", "epoll_pwait"];
    let by = |callers: &[&str]| native(&[callers, &poll].concat());
    let idle_loop = by(&["main", "node::Start", "node::SpinEventLoop"]);
    assert!(idle(&idle_loop, State::PollWait, true).is_some());
    for callers in [
        &[
            "node::SyncProcessRunner::Spawn(v8::FunctionCallbackInfo<v8::Value> const&)",
            "node::SyncProcessRunner::TryInitializeAndRunLoop(v8::Local<v8::Value>)",
        ][..],
        &["_ZN4node17SyncProcessRunner23TryInitializeAndRunLoopEN2v85LocalINS1_5ValueEEE"],
        &["LazyCompile:~spawnSync node:child_process:1", "0x1ace76cf004e9"],
    ] {
        assert_eq!(idle(&by(callers), State::PollWait, true), None, "{callers:?}");
    }
}

/// Stacks of OpenJDK 17, as its symbols name them.
#[test]
fn a_java_thread_that_the_virtual_machine_holds_up_is_not_idle() {
    let wait = ["Monitor::wait_without_safepoint_check", "os::PlatformMonitor::wait"];
    let wait = [&wait[..], &["pthread_cond_wait"]].concat();
    let own = ["Thread::call_run", "VMThread::run", "VMThread::loop"];
    let without_work = [&own[..], &["VMThread::wait_for_operation"], &wait].concat();
    assert!(idle(&native(&without_work), State::LockWait, true).is_some());

    let java = ["Interpreter", "JVM_GC", "G1CollectedHeap::collect"];
    let execute = ["VMThread::execute(VM_Operation*)", "VMThread::wait_until_executed"];
    let collects = [&own[..], &["VMThread::inner_execute", "VM_Operation::evaluate"]].concat();
    let workers = ["WorkGang::run_task(AbstractGangTask*)", "Semaphore::wait", "sem_wait"];
    let begins = ["SafepointSynchronize::begin", "SafepointSynchronize::synchronize_threads"];
    let stopped = [
        "SafepointMechanism::process(JavaThread*, bool)",
        "SafepointSynchronize::block(JavaThread*)",
        "LinuxWaitBarrier::wait(int)",
        "syscall",
    ];
    for frames in [
        [&java[..], &execute[..], &wait[..]].concat(),
        // Inlined, the last of these.
        [&java[..], &execute[..1], &wait[..]].concat(),
        [&java[..], &stopped[..]].concat(),
        // Woken, it found that all were stopped.
        [&["java.util.concurrent.ThreadPoolExecutor.getTask", "Parker::park"][..], &stopped[..]]
            .concat(),
        [&["CompileQueue::get()", "Monitor::wait(long)"][..], &stopped[..]].concat(),
        [&collects[..], &workers[..]].concat(),
        [&collects[..], &begins[..], &["os::naked_short_nanosleep", "nanosleep"][..]].concat(),
    ] {
        assert_eq!(idle(&native(&frames), State::LockWait, true), None, "{frames:?}");
    }
}

#[test]
fn a_lock_in_application_code_is_never_idle() {
    let frames = python(&[BOOTSTRAP, ("refresh", "shop/cache.py")]);
    for in_request in [false, true] {
        assert_eq!(idle(&frames, State::LockWait, in_request), None);
        assert_eq!(idle(&native(&["main", "shop::refresh"]), State::LockWait, in_request), None);
    }
    for waits in [
        &[("Semaphore.acquire", "threading.py"), ("Condition.wait", "threading.py")][..],
        &[("Future.result", "concurrent/futures/_base.py"), ("Condition.wait", "threading.py")],
        &[("Queue.put", "queue.py"), ("Condition.wait", "threading.py")],
    ] {
        let frames = [frames.clone(), python(waits)].concat();
        assert_eq!(idle(&frames, State::LockWait, false), None, "{waits:?}");
    }
}

#[test]
fn outside_requests_who_waits_for_work_or_time_is_idle() {
    let heartbeat = [("run", "shop/heartbeat.py"), ("Event.wait", "threading.py")];
    let consumer = [("consume", "shop/jobs.py"), ("Queue.get", "queue.py")];
    for wait in [heartbeat, consumer] {
        for last in [&[][..], &[("Condition.wait", "threading.py")]] {
            let frames = [python(&[BOOTSTRAP]), python(&wait), python(last)].concat();
            assert!(idle(&frames, State::LockWait, false).is_some(), "{wait:?}");
            assert_eq!(idle(&frames, State::LockWait, true), None, "{wait:?} in a request");
        }
    }
    let frames = python(&[BOOTSTRAP, ("run", "shop/heartbeat.py")]);
    for state in [State::Sleep, State::PollWait, State::ChildWait, State::PipeIpc] {
        assert!(idle(&frames, state, false).is_some(), "{state:?}");
        assert_eq!(idle(&frames, state, true), None, "{state:?} in a request");
    }
}

#[test]
fn the_next_request_is_waited_for_but_its_body_is_not() {
    for (function, file) in python::READERS {
        let frames = python(&[(function, file), ("SocketIO.readinto", "socket.py")]);
        assert!(idle(&frames, State::NetRead, false).is_some());
        assert_eq!(idle(&frames, State::NetRead, true), None);
    }
    let query = python(&[("job", "shop/jobs.py"), ("Connection.wait", "psycopg/connection.py")]);
    assert_eq!(idle(&query, State::NetRead, false), None, "a background job's query is no idling");
}

#[test]
fn only_waits_for_others_can_be_idle() {
    let pool = python(&[("_worker", "concurrent/futures/thread.py")]);
    let idle_states = State::ALL.into_iter().filter(|state| idle(&pool, *state, false).is_some());
    let names: Vec<_> = idle_states.map(State::name).collect();
    assert_eq!(names, ["lock_wait", "net_read", "poll_wait", "sleep", "pipe_ipc", "child_wait"]);
    assert!(names.len() < STATES);
}

#[test]
fn where_nobody_knows_the_state_decides() {
    assert!(idle(&[], State::LockWait, false).is_some());
    assert_eq!(idle(&[], State::LockWait, true), None);
    assert_eq!(idle(&[], State::NetRead, false), None);
    assert_eq!(idle(&[], State::GilWait, false), None);
}

#[test]
fn goroutines_that_only_wait_for_work() {
    for (name, reason) in go::LOOPS {
        let frames = native(&["runtime.goexit", "main.main.gowrap1", name, "runtime.gopark"]);
        assert_eq!(idle_goroutine(&frames), Some(Idle { reason }), "{name}");
        let frames = native(&["runtime.goexit", "main.work", name, "runtime.gopark"]);
        assert_eq!(idle_goroutine(&frames), None, "{name} called by others");
    }
    for (name, reason) in go::FOR_CLIENTS {
        let frames = native(&["runtime.goexit", "main.serve", name, "runtime.gopark"]);
        assert_eq!(idle_goroutine(&frames), Some(Idle { reason }));
    }
    let serve = "net/http.(*conn).serve";
    let kept = native(&["runtime.goexit", serve, "bufio.(*Reader).Peek", "runtime.gopark"]);
    assert!(idle_goroutine(&kept).is_some());
    let body = native(&["runtime.goexit", serve, "main.upload", "bufio.(*Reader).Peek"]);
    assert_eq!(idle_goroutine(&body), None);
}

#[test]
fn main_is_idle_only_while_it_waits_itself() {
    let main = |inner: &[&str]| {
        native(&[&["runtime.goexit", "runtime.main", "main.main"], inner].concat())
    };
    assert!(idle_goroutine(&main(&["runtime.chanrecv1", "runtime.gopark"])).is_some());
    assert!(idle_goroutine(&main(&["sync.(*WaitGroup).Wait", "runtime.gopark"])).is_some());
    assert_eq!(idle_goroutine(&main(&["main.poll", "runtime.gopark"])), None);
    assert_eq!(idle_goroutine(&main(&["net/http.Get", "runtime.gopark"])), None);
    assert_eq!(idle_goroutine(&[]), None);
}
