/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Packets that the host throws away for want of memory or of room in a queue.
 */
#ifndef UNDERSPAN_TCP_LOSS_DROP_BPF_H
#define UNDERSPAN_TCP_LOSS_DROP_BPF_H

#include "event.bpf.h"

/* A drop is told at most this often; the others of the time are counted in it. */
#define DROPS_TOLD_EVERY_NS 100000000

enum skb_drop_reason {
	SKB_DROP_REASON_SOCKET_RCVBUFF,
	SKB_DROP_REASON_PROTO_MEM,
	SKB_DROP_REASON_SOCKET_BACKLOG,
	SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE,
	SKB_DROP_REASON_TCP_OFO_DROP,
};

#define DROP_IS(reason, name) IS_REASON(skb_drop_reason, reason, SKB_DROP_REASON_##name)

static __always_inline __u8 drop_reason(__u64 reason)
{
	if (DROP_IS(reason, SOCKET_RCVBUFF))
		return TCP_REASON_RECEIVE_BUFFER;
	if (DROP_IS(reason, PROTO_MEM))
		return TCP_REASON_MEMORY;
	if (DROP_IS(reason, SOCKET_BACKLOG))
		return TCP_REASON_BACKLOG;
	if (DROP_IS(reason, TCP_OFO_QUEUE_PRUNE) || DROP_IS(reason, TCP_OFO_DROP))
		return TCP_REASON_OUT_OF_ORDER_QUEUE;
	return TCP_REASON_NONE;
}

static __always_inline void tell_drops(struct sock *sk, struct tcp_flow *f)
{
	struct tcp_loss_event *e = new_event(sk, f, f->dropped, 0, TCP_DROP);

	if (e) {
		e->reason = f->drop_reason;
		e->retransmits = f->drops;
		e->bytes = f->drop_bytes;
		submit(e);
	}
	f->drops = 0;
	f->drop_bytes = 0;
}

/* Told when a burst is over: by the next segment, at the latest at the end. */
static __always_inline void burst_over(struct sock *sk, struct tcp_flow *f)
{
	if (f->drops && bpf_ktime_get_ns() - f->dropped >= DROPS_TOLD_EVERY_NS)
		tell_drops(sk, f);
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(tcp_loss_drop, struct sk_buff___tcp *skb, void *where, int kernels_reason, struct sock *sk)
{
	__u8 reason = drop_reason(kernels_reason);
	struct tcp_flow *f;

	if (reason == TCP_REASON_NONE || !sk)
		return 0;
	f = tcp_flow(sk);
	if (!f)
		return 0;
	burst_over(sk, f);
	if (f->drops && f->drop_reason != reason)
		tell_drops(sk, f);
	if (!f->drops) {
		f->dropped = bpf_ktime_get_ns();
		f->drop_reason = reason;
	}
	f->drops++;
	f->drop_bytes += skb->len;
	return 0;
}

#endif
