//! What did a client wait for?

mod answering;
mod assemble;
mod decode;
mod framing;
mod http;
mod open;
mod path;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::observe::RequestRead;
use crate::record::DecodeError;
use crate::rows::columns_with_ledger;
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// Requests of any server that accepts TCP or Unix stream connections.
pub struct RequestTracker;

/// Accepted connections; `fexit` hears of both calls, and is attached once.
pub(crate) const ACCEPT4: Hook = Hook {
    what: "connections accepted (accept4)",
    programs: &[
        Program { name: "request_accept_fexit", attach: Attach::Fexit("do_accept") },
        Program {
            name: "request_accept4",
            attach: Attach::Tracepoint("syscalls/sys_exit_accept4"),
        },
    ],
    required: true,
};
pub(crate) const ACCEPT: Hook = Hook {
    what: "connections accepted (accept)",
    programs: &[
        Program { name: "request_accept_fexit", attach: Attach::Fexit("do_accept") },
        Program { name: "request_accept", attach: Attach::Tracepoint("syscalls/sys_exit_accept") },
    ],
    required: false,
};

const HOOKS: &[Hook] = &[
    Hook {
        what: "bytes arrived",
        programs: &[
            Program { name: "request_data_ready", attach: Attach::BtfTracepoint("sk_data_ready") },
            Program {
                name: "request_data_ready_fentry",
                attach: Attach::Fentry("sock_def_readable"),
            },
        ],
        required: true,
    },
    Hook {
        what: "bytes read",
        programs: &[
            Program { name: "request_recv", attach: Attach::BtfTracepoint("sock_recv_length") },
            Program { name: "request_recv_inet", attach: Attach::Fexit("inet_recvmsg") },
        ],
        required: true,
    },
    // The tracepoint hears of every family, and is attached already where there is one.
    Hook {
        what: "bytes read (IPv6)",
        programs: &[
            Program { name: "request_recv", attach: Attach::BtfTracepoint("sock_recv_length") },
            Program { name: "request_recv_inet6", attach: Attach::Fexit("inet6_recvmsg") },
        ],
        required: false,
    },
    Hook {
        what: "bytes read (Unix)",
        programs: &[
            Program { name: "request_recv", attach: Attach::BtfTracepoint("sock_recv_length") },
            Program { name: "request_recv_unix", attach: Attach::Fexit("unix_stream_recvmsg") },
        ],
        required: false,
    },
    Hook {
        what: "bytes sent",
        programs: &[
            Program { name: "request_send", attach: Attach::BtfTracepoint("sock_send_length") },
            Program { name: "request_send_inet", attach: Attach::Fexit("inet_sendmsg") },
        ],
        required: true,
    },
    Hook {
        what: "bytes sent (IPv6)",
        programs: &[
            Program { name: "request_send", attach: Attach::BtfTracepoint("sock_send_length") },
            Program { name: "request_send_inet6", attach: Attach::Fexit("inet6_sendmsg") },
        ],
        required: false,
    },
    Hook {
        what: "bytes sent (Unix)",
        programs: &[
            Program { name: "request_send", attach: Attach::BtfTracepoint("sock_send_length") },
            Program { name: "request_send_unix", attach: Attach::Fexit("unix_stream_sendmsg") },
        ],
        required: false,
    },
    Hook {
        what: "bytes sent (sendfile)",
        programs: &[
            Program { name: "request_send", attach: Attach::BtfTracepoint("sock_send_length") },
            Program { name: "request_sendpage_inet", attach: Attach::Fexit("inet_sendpage") },
        ],
        required: false,
    },
    Hook {
        what: "bytes sent (sendfile, Unix)",
        programs: &[
            Program { name: "request_send", attach: Attach::BtfTracepoint("sock_send_length") },
            Program {
                name: "request_sendpage_unix",
                attach: Attach::Fexit("unix_stream_sendpage"),
            },
        ],
        required: false,
    },
    Hook {
        what: "connections made and closed",
        programs: &[Program {
            name: "request_state",
            attach: Attach::BtfTracepoint("inet_sock_set_state"),
        }],
        required: true,
    },
    Hook {
        what: "connections closed (Unix)",
        programs: &[Program { name: "request_close_unix", attach: Attach::Fentry("unix_release") }],
        required: false,
    },
    Hook {
        what: "connections older than this",
        programs: &[Program { name: "request_adopt", attach: Attach::Iterator("task_file") }],
        required: true,
    },
    ACCEPT4,
    ACCEPT,
];

const COLUMNS: [&str; 20] = [
    "process",
    "request_id",
    "trace_id",
    "parent_span_id",
    "accept_queue_ns",
    "handoff_ns",
    "handler_ns",
    "accept_to_read_ns",
    "conn_request",
    "method",
    "path",
    "status",
    "peer",
    "local",
    "bytes_in",
    "bytes_out",
    "accept_tid",
    "sent_tid",
    "sent_thread",
    "shared_thread",
];

fn request_columns() -> Vec<String> {
    let own: Vec<_> = COLUMNS.into_iter().chain(["end"]).collect();
    columns_with_ledger(&own)
}

/// What is told when a request is read, for who shows it at once.
pub(crate) fn seen(bytes: &[u8]) -> Result<RequestRead, DecodeError> {
    let asked = decode::asked(bytes)?;
    Ok(RequestRead {
        id: asked.id,
        pid: asked.pid,
        tid: asked.tid,
        ready: if asked.ready == 0 { asked.read } else { asked.ready.min(asked.read) },
        read: asked.read,
        method: asked.head.method,
        path: asked.head.path,
        peer: asked.peer,
        ledger: (asked.born != 0).then_some(asked.at_read),
    })
}

impl Tracker for RequestTracker {
    fn name(&self) -> &'static str {
        "request"
    }

    fn question(&self) -> &'static str {
        "What did a client wait for?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![
            ("requests", request_columns()),
            ("requests_open", request_columns()),
            ("critical_path", path::columns_of_paths()),
        ]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::RequestDecoder::new(request_columns()))
    }
}

const AF_UNIX: u16 = libc::AF_UNIX as u16;
const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;

/// An end of a connection, as rows write it: `address:port`, `unix`, or empty for no socket. IPv4
/// in IPv6 is written as IPv4.
pub(crate) fn address(family: u16, bytes: &[u8; 16], port: u16) -> String {
    let ip = match family {
        AF_UNIX => return "unix".to_owned(),
        AF_INET => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical(),
        _ => return String::new(),
    };
    SocketAddr::new(ip, port).to_string()
}

#[cfg(test)]
mod tests;
