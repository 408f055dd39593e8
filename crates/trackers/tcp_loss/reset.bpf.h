/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Connections that are cut off, by either side.
 */
#ifndef UNDERSPAN_TCP_LOSS_RESET_BPF_H
#define UNDERSPAN_TCP_LOSS_RESET_BPF_H

#include "../bpf/interrupt.h"
#include "event.bpf.h"

#define RESET_IS(reason, name) IS_REASON(sk_rst_reason, reason, SK_RST_REASON_##name)

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(tcp_loss_reset_received, struct sock *sk)
{
	struct tcp_flow *f = tcp_flow(sk);
	struct tcp_loss_event *e;

	/* The answer to a SYN is told by tcp_connect: refused. */
	if (!f || sk->__sk_common.skc_state == TCP_SYN_SENT)
		return 0;
	e = new_event(sk, f, bpf_ktime_get_ns(), 0, TCP_RESET_RECEIVED);
	if (e)
		submit(e);
	return 0;
}

enum sk_rst_reason {
	SK_RST_REASON_TCP_ABORT_ON_DATA,
	SK_RST_REASON_TCP_ABORT_ON_CLOSE,
	SK_RST_REASON_TCP_ABORT_ON_LINGER,
	SK_RST_REASON_TCP_ABORT_ON_MEMORY,
	SK_RST_REASON_TCP_STATE,
	SK_RST_REASON_TCP_KEEPALIVE_TIMEOUT,
	SK_RST_REASON_TCP_DISCONNECT_WITH_DATA,
};

static __always_inline __u8 reset_reason(__u64 reason)
{
	if (RESET_IS(reason, TCP_ABORT_ON_CLOSE))
		return TCP_REASON_ABORT_ON_CLOSE;
	if (RESET_IS(reason, TCP_ABORT_ON_LINGER) || RESET_IS(reason, TCP_STATE) ||
	    RESET_IS(reason, TCP_DISCONNECT_WITH_DATA))
		return TCP_REASON_ABORTED;
	if (RESET_IS(reason, TCP_ABORT_ON_DATA))
		return TCP_REASON_ABORT_ON_DATA;
	if (RESET_IS(reason, TCP_ABORT_ON_MEMORY))
		return TCP_REASON_ABORT_ON_MEMORY;
	if (RESET_IS(reason, TCP_KEEPALIVE_TIMEOUT))
		return TCP_REASON_KEEPALIVE_TIMEOUT;
	return TCP_REASON_OTHER;
}

/* (sk, skb), and since Linux 6.10 why. The socket is NULL if nobody listens on the port. */
SEC("tp_btf/tcp_send_reset")
int tcp_loss_reset_sent(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_loss_event *e;
	__u64 reason = 0;
	struct tcp_flow *f;

	if (!sk)
		return 0;
	f = tcp_flow(sk);
	if (!f)
		return 0;
	/* A listener that refuses has no connection to tell of. */
	if (sk->__sk_common.skc_state == TCP_LISTEN)
		return 0;
	if (bpf_core_type_exists(enum sk_rst_reason))
		reason = ctx[2];
	/* Who closed it, rather than who read it. */
	if (!in_interrupt(task) && is_watched(task->tgid)) {
		f->tgid = task->tgid;
		f->tid = task->pid;
	}
	e = new_event(sk, f, bpf_ktime_get_ns(), 0, TCP_RESET_SENT);
	if (e) {
		e->reason = reset_reason(reason);
		submit(e);
	}
	return 0;
}

#endif
