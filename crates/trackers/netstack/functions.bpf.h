/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The same points by the kernel's functions, where it lets them be traced: they see every network
 * namespace, and each packet rather than each wake-up of a socket.
 */
#ifndef UNDERSPAN_NETSTACK_FUNCTIONS_BPF_H
#define UNDERSPAN_NETSTACK_FUNCTIONS_BPF_H

static __always_inline __u32 namespace_of_device(const struct sk_buff *skb)
{
	return skb->dev->nd_net.net->ns.inum;
}

SEC("fentry/ip_rcv_core")
int BPF_PROG(netstack_ip_rcv_core, struct sk_buff *skb)
{
	forget_another(skb);
	at_start(NETSTACK_IP_START, skb, namespace_of_device(skb), false);
	return 0;
}

SEC("fentry/ip6_rcv_core")
int BPF_PROG(netstack_ip6_rcv_core, struct sk_buff *skb)
{
	forget_another(skb);
	at_start(NETSTACK_IP_START, skb, namespace_of_device(skb), true);
	return 0;
}

/* The transport's functions are called with the final stamp. */
static __always_inline int transport_starts(enum netstack_point point, struct sk_buff *skb, bool ipv6)
{
	has_final_stamp(skb);
	at_start(point, skb, namespace_of_device(skb), ipv6);
	return 0;
}

SEC("fentry/tcp_v4_rcv")
int BPF_PROG(netstack_tcp_v4_rcv, struct sk_buff *skb)
{
	return transport_starts(NETSTACK_TCP_START, skb, false);
}

SEC("fentry/tcp_v6_rcv")
int BPF_PROG(netstack_tcp_v6_rcv, struct sk_buff *skb)
{
	return transport_starts(NETSTACK_TCP_START, skb, true);
}

SEC("fentry/udp_rcv")
int BPF_PROG(netstack_udp_rcv, struct sk_buff *skb)
{
	return transport_starts(NETSTACK_UDP_START, skb, false);
}

SEC("fentry/udpv6_rcv")
int BPF_PROG(netstack_udpv6_rcv, struct sk_buff *skb)
{
	return transport_starts(NETSTACK_UDP_START, skb, true);
}

static __always_inline int is_enqueued(enum netstack_point point, struct sock *sk, struct sk_buff *skb)
{
	struct sighting at = { .point = point, .ipv6 = is_ipv6(skb), .ifindex = skb->skb_iif };
	__u64 ns;

	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (!socket_is_wanted(&at, sk, false) || !reader_is_wanted(sk))
		return 0;
	ns = age(point, skb);
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

SEC("fexit/tcp_queue_rcv")
int BPF_PROG(netstack_tcp_queue_rcv, struct sock *sk, struct sk_buff *skb)
{
	/* The mere end of a stream is put there too, even if nobody can read it any more. */
	return skb->len ? is_enqueued(NETSTACK_TCP_SOCKET_ENQUEUED, sk, skb) : 0;
}

SEC("fexit/__udp_enqueue_schedule_skb")
int BPF_PROG(netstack_udp_enqueue, struct sock *sk, struct sk_buff *skb, int ret)
{
	return ret ? 0 : is_enqueued(NETSTACK_UDP_SOCKET_ENQUEUED, sk, skb);
}

/* An IPv4 packet can be read from an IPv6 socket. */
static __always_inline bool speaks_ipv6(const struct sock *sk)
{
	return sk->__sk_common.skc_family == AF_INET6 &&
	       (sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0] ||
		sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1] ||
		sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2] != 0xffff0000);
}

/* The end of a read: the stamp is the last packet's, and all before copied_seq has been read. */
SEC("fentry/tcp_recv_timestamp")
int BPF_PROG(netstack_tcp_recv_timestamp, struct msghdr *msg, struct sock *sk,
	     struct scm_timestamping_internal *stamps)
{
	struct sighting at = { .ifindex = sk->sk_rx_dst_ifindex, .ipv6 = speaks_ipv6(sk) };
	struct timespec64 stamp;
	__u64 ns;

	if (!current_is_wanted())
		return 0;
	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (!socket_is_wanted(&at, sk, true))
		return 0;
	at.point = waited_for_gap(note_reader(sk), READ(struct tcp_sock, sk, copied_seq) - 1) ?
			   NETSTACK_TCP_SOCKET_READ_AFTER_GAP :
			   NETSTACK_TCP_SOCKET_READ;
	if (bpf_core_read(&stamp, sizeof(stamp), &stamps->ts[0]))
		return 0;
	ns = age_of_stamp(at.point, stamp.tv_sec * 1000000000ULL + stamp.tv_nsec, bpf_ktime_get_ns());
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

SEC("fentry/skb_consume_udp")
int BPF_PROG(netstack_skb_consume_udp, struct sock *sk, struct sk_buff *skb, int len)
{
	struct sighting at = { .point = NETSTACK_UDP_SOCKET_READ, .ipv6 = is_ipv6(skb) };
	__u64 ns;

	/* Refused: its checksum was wrong, or the buffer could not be written. */
	if (len < 0 || !current_is_wanted())
		return 0;
	at.ifindex = skb->skb_iif;
	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (!socket_is_wanted(&at, sk, true))
		return 0;
	note_reader(sk);
	ns = age(at.point, skb);
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

#endif
