//! What happened on connections, in the receive stack and on the host. Addresses are `address:port`.

use serde::{Deserialize, Serialize};

/// One stall, reset or burst of drops on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpLoss {
    /// The watched host.
    pub host: String,
    /// The process at this end.
    pub pid: u32,
    /// The thread that last read from it, or connected or listens.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// The process's name.
    pub process: String,
    /// When the first byte that was not acknowledged had been sent, or the window was full.
    pub start_time: u64,
    /// Until it was made good.
    pub duration_ns: u64,
    /// This end.
    pub local: String,
    /// The other end.
    pub peer: String,
    /// `fast_retransmit`, `tail_loss_probe`, `rto`, `syn_retry`, `zero_window_local` (this end did not
    /// read), `zero_window_peer`, `reset_sent`, `reset_received`, `drop`.
    pub kind: String,
    /// Segments sent again.
    pub retransmits: u32,
    /// How often the timer was doubled.
    pub backoff: u8,
}

/// One attempt to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpConnect {
    /// The watched host.
    pub host: String,
    /// The process that connected.
    pub pid: u32,
    /// The thread that did.
    pub tid: u32,
    /// When the first SYN was sent.
    pub start_time: u64,
    /// Until the outcome.
    pub duration_ns: u64,
    /// This end.
    pub local: String,
    /// The other end.
    pub peer: String,
    /// `connected`, `refused`, `timed_out`, …
    pub outcome: String,
    /// Since this process last began to connect to the same peer; 0: it had not.
    pub reconnect_ns: u64,
    /// SYNs sent again.
    pub syn_retransmits: u32,
}

/// One accepted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpAccept {
    /// The watched host.
    pub host: String,
    /// The process that accepted it.
    pub pid: u32,
    /// The thread that did.
    pub tid: u32,
    /// When its handshake was complete.
    pub start_time: u64,
    /// Until `accept()` returned it.
    pub duration_ns: u64,
    /// This end.
    pub local: String,
    /// The other end.
    pub peer: String,
    /// Connections in the accept queue when it came, itself included.
    pub queue_length: u32,
    /// How many it holds, less one.
    pub queue_limit: u32,
}

/// A second of a listening socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpListener {
    /// The watched host.
    pub host: String,
    /// The process that listens.
    pub pid: u32,
    /// The thread that called `listen()`.
    pub tid: u32,
    /// The process's name.
    pub process: String,
    /// When the second began.
    pub start_time: u64,
    /// How long it was.
    pub duration_ns: u64,
    /// Where it listens.
    pub local: String,
    /// The longest the queue was.
    pub queue_length: u32,
    /// How many it holds, less one.
    pub queue_limit: u32,
    /// Connections dropped because the queue was full.
    pub overflows: u32,
}

/// What a counter of the host counted in about a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCounter {
    /// The host.
    pub host: String,
    /// Since when.
    pub start_time: u64,
    /// For how long.
    pub duration_ns: u64,
    /// Where it is read: `ena`, `ebs`, `cpu`, `cgroup`, …
    pub source: String,
    /// Its name.
    pub metric: String,
    /// The interface, CPU, cgroup or disk.
    pub subject: String,
    /// `ns` or `count`.
    pub unit: String,
    /// What was added.
    pub delta: u64,
}

/// How old packets were at one point of the receive stack, over about a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PacketAges {
    /// The host.
    pub host: String,
    /// Since when.
    pub start_time: u64,
    /// For how long.
    pub duration_ns: u64,
    /// `ip-start`, `tcp-start`, `tcp-socket-enqueued`, `tcp-socket-read`, …
    pub point: String,
    /// Packets that passed it.
    pub count: u64,
    /// Their ages, summed.
    pub sum_ns: u64,
}
