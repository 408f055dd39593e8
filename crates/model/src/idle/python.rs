//! Where Python's idle threads wait.
//!
//! A line is a function by its qualified name and the end of its file's path. Before 3.11 frames only
//! know the function's own name; with the file that is enough.

use super::python_frames;
use crate::Frame;

/// A function in a file.
type Function = (&'static str, &'static str);

/// How waiting is done, whoever waits: these are looked through.
pub(super) const WAITS: &[Function] = &[
    ("Condition.wait", "threading.py"),
    ("Condition.wait_for", "threading.py"),
    ("Event.wait", "threading.py"),
    ("Queue.get", "queue.py"),
    ("_PySimpleQueue.get", "queue.py"),
    ("EpollSelector.select", "selectors.py"),
    ("PollSelector.select", "selectors.py"),
    ("_PollLikeSelector.select", "selectors.py"),
    ("SelectSelector.select", "selectors.py"),
    ("SelectSelector._select", "selectors.py"),
    ("wait", "multiprocessing/connection.py"),
    ("_ConnectionBase.recv", "multiprocessing/connection.py"),
    ("_ConnectionBase.recv_bytes", "multiprocessing/connection.py"),
    ("_ConnectionBase.poll", "multiprocessing/connection.py"),
    ("Connection._recv", "multiprocessing/connection.py"),
    ("Connection._recv_bytes", "multiprocessing/connection.py"),
    ("Connection._poll", "multiprocessing/connection.py"),
    ("Queue.get", "multiprocessing/queues.py"),
    ("SimpleQueue.get", "multiprocessing/queues.py"),
    ("SemLock.__enter__", "multiprocessing/synchronize.py"),
    ("Condition.wait", "multiprocessing/synchronize.py"),
    ("Event.wait", "multiprocessing/synchronize.py"),
    ("QueueListener.dequeue", "logging/handlers.py"),
    ("Queue.get", "sentry_sdk/_queue.py"),
    ("Queue.get", "psycopg_pool/_acompat.py"),
    ("_epoll.poll", "kombu/utils/eventio.py"),
    ("_poll.poll", "kombu/utils/eventio.py"),
    ("_ThreadsafeSelector.select", "cheroot/connections.py"),
];

/// Loops that wait for nothing but their next piece of work, and what they belong to.
pub(super) const LOOPS: &[(Function, &str)] = &[
    (("_worker", "concurrent/futures/thread.py"), "a free worker of a thread pool"),
    (("_process_worker", "concurrent/futures/process.py"), "a free worker of a process pool"),
    (("_queue_management_worker", "concurrent/futures/process.py"), "a process pool's manager"),
    (
        ("_ExecutorManagerThread.wait_result_broken_or_wakeup", "concurrent/futures/process.py"),
        "a process pool's manager",
    ),
    (("worker", "multiprocessing/pool.py"), "a free worker of multiprocessing's pool"),
    (("Pool._handle_tasks", "multiprocessing/pool.py"), "multiprocessing's pool"),
    (("Pool._handle_results", "multiprocessing/pool.py"), "multiprocessing's pool"),
    (("Pool._handle_workers", "multiprocessing/pool.py"), "multiprocessing's pool"),
    (("Pool._wait_for_updates", "multiprocessing/pool.py"), "multiprocessing's pool"),
    (("ThreadPool._wait_for_updates", "multiprocessing/pool.py"), "multiprocessing's pool"),
    (("Queue._feed", "multiprocessing/queues.py"), "the feeder of an empty queue"),
    (("Server.serve_forever", "multiprocessing/managers.py"), "multiprocessing's manager"),
    (("Timer.run", "threading.py"), "a timer that is not due"),
    (("_shutdown", "threading.py"), "the program's end waits for its threads"),
    (("scheduler.run", "sched.py"), "a scheduler with nothing due"),
    (("QueueListener._monitor", "logging/handlers.py"), "logging's listener"),
    (("BaseServer.serve_forever", "socketserver.py"), "a server without connections"),
    (("BaseEventLoop._run_once", "asyncio/base_events.py"), "an event loop without events"),
    (("Arbiter.wait_for_signals", "gunicorn/arbiter.py"), "gunicorn's arbiter"),
    (("Arbiter.sleep", "gunicorn/arbiter.py"), "gunicorn's arbiter"),
    (("SyncWorker.wait", "gunicorn/workers/sync.py"), "a free worker of gunicorn"),
    (("ThreadWorker.run", "gunicorn/workers/gthread.py"), "gunicorn's loop"),
    (
        ("ThreadWorker.wait_for_and_dispatch_events", "gunicorn/workers/gthread.py"),
        "gunicorn's loop",
    ),
    (("GeventWorker.run", "gunicorn/workers/ggevent.py"), "gunicorn's loop"),
    (("ThreadedTaskDispatcher.handler_thread", "waitress/task.py"), "a free worker of waitress"),
    (("poll", "waitress/wasyncore.py"), "waitress's loop"),
    (("poll2", "waitress/wasyncore.py"), "waitress's loop"),
    (
        ("WorkerThread._process_connections_until_interrupted", "cheroot/workers/threadpool.py"),
        "a free worker of cheroot",
    ),
    (("WorkerThread.run", "anyio/_backends/_asyncio.py"), "a free worker thread of AnyIO"),
    (("WorkerThread.run", "cheroot/workers/threadpool.py"), "a free worker of cheroot"),
    (("ConnectionManager._run", "cheroot/connections.py"), "cheroot's loop"),
    (("BatchProcessor.worker", "opentelemetry/sdk/_shared_internal/__init__.py"), OTEL),
    (("BatchSpanProcessor.worker", "opentelemetry/sdk/trace/export/__init__.py"), OTEL),
    (
        ("BatchLogRecordProcessor.worker", "opentelemetry/sdk/_logs/_internal/export/__init__.py"),
        OTEL,
    ),
    (
        (
            "PeriodicExportingMetricReader._ticker",
            "opentelemetry/sdk/metrics/_internal/export/__init__.py",
        ),
        OTEL,
    ),
    (("ConnectionPool.worker", "psycopg_pool/pool.py"), "psycopg's connection pool"),
    (("Scheduler.run", "psycopg_pool/sched.py"), "psycopg's connection pool"),
    (("BlockingScheduler._main_loop", "apscheduler/schedulers/blocking.py"), "APScheduler"),
    (("BackgroundWorker._target", "sentry_sdk/worker.py"), SENTRY),
    (("Batcher._flush_loop", "sentry_sdk/_batcher.py"), SENTRY),
    (("SpanBatcher._flush_loop", "sentry_sdk/_span_batcher.py"), SENTRY),
    (("SessionFlusher._ensure_running.<locals>._thread", "sentry_sdk/sessions.py"), SENTRY),
    (("Monitor._ensure_running.<locals>._thread", "sentry_sdk/monitor.py"), SENTRY),
    (("Transport._process_queue", "elasticapm/transport/base.py"), "Elastic APM's sender"),
    (("IntervalTimer.run", "elasticapm/utils/threading.py"), "Elastic APM's timer"),
    (("PeriodicExecutor._run", "pymongo/periodic_executor.py"), "PyMongo's monitor"),
    (("BaseObserver.dispatch_events", "watchdog/observers/api.py"), "watchdog's observer"),
    (("WorkerThread.run", "dramatiq/worker.py"), "a thread of Dramatiq without work"),
    (("ConsumerThread.run", "dramatiq/worker.py"), "a thread of Dramatiq without work"),
    (("BaseProcess.sleep_for_interval", "huey/consumer.py"), "Huey's consumer"),
    (("Worker.sleep", "huey/consumer.py"), "a free worker of Huey"),
    (("Consumer.loop", "huey/consumer.py"), "Huey's consumer"),
    (("Hub.create_loop", "kombu/asynchronous/hub.py"), "Celery's loop"),
    (("Timer.run", "celery/utils/timer2.py"), "Celery's timer"),
    (("FixedThreadPool._run_worker", "ldclient/impl/fixed_thread_pool.py"), LAUNCHDARKLY),
    (("RepeatingTask._run", "ldclient/impl/repeating_task.py"), LAUNCHDARKLY),
    (("EventDispatcher._run_main_loop", "ldclient/impl/events/event_processor.py"), LAUNCHDARKLY),
    (("_serve", "grpc/_server.py"), "gRPC's server"),
    (("_run_channel_spin_thread.<locals>.channel_spin", "grpc/_channel.py"), "gRPC's client"),
    (("_poll_connectivity", "grpc/_channel.py"), "gRPC's client"),
];

const OTEL: &str = "OpenTelemetry's exporter";
const SENTRY: &str = "Sentry's sender";
const LAUNCHDARKLY: &str = "LaunchDarkly's client";

/// Of [`WAITS`], those that wait for work or for a moment, not for a lock that somebody holds.
const FOR_WORK: &[Function] = &[
    ("Event.wait", "threading.py"),
    ("Condition.wait", "threading.py"),
    ("Queue.get", "queue.py"),
    ("_PySimpleQueue.get", "queue.py"),
    ("Queue.get", "multiprocessing/queues.py"),
    ("SimpleQueue.get", "multiprocessing/queues.py"),
    ("Queue.get", "sentry_sdk/_queue.py"),
    ("Queue.get", "psycopg_pool/_acompat.py"),
    ("Event.wait", "multiprocessing/synchronize.py"),
    ("Condition.wait", "multiprocessing/synchronize.py"),
];

/// Who waits for a lock by way of a condition: it is held, so this is no wait for work.
const FOR_LOCK: &[Function] = &[
    ("Semaphore.acquire", "threading.py"),
    ("Barrier._wait", "threading.py"),
    ("Barrier._enter", "threading.py"),
    ("Future.result", "concurrent/futures/_base.py"),
    ("Future.exception", "concurrent/futures/_base.py"),
    ("wait", "concurrent/futures/_base.py"),
    ("as_completed", "concurrent/futures/_base.py"),
    ("Queue.put", "queue.py"),
    ("Queue.join", "queue.py"),
    ("Thread.start", "threading.py"),
    ("ApplyResult.wait", "multiprocessing/pool.py"),
];

/// Servers that wait for the next request on a connection.
pub(super) const READERS: &[Function] = &[
    ("BaseHTTPRequestHandler.handle_one_request", "http/server.py"),
    ("SocketUnreader.chunk", "gunicorn/http/unreader.py"),
];

/// How they read it.
const READS: &[Function] = &[
    ("SocketIO.readinto", "socket.py"),
    ("SSLSocket.recv_into", "ssl.py"),
    ("SSLSocket.recv", "ssl.py"),
    ("SSLSocket.read", "ssl.py"),
];

/// The loop whose next piece of work the thread waits for.
pub(super) fn own_queue(frames: &[Frame]) -> Option<&'static str> {
    let owner = python_frames(frames).find(|frame| !is_any(WAITS, frame))?;
    // `psycopg_pool/sched.py` is a `sched.py` too: the longest path tells.
    let own = LOOPS.iter().filter(|(function, _)| is(*function, owner));
    own.max_by_key(|((_, file), _)| file.len()).map(|(_, reason)| *reason)
}

/// Whether a wait for a lock is one for work.
pub(super) fn waits_for_work(frames: &[Frame]) -> Option<&'static str> {
    let mut waits = false;
    for frame in python_frames(frames) {
        if is_any(FOR_LOCK, frame) {
            return None;
        }
        if !is_any(WAITS, frame) {
            break;
        }
        waits |= is_any(FOR_WORK, frame);
    }
    waits.then_some("waits for work or for its time, outside any request")
}

/// Whether a read is one of the next request.
pub(super) fn waits_for_request(frames: &[Frame]) -> Option<&'static str> {
    let owner = python_frames(frames).find(|frame| !is_any(READS, frame))?;
    is_any(READERS, owner).then_some("waits for a connection's next request")
}

fn is_any(functions: &[Function], frame: &Frame) -> bool {
    functions.iter().any(|function| is(*function, frame))
}

fn is((qualified, file): Function, frame: &Frame) -> bool {
    let own = qualified.rsplit('.').next().unwrap_or(qualified);
    (frame.function == qualified || frame.function == own) && ends_with_path(&frame.file, file)
}

/// Whole names only: `myqueue.py` is not `queue.py`. Modules that Python was built with have a path in
/// brackets, `<frozen threading>`, which none of these has.
fn ends_with_path(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}
