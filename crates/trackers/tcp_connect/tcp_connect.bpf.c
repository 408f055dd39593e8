// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Connections that watched processes open: from the first SYN to the answer, or to giving up.
 */
#include "../bpf/tcp.h"
#include "tcp_connect.h"

static __always_inline void begin(struct sock *sk)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct tcp_flow *f;

	if (!is_watched(id >> 32))
		return;
	f = tcp_new_flow(sk);
	if (!f) {
		count_lost(TRACKER_TCP_CONNECT, LOST_MAP_FULL);
		return;
	}
	/* The socket may have been connected before. */
	__builtin_memset(f, 0, sizeof(*f));
	f->tgid = id >> 32;
	f->tid = id;
	f->connecting = bpf_ktime_get_ns();
}

static __always_inline void end(struct sock *sk, bool connected)
{
	struct tcp_sock___tcp *tp = tcp_sock(sk);
	struct tcp_flow *f = tcp_flow(sk);
	struct tcp_connect_event *e;

	if (!f || !f->connecting || !tp)
		return;
	if (is_watched(f->tgid)) {
		e = reserve(TRACKER_TCP_CONNECT, sizeof(*e));
		if (e) {
			__builtin_memset(e, 0, sizeof(*e));
			fill_thread(&e->h, EVENT_TCP_CONNECT, f->tgid, f->tid, f->connecting);
			e->duration = bpf_ktime_get_ns() - f->connecting;
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

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_connect_state, struct sock *sk, int old, int new)
{
	if (new == TCP_SYN_SENT)
		begin(sk);
	else if (old == TCP_SYN_SENT && (new == TCP_ESTABLISHED || new == TCP_CLOSE))
		end(sk, new == TCP_ESTABLISHED);
	/* Both ends connected to one another at the same time. */
	else if (old == TCP_SYN_RECV && (new == TCP_ESTABLISHED || new == TCP_CLOSE))
		end(sk, new == TCP_ESTABLISHED);
	return 0;
}
