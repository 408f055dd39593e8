/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The end of a connection's wait to be accepted; called by the request tracker's programs, which hear
 * of accept's return anyway.
 */
#ifndef UNDERSPAN_TCP_ACCEPT_BPF_H
#define UNDERSPAN_TCP_ACCEPT_BPF_H

#include "../bpf/tcp.h"
#include "tcp_accept.h"

/*
 * It is older than we are, or the kernel told nobody that it was made (tcp_loss/README.md). Until
 * something is read from it, the kernel knows when that was; of the handshake and the queue it does not.
 */
static __always_inline void tcp_accepted_untold(__u64 sk, struct task_struct *task, __u64 now)
{
	__u16 family = READ(struct sock___tcp, sk, __sk_common.skc_family);
	struct tcp_accept_event *e;
	__u64 established;

	if (family != AF_INET && family != AF_INET6)
		return;
	if (READ(struct sock___tcp, sk, sk_protocol) != IPPROTO_TCP)
		return;
	established = READ(struct tcp_sock___tcp, sk, rcvq_space.time) * 1000;
	if (!established || established > now)
		return;
	e = reserve(TRACKER_TCP_ACCEPT, sizeof(*e));
	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	fill_thread(&e->h, EVENT_TCP_ACCEPT, task->tgid, task->pid, established);
	e->duration = now - established;
	fill_ends_at(&e->ends, sk);
	submit(e);
}

static __always_inline void tcp_accepted(__u64 sk, struct task_struct *task, __u64 now)
{
	struct tcp_waiting *w = bpf_map_lookup_elem(&tcp_waiting, &sk);
	struct tcp_accept_event *e;

	if (!w) {
		tcp_accepted_untold(sk, task, now);
		return;
	}
	e = reserve(TRACKER_TCP_ACCEPT, sizeof(*e));
	if (e) {
		fill_thread(&e->h, EVENT_TCP_ACCEPT, task->tgid, task->pid, w->established);
		e->duration = now - w->established;
		e->handshake = w->handshake;
		e->queue_length = w->queue_length;
		e->queue_limit = w->queue_limit;
		e->synacks = w->synacks;
		e->_pad = 0;
		e->ends = w->ends;
		submit(e);
	}
	bpf_map_delete_elem(&tcp_waiting, &sk);
}

#endif
