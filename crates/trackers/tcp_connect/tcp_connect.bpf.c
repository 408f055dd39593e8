// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Connections that watched processes open: from the first SYN to the answer, or to giving up.
 */
#include "tcp_connect.bpf.h"

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
	/* The socket may have been connected before; it may have failed, and nobody was told. */
	if (f->connecting)
		count_lost(TRACKER_TCP_CONNECT, LOST_UNTOLD);
	__builtin_memset(f, 0, sizeof(*f));
	f->tgid = id >> 32;
	f->tid = id;
	f->connecting = bpf_ktime_get_ns();
	f->first_syn = f->connecting;
}

static __always_inline void end(struct sock *sk, bool connected)
{
	struct tcp_sock___tcp *tp = tcp_sock(sk);
	struct tcp_flow *f = tcp_flow(sk);

	if (f && f->connecting && tp)
		tell_attempt(sk, tp, f, bpf_ktime_get_ns(), connected);
}

/* A connection ends, and nobody was told that it had been made. */
static __always_inline void end_untold(struct sock *sk)
{
	struct tcp_sock___tcp *tp = tcp_sock(sk);
	struct tcp_flow *f = tcp_flow(sk);

	if (f && f->connecting && tp)
		tell_untold_attempt(sk, tp, f);
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
	else if (old == TCP_ESTABLISHED)
		end_untold(sk);
	return 0;
}
