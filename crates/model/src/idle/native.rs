//! Where idle threads of other runtimes and of native libraries wait.

use crate::{Frame, FrameKind};

/// How a function's name is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    /// It is this.
    Is(&'static str),
    /// It begins so: what follows differs by template arguments or overload.
    Begins(&'static str),
    /// It holds this: the rest differs by how names are mangled.
    Holds(&'static str),
}

use Name::{Begins, Holds, Is};

/// Loops that wait for nothing but work. Between one of them and the wait there may be only what
/// [`WAITS`] lists.
pub(super) const LOOPS: &[(Name, &str)] = &[
    (Is("runtime.findRunnable"), GO),
    (Is("runtime.findrunnable"), GO),
    (Is("runtime.stopm"), GO),
    (Is("runtime.stoplockedm"), GO),
    (Is("runtime.sysmon"), "Go's monitor"),
    (Is("runtime.templateThread"), GO),
    (Begins("tokio::runtime::blocking::pool::Inner::run"), "a free thread of tokio's pool"),
    (Begins("tokio::runtime::scheduler::multi_thread::park::"), TOKIO),
    (Begins("tokio::runtime::scheduler::multi_thread::worker::Context::park"), TOKIO),
    (Begins("tokio::runtime::scheduler::current_thread::Context::park"), TOKIO),
    (Begins("tokio::runtime::park::Inner::park"), TOKIO),
    (Begins("tokio::runtime::io::driver::Driver::turn"), TOKIO),
    (Begins("rayon_core::sleep::Sleep::sleep"), "a free worker of rayon"),
    (Is(LIBUV), "libuv's loop without events"),
    (Is("uv_cond_wait"), "a free thread of libuv's pool"),
    (Holds("PlatformWorkerThread"), "a free worker of Node"),
    (Holds("WorkerThreadsTaskRunner"), "a free worker of Node"),
    (Holds("DelayedTaskScheduler"), "Node's timer"),
    (Is("ev_run"), "libev's loop without events"),
    (Is("event_base_loop"), "libevent's loop without events"),
    (Is("ngx_epoll_process_events"), "nginx without events"),
    (Is("ngx_master_process_cycle"), "nginx's master"),
    (Is("aeApiPoll"), "Redis without events"),
    (Is("bioProcessBackgroundJobs"), "Redis without background jobs"),
    (Is("ServerLoop"), "PostgreSQL's postmaster"),
    (Is("SocketBackend"), "a PostgreSQL session without a query"),
    (Begins("WalWriterMain"), POSTGRES),
    (Begins("BackgroundWriterMain"), POSTGRES),
    (Begins("CheckpointerMain"), POSTGRES),
    (Begins("AutoVacLauncherMain"), POSTGRES),
    (Begins("ApplyLauncherMain"), POSTGRES),
    (Is("rd_kafka_thread_main"), KAFKA),
    (Is("rd_kafka_broker_thread_main"), KAFKA),
    (Is("rd_kafka_background_thread_main"), KAFKA),
    (Begins("grpc_core::Executor::ThreadMain"), GRPC),
    (Begins("grpc_event_engine::experimental::WorkStealingThreadPool"), GRPC),
    (Begins("grpc_event_engine::experimental::TimerManager"), GRPC),
    (Is("blas_thread_server"), "a free thread of OpenBLAS"),
    (Is("gomp_thread_start"), "a free thread of OpenMP"),
    (Holds("PeriodicThread"), "Datadog's timer"),
    (Is("background_thread_entry"), "jemalloc's background thread"),
    (Holds("ThreadPoolExecutor;::getTask"), JAVA),
    (Holds("ThreadPoolExecutor.getTask"), JAVA),
    (Holds("ForkJoinPool;::awaitWork"), JAVA),
    (Holds("ForkJoinPool.awaitWork"), JAVA),
    (Begins("VMThread::wait_for_operation"), JVM),
    (Begins("VMThread::loop"), JVM),
    (Begins("VMThread::run"), JVM),
    (Begins("WatcherThread::"), JVM),
    (Begins("CompileQueue::get"), JVM),
    (Begins("WorkerThread::run"), JVM),
    (Begins("GangWorker::loop"), JVM),
    (Begins("ServiceThread::service_thread_entry"), JVM),
];

const LIBUV: &str = "uv__io_poll";

/// Who runs it once more, within its own work: Node does, until a synchronous child process ends.
const NESTED: [Name; 2] = [Holds("SyncProcessRunner"), Holds("spawnSync")];

pub(super) const GO: &str = "a thread of Go's scheduler without a goroutine to run";
const TOKIO: &str = "a worker of tokio without a task";
const POSTGRES: &str = "a background process of PostgreSQL";
const KAFKA: &str = "a thread of Kafka's client without work";
const GRPC: &str = "a thread of gRPC without work";
const JAVA: &str = "a free worker of a Java pool";
const JVM: &str = "a thread of the Java virtual machine without work";

/// How waiting is done by the C library and by languages' own ones. No application's function is called
/// so: whoever calls one of these is who waits.
const WAYS: &[Name] = &[
    Begins("0x"),
    Begins("__"),
    Begins("pthread_"),
    Begins("futex"),
    Begins("clock_nanosleep"),
    Begins("nanosleep"),
    Begins("sigsuspend"),
    Begins("sigwait"),
    Begins("sem_"),
    Begins("cnd_"),
    Begins("runtime."),
    Begins("internal/runtime/"),
    Begins("internal/poll."),
    Begins("internal/sync."),
    Begins("sync."),
    Begins("syscall."),
    Begins("std::"),
    Begins("core::ops::"),
    Begins("<std::"),
    Begins("<core::"),
    Begins("parking_lot"),
    Begins("crossbeam"),
    Begins("mio::"),
    Begins("Unsafe_Park"),
    Begins("Ljava/util/concurrent/"),
    Begins("Ljdk/internal/"),
    Begins("java.util.concurrent."),
    Begins("jdk.internal."),
];

/// The C library's system calls that wait, and where its threads begin. In a program that is linked
/// statically nothing but the name tells them from its own functions.
const C_LIBRARY: [&str; 39] = [
    "_start",
    "accept",
    "accept4",
    "clone",
    "clone3",
    "connect",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fcntl",
    "fdatasync",
    "flock",
    "fsync",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "pselect",
    "pwrite",
    "pwrite64",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "send",
    "sendfile",
    "sendmsg",
    "sendto",
    "sleep",
    "start_thread",
    "syscall",
    "usleep",
    "wait4",
    "waitid",
    "waitpid",
    "write",
    "writev",
];

/// The same of libraries and runtimes with loops of their own, and by how names of the C library begin. An
/// application's function may be called so: only beneath one of [`LOOPS`] it is known not to be one.
const WAITS: &[Name] = &[
    Begins("epoll"),
    Begins("poll"),
    Begins("ppoll"),
    Begins("select"),
    Begins("pselect"),
    Begins("usleep"),
    Begins("sleep"),
    Begins("syscall"),
    Begins("read"),
    Begins("recv"),
    Begins("core::"),
    Begins("tokio::"),
    Begins("<tokio::"),
    Begins("rayon_core::"),
    Begins("uv_"),
    Begins("node::"),
    Begins("v8::"),
    Begins("ev_"),
    Begins("evmap_"),
    Begins("ngx_"),
    Begins("WaitEventSet"),
    Begins("WaitLatch"),
    Begins("pq_"),
    Begins("secure_read"),
    Begins("rd_kafka_q_"),
    Begins("rd_kafka_broker_serve"),
    Begins("rd_kafka_transport_poll"),
    Begins("rd_kafka_transport_io_serve"),
    Begins("grpc_"),
    Begins("gpr_"),
    Begins("absl::"),
    Begins("gomp_"),
    Begins("Parker::"),
    Begins("Monitor::"),
    Begins("Mutex::"),
    Begins("PlatformMonitor"),
    Begins("PlatformEvent"),
    Begins("os::"),
    Begins("ObjectMonitor::"),
    Begins("Semaphore::"),
    Begins("PosixSemaphore"),
];

/// What Cython makes of an application's functions begins as the C library's own.
const CYTHON: &str = "__pyx_";

/// Whether a native function is how waiting is done, and says nothing of who waits or what for.
pub(crate) fn is_way_to_wait(function: &str, module: &str) -> bool {
    let by_name = || {
        C_LIBRARY.contains(&function)
            || !function.starts_with(CYTHON) && WAYS.iter().any(|name| name.tells(function))
    };
    is_c_library(module) || by_name()
}

/// The loop whose next piece of work the thread waits for. No Python may be further in: it would be
/// the work.
pub(super) fn own_queue(frames: &[Frame]) -> Option<&'static str> {
    for frame in frames.iter().rev() {
        match frame.kind {
            FrameKind::Kernel => {}
            FrameKind::Python => return None,
            FrameKind::Native => {
                let found = LOOPS.iter().find(|(name, _)| name.tells(&frame.function));
                if let Some((_, reason)) = found {
                    return (!is_nested(frame, frames)).then_some(*reason);
                }
                let waits = WAYS.iter().chain(WAITS).any(|name| name.tells(&frame.function));
                if !waits && !is_c_library(&frame.module) {
                    return None;
                }
            }
        }
    }
    None
}

/// Whether a loop waits for what its caller began, and not for work.
fn is_nested(inner: &Frame, frames: &[Frame]) -> bool {
    let calls = |frame: &Frame| NESTED.iter().any(|name| name.tells(&frame.function));
    inner.function == LIBUV && frames.iter().any(calls)
}

fn is_c_library(module: &str) -> bool {
    ["libc.so", "libc-", "libpthread", "ld-musl", "[vdso]"].iter().any(|c| module.starts_with(c))
}

impl Name {
    fn tells(self, function: &str) -> bool {
        match self {
            Is(name) => function == name,
            Begins(name) => function.starts_with(name),
            Holds(name) => function.contains(name),
        }
    }

    #[cfg(test)]
    pub(super) fn example(self) -> String {
        match self {
            Is(name) => name.to_owned(),
            Begins(name) => format!("{name}::{{{{closure}}}}"),
            Holds(name) => format!("a::{name}::b()"),
        }
    }
}
