// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How old received packets are at seven points of the receive stack, where the kernel lets programs
 * have tracepoints and netfilter hooks only. functions.bpf.h is for kernels that let functions be
 * traced. What both need is here too.
 */
#include "age.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline bool is_ipv6(const struct sk_buff *skb)
{
	return skb->protocol == ETH_P_IPV6_BE;
}

/* IPPROTO_*, or 0 for what is neither IPv4 nor IPv6. Behind extension headers nobody looks. */
static __always_inline __u8 transport(const struct sk_buff *skb)
{
	unsigned char *header = skb->head + skb->network_header;

	if (skb->protocol == ETH_P_IP_BE)
		return READ(struct iphdr, header, protocol);
	if (skb->protocol == ETH_P_IPV6_BE)
		return READ(struct ipv6hdr, header, nexthdr);
	return 0;
}

/* Times `skb` at a point before its socket is known. */
static __always_inline void at_start(enum netstack_point point, struct sk_buff *skb, __u32 netns,
				     bool ipv6)
{
	struct sighting at = { .point = point, .ipv6 = ipv6, .ifindex = skb->skb_iif, .netns = netns };
	__u64 ns;

	if (point == NETSTACK_IP_START) {
		bool wanted = !needs_socket() && place_is_wanted(&at);

		/* Also looked at when unwanted: what is kept of packets is kept in step. */
		ns = age_at_start(point, skb, wanted);
		if (wanted && ns != UNKNOWN)
			record(&at, ns);
		return;
	}
	if (needs_socket() || !place_is_wanted(&at))
		return;
	ns = age(point, skb);
	if (ns != UNKNOWN)
		record(&at, ns);
}

/* A packet comes in from this host, or from a device that knows no NAPI. */
SEC("tp_btf/netif_rx")
int BPF_PROG(netstack_arrives, struct sk_buff *skb)
{
	arrives(skb);
	return 0;
}

/* The packet that a CPU hands to the transport. */
struct arriving {
	__u64 stamp;
	__u32 netns;
	__u32 ifindex;
	bool udp;
	bool ipv6;
	/* The segment that a TCP socket is being handed. */
	bool told;
	bool segment_ipv6;
	__u32 segment_ifindex;
	__u64 segment_sk;
	__u64 segment_stamp;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arriving);
} arriving SEC(".maps");

static __always_inline struct arriving *arriving_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&arriving, &zero);
}

SEC("netfilter")
int netstack_pre_routing(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	const struct nf_hook_state *state = ctx->state;

	at_start(NETSTACK_IP_START, skb, state->net->ns.inum, state->pf == NFPROTO_IPV6);
	return NF_ACCEPT;
}

SEC("netfilter")
int netstack_local_in(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	const struct nf_hook_state *state = ctx->state;
	__u32 netns = state->net->ns.inum;
	bool ipv6 = state->pf == NFPROTO_IPV6;
	struct arriving *here;

	switch (transport(skb)) {
	case IPPROTO_TCP:
		forget_another(skb);
		at_start(NETSTACK_TCP_START, skb, netns, ipv6);
		break;
	case IPPROTO_UDP:
		at_start(NETSTACK_UDP_START, skb, netns, ipv6);
		here = arriving_here();
		if (here) {
			here->udp = !is_to_leave(skb);
			here->stamp = skb->tstamp;
			here->netns = netns;
			here->ifindex = skb->skb_iif;
			here->ipv6 = ipv6;
		}
		break;
	}
	return NF_ACCEPT;
}

/* Whether a segment has ever come before an earlier one: without, readers need not ask their socket. */
static bool has_gaps;

/* A segment for an established connection, before anything is done with it. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(netstack_segment, struct sock *sk, struct sk_buff *skb)
{
	__u32 seq = READ(struct tcp_skb_cb, &skb->cb, seq);
	__u32 end_seq = READ(struct tcp_skb_cb, &skb->cb, end_seq);
	struct socket_note *note;
	struct arriving *here;

	if (seq == end_seq)
		return 0;
	has_final_stamp(skb);
	here = arriving_here();
	if (here) {
		here->segment_sk = (__u64)sk;
		here->segment_stamp = skb->tstamp;
		here->segment_ifindex = skb->skb_iif;
		here->segment_ipv6 = is_ipv6(skb);
		here->told = false;
	}
	if ((__s32)(seq - READ(struct tcp_sock, sk, rcv_nxt)) <= 0)
		return 0;
	/* Something before it is missing: it will wait for that. */
	has_gaps = true;
	note = bpf_sk_storage_get(&notes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!note)
		return 0;
	if (note->gap_start == note->gap_end) {
		note->gap_start = seq;
		note->gap_end = end_seq;
	}
	if ((__s32)(seq - note->gap_start) < 0)
		note->gap_start = seq;
	if ((__s32)(end_seq - note->gap_end) > 0)
		note->gap_end = end_seq;
	return 0;
}

static __always_inline bool reader_is_wanted(struct sock *sk)
{
	struct socket_note *note;

	if (!netstack_config.filter_pids)
		return true;
	note = bpf_sk_storage_get(&notes, sk, 0, 0);
	return note && note->wanted;
}

/* Whether the byte waited for one before it. What is read to the end is forgotten. */
static __always_inline bool waited_for_gap(struct socket_note *note, __u32 seq)
{
	if (!note || note->gap_start == note->gap_end)
		return false;
	if ((__s32)(seq - note->gap_end) >= 0) {
		note->gap_start = note->gap_end;
		return false;
	}
	return (__s32)(seq - note->gap_start) >= 0;
}

/* A socket that a wanted process reads is its, also for what comes in. */
static __always_inline struct socket_note *note_reader(struct sock *sk)
{
	struct socket_note *note;

	if (!netstack_config.filter_pids && !has_gaps)
		return NULL;
	note = bpf_sk_storage_get(&notes, sk, 0,
				  netstack_config.filter_pids ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (note && netstack_config.filter_pids)
		note->wanted = 1;
	return note;
}

/* Notes the datagram that will be read next, unless it is known or there is none. */
static __always_inline void note_first(struct socket_note *note, const struct sock *sk)
{
	struct sk_buff *first = 0;

	if (note->first_stamp)
		return;
	/* Readers take all that is there to a queue of their own. */
	if (READ(struct udp_sock, sk, reader_queue.qlen))
		first = READ(struct udp_sock, sk, reader_queue.next);
	else if (READ(struct sock, sk, sk_receive_queue.qlen))
		first = READ(struct sock, sk, sk_receive_queue.next);
	if (!first)
		return;
	note->first_ifindex = READ(struct sk_buff, first, skb_iif);
	note->first_ipv6 = READ(struct sk_buff, first, protocol) == ETH_P_IPV6_BE;
	note->first_stamp = READ(struct sk_buff, first, tstamp);
}

/* Something was put into a socket's receive queue. */
SEC("tp_btf/sk_data_ready")
int BPF_PROG(netstack_enqueued, struct sock *sk)
{
	struct sighting at = {};
	struct arriving *here;
	__u16 protocol = sk->sk_protocol;
	__u64 stamp, ns;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	/* A listener is told of connections. */
	if (!sk->sk_receive_queue.qlen && protocol == IPPROTO_TCP)
		return 0;
	here = arriving_here();
	if (!here)
		return 0;
	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (protocol == IPPROTO_TCP) {
		at.point = NETSTACK_TCP_SOCKET_ENQUEUED;
		at.ifindex = here->segment_ifindex;
		at.ipv6 = here->segment_ipv6;
		stamp = here->segment_stamp;
	} else {
		at.point = NETSTACK_UDP_SOCKET_ENQUEUED;
		at.ifindex = here->ifindex;
		at.ipv6 = here->ipv6;
		stamp = here->stamp;
	}
	if (protocol == IPPROTO_UDP) {
		struct socket_note *note =
			bpf_sk_storage_get(&notes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

		if (note)
			note_first(note, sk);
	}
	if (!socket_is_wanted(&at, sk, false) || !reader_is_wanted(sk))
		return 0;
	if (protocol == IPPROTO_TCP && here->segment_sk != (__u64)sk &&
	    sk->__sk_common.skc_state != TCP_ESTABLISHED) {
		/* Closed on one side: no tracepoint tells of the segment, but it is the last. */
		struct sk_buff *last = sk->sk_receive_queue.prev;

		has_final_stamp(last);
		stamp = last->tstamp;
		at.ifindex = last->skb_iif;
		at.ipv6 = is_ipv6(last);
	} else if (protocol == IPPROTO_TCP ? here->segment_sk != (__u64)sk || here->told :
				      !here->udp || here->netns != at.netns) {
		count_lost(at.point, NETSTACK_LOST_UNMATCHED);
		return 0;
	}
	if (protocol == IPPROTO_TCP)
		here->told = true;
	ns = age_of_stamp(at.point, stamp, bpf_ktime_get_ns());
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

/* Bytes of a segment are copied to whoever reads. */
SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(netstack_read, struct sk_buff *skb, int len)
{
	struct sighting at = { .ifindex = skb->skb_iif, .ipv6 = is_ipv6(skb) };
	struct sock *sk;
	__u64 ns;

	/* A datagram has no socket any more, and seldom comes by here. */
	sk = skb->sk;
	if (!sk || sk->sk_protocol != IPPROTO_TCP || !current_is_wanted())
		return 0;
	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (!socket_is_wanted(&at, sk, false))
		return 0;
	at.point = waited_for_gap(note_reader(sk), READ(struct tcp_skb_cb, &skb->cb, seq)) ?
			   NETSTACK_TCP_SOCKET_READ_AFTER_GAP :
			   NETSTACK_TCP_SOCKET_READ;
	ns = age(at.point, skb);
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

/*
 * A datagram was read. No tracepoint shows it, but they are read in order: which one is first in the
 * queue was noted when the one before was read, or when it came into an empty queue.
 */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(netstack_datagram_read, struct sock *sk, int ret, int flags)
{
	struct sighting at = { .point = NETSTACK_UDP_SOCKET_READ };
	struct socket_note *note;
	__u64 stamp, ns;

	if (sk->sk_protocol != IPPROTO_UDP || ret < 0 || (flags & MSG_PEEK))
		return 0;
	note = bpf_sk_storage_get(&notes, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!note) {
		count_lost(at.point, NETSTACK_LOST_MAP_FULL);
		return 0;
	}
	stamp = note->first_stamp;
	at.ifindex = note->first_ifindex;
	at.ipv6 = note->first_ipv6;
	note->first_stamp = 0;
	note_first(note, sk);

	at.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (!current_is_wanted() || !socket_is_wanted(&at, sk, true))
		return 0;
	note->wanted = netstack_config.filter_pids;
	if (!stamp) {
		count_lost(at.point, NETSTACK_LOST_UNMATCHED);
		return 0;
	}
	ns = age_of_stamp(at.point, stamp, bpf_ktime_get_ns());
	if (ns != UNKNOWN)
		record(&at, ns);
	return 0;
}

#include "functions.bpf.h"
