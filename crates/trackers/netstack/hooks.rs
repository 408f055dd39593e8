//! Where packets are looked at, by two sets of programs.

use crate::{Attach, Hook, NetfilterHook, Program};

const PRE_ROUTING: Program =
    Program { name: "netstack_pre_routing", attach: Attach::Netfilter(NetfilterHook::PreRouting) };
const LOCAL_IN: Program =
    Program { name: "netstack_local_in", attach: Attach::Netfilter(NetfilterHook::LocalIn) };
const DATA_READY: Program =
    Program { name: "netstack_enqueued", attach: Attach::BtfTracepoint("sk_data_ready") };
const COPIED: Program =
    Program { name: "netstack_read", attach: Attach::BtfTracepoint("skb_copy_datagram_iovec") };

const RECEIVED: Program =
    Program { name: "netstack_datagram_read", attach: Attach::BtfTracepoint("sock_recv_length") };

const fn entry(name: &'static str, function: &'static str) -> Program {
    Program { name, attach: Attach::Fentry(function) }
}

const fn exit(name: &'static str, function: &'static str) -> Program {
    Program { name, attach: Attach::Fexit(function) }
}

const fn hook(what: &'static str, programs: &'static [Program]) -> Hook {
    Hook { what, programs, required: true }
}

/// Netfilter's programs, which are attached in each namespace.
pub(super) const NETFILTER: [(&str, NetfilterHook); 2] =
    [(PRE_ROUTING.name, NetfilterHook::PreRouting), (LOCAL_IN.name, NetfilterHook::LocalIn)];

/// Either all that trace functions are taken, or none of them.
pub(super) const HOOKS: &[Hook] = &[
    hook("ip-start, IPv4", &[entry("netstack_ip_rcv_core", "ip_rcv_core"), PRE_ROUTING]),
    hook("ip-start, IPv6", &[entry("netstack_ip6_rcv_core", "ip6_rcv_core"), PRE_ROUTING]),
    hook("tcp-start, IPv4", &[entry("netstack_tcp_v4_rcv", "tcp_v4_rcv"), LOCAL_IN]),
    hook("tcp-start, IPv6", &[entry("netstack_tcp_v6_rcv", "tcp_v6_rcv"), LOCAL_IN]),
    hook("udp-start, IPv4", &[entry("netstack_udp_rcv", "udp_rcv"), LOCAL_IN]),
    hook("udp-start, IPv6", &[entry("netstack_udpv6_rcv", "udpv6_rcv"), LOCAL_IN]),
    hook("tcp-socket-enqueued", &[exit("netstack_tcp_queue_rcv", "tcp_queue_rcv"), DATA_READY]),
    hook(
        "udp-socket-enqueued",
        &[exit("netstack_udp_enqueue", "__udp_enqueue_schedule_skb"), DATA_READY],
    ),
    hook("tcp-socket-read", &[entry("netstack_tcp_recv_timestamp", "tcp_recv_timestamp"), COPIED]),
    hook("udp-socket-read", &[entry("netstack_skb_consume_udp", "skb_consume_udp"), RECEIVED]),
    hook(
        "segments after a missing one",
        &[Program { name: "netstack_segment", attach: Attach::BtfTracepoint("tcp_probe") }],
    ),
    Hook {
        what: "packets of this host's own",
        programs: &[Program {
            name: "netstack_arrives",
            attach: Attach::BtfTracepoint("netif_rx"),
        }],
        required: false,
    },
];
