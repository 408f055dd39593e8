/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The end of an attempt to connect; also called by tcp_loss's programs, which hear of each segment.
 */
#ifndef UNDERSPAN_TCP_CONNECT_BPF_H
#define UNDERSPAN_TCP_CONNECT_BPF_H

#include "../bpf/tcp.h"
#include "tcp_connect.h"

static __always_inline void tell_attempt(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
					 __u64 end, bool connected)
{
	struct tcp_connect_event *e;

	if (is_watched(f->tgid)) {
		e = reserve(TRACKER_TCP_CONNECT, sizeof(*e));
		if (e) {
			__builtin_memset(e, 0, sizeof(*e));
			fill_thread(&e->h, EVENT_TCP_CONNECT, f->tgid, f->tid, f->connecting);
			e->duration = end - f->connecting;
			e->error = ((struct sock___tcp *)sk)->sk_err;
			e->retransmits = tp->total_retrans;
			e->connected = connected;
			e->sent = tp->segs_out != 0;
			fill_ends(&e->ends, sk);
			submit(e);
		}
	}
	f->connecting = 0;
}

/*
 * It is connected, and the kernel told nobody (tcp_loss/README.md). When that was it has noted, until
 * something is read.
 */
static __always_inline void tell_untold_attempt(struct sock *sk, struct tcp_sock___tcp *tp,
						struct tcp_flow *f)
{
	__u64 now = bpf_ktime_get_ns(), end = tp->rcvq_space.time * 1000;

	tell_attempt(sk, tp, f, end > f->connecting && end < now ? end : now, true);
}

#endif
