//! Where idle goroutines wait.

use super::Idle;
use crate::Frame;

/// Functions that goroutines of Go's runtime and of common libraries are started with, and that wait
/// for their next piece of work; by how their names begin.
pub(super) const LOOPS: &[(&str, &str)] = &[
    ("runtime.bgsweep", GC),
    ("runtime.bgscavenge", GC),
    ("runtime.gcBgMarkWorker", GC),
    ("runtime.forcegchelper", GC),
    ("runtime.runfinq", GC),
    ("runtime.runFinalizers", GC),
    ("runtime.runCleanups", GC),
    ("runtime.ensureSigM.func1", "Go's signal handler"),
    ("os/signal.loop", "Go's signal handler"),
    ("runtime/pprof.profileWriter", "Go's profiler"),
    ("database/sql.(*DB).connectionOpener", "database/sql's pool"),
    ("database/sql.(*DB).connectionCleaner", "database/sql's pool"),
    ("net/http.(*persistConn).readLoop", HTTP),
    ("net/http.(*persistConn).writeLoop", HTTP),
    ("net/http.(*connReader).backgroundRead", HTTP),
    ("net/http.(*http2ClientConn).readLoop", HTTP),
    ("golang.org/x/net/http2.(*ClientConn).readLoop", HTTP),
    ("google.golang.org/grpc/internal/transport.", GRPC),
    ("google.golang.org/grpc/internal/grpcsync.", GRPC),
    ("go.opencensus.io/stats/view.(*worker).start", TELEMETRY),
    ("go.opentelemetry.io/otel/sdk/", TELEMETRY),
    ("github.com/golang/glog.", "a logger's timer"),
    ("k8s.io/klog/v2.", "a logger's timer"),
];

const GC: &str = "the garbage collector has nothing to do";
const HTTP: &str = "net/http's own goroutine of a connection";
const GRPC: &str = "gRPC's own goroutine of a connection";
const TELEMETRY: &str = "telemetry with nothing to send";

/// Waits for a client, wherever they are called from.
pub(super) const FOR_CLIENTS: &[(&str, &str)] = &[
    ("net.(*netFD).accept", "waits for a connection"),
    ("net/http.(*conn).readRequest", "waits for a request"),
];

/// Whether a goroutine that waits at these frames, the outermost first, merely waits for something to
/// do, and why.
pub fn idle_goroutine(frames: &[Frame]) -> Option<Idle> {
    let named = || frames.iter().map(|frame| frame.function.as_str());
    // Every goroutine returns to `goexit`; wrappers are the compiler's.
    let mut own = named().filter(|name| *name != "runtime.goexit" && !name.contains(".gowrap"));
    let first = own.next()?;
    if let Some((_, reason)) = LOOPS.iter().find(|(name, _)| first.starts_with(name)) {
        return Some(Idle { reason });
    }
    for (name, reason) in FOR_CLIENTS {
        if named().any(|function| function == *name) {
            return Some(Idle { reason });
        }
    }
    // A connection that is kept alive: `serve` itself looks for the next byte.
    let mut pairs = named().zip(named().skip(1));
    if pairs
        .any(|(outer, inner)| outer == "net/http.(*conn).serve" && inner == "bufio.(*Reader).Peek")
    {
        return Some(Idle { reason: "waits for a request" });
    }
    let is_main = first == "runtime.main" && own.next() == Some("main.main");
    let waits = own.all(|name| name.starts_with("runtime.") || name.starts_with("sync."));
    (is_main && waits).then_some(Idle { reason: "main waits for the program's end" })
}
