/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Windows that are used up, the own and the peer's.
 *
 * A window seldom closes at once: the last of it goes in portions, each smaller than the one before,
 * and each used up as soon as it is told. Once used up it counts as closed until most of it is back.
 */
#ifndef UNDERSPAN_TCP_LOSS_WINDOW_BPF_H
#define UNDERSPAN_TCP_LOSS_WINDOW_BPF_H

#include "event.bpf.h"

/* One that stays closed is told in pieces of this. */
#define WINDOW_TOLD_NS 1000000000ULL

static __always_inline void tell_window(struct sock *sk, struct tcp_flow *f, enum tcp_loss_kind kind,
					__u64 start, __u64 end)
{
	struct tcp_loss_event *e;

	if (end < start + config.wait_threshold_ns)
		return;
	e = new_event(sk, f, start, end - start, kind);
	if (e)
		submit(e);
}

/* What is left of the window that we told the peer. */
static __always_inline __s32 window_left(struct tcp_sock___tcp *tp)
{
	return seq_diff(tp->rcv_wup + tp->rcv_wnd, tp->rcv_nxt);
}

/* Less than a segment is nothing: the peer waits for more. */
static __always_inline bool is_filled(struct tcp_sock___tcp *tp, __s32 left)
{
	return left < (__s32)tp->inet_conn.icsk_ack.rcv_mss;
}

/* The current thread has read from it; the peer is told of the room after this. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(tcp_loss_read, struct sock *sk)
{
	struct tcp_flow *f = tcp_flow(sk);
	struct tcp_sock___tcp *tp;
	__u64 id;

	if (!f)
		return 0;
	if (f->window_filled) {
		tp = tcp_sock(sk);
		if (tp && is_filled(tp, window_left(tp)))
			f->window_closed = 1;
		f->last_read = bpf_ktime_get_ns();
	}
	id = bpf_get_current_pid_tgid();
	f->tgid = id >> 32;
	f->tid = id;
	return 0;
}

/* `left` of our window when a segment arrives, which ends at `end_seq`. */
static __always_inline void own_window(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
				       __u32 end_seq)
{
	__s32 left = window_left(tp), length = seq_diff(end_seq, tp->rcv_nxt);

	if (left > (__s32)f->window_most)
		f->window_most = left;
	if (f->window_filled && left >= (__s32)(f->window_most / 2)) {
		/* Open again, since the read that made room. */
		if (f->window_closed)
			tell_window(sk, f, TCP_ZERO_WINDOW_LOCAL, f->window_filled, f->last_read);
		f->window_filled = 0;
	} else if (f->window_closed && f->last_read - f->window_filled > WINDOW_TOLD_NS) {
		tell_window(sk, f, TCP_ZERO_WINDOW_LOCAL, f->window_filled, f->last_read);
		f->window_filled = f->last_read;
	}
	if (!f->window_filled) {
		f->window_closed = 0;
		if (length > 0 && is_filled(tp, left - length))
			f->window_filled = bpf_ktime_get_ns();
	}
}

/* What the kernel says a connection is held up by: enum tcp_chrono. */
#define CHRONO_RWND_LIMITED 2

/* For how many ticks the kernel says that was so, up to the last time, and with the present one. */
static __always_inline __u32 limited_before(struct tcp_sock___tcp *tp)
{
	return tp->chrono_stat[CHRONO_RWND_LIMITED - 1];
}

static __always_inline __u32 limited_ticks(struct tcp_sock___tcp *tp)
{
	__u32 ticks = limited_before(tp);

	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) == CHRONO_RWND_LIMITED)
		ticks += (__u32)bpf_jiffies64() - tp->chrono_start;
	return ticks;
}

/* Since when there has been more to send than the window has room for; 0: there is not. The kernel
 * notes it in ticks. The last segment went just then, unless it was sent again meanwhile. */
static __always_inline __u64 limited_since(struct tcp_sock___tcp *tp, __u64 now)
{
	__u64 tick = config.tick_ns, since;

	if (BPF_CORE_READ_BITFIELD(tp, chrono_type) != CHRONO_RWND_LIMITED)
		return 0;
	since = now - (__u64)((__u32)bpf_jiffies64() - tp->chrono_start) * tick;
	if (tp->tcp_wstamp_ns > since - tick && tp->tcp_wstamp_ns < since + tick)
		return tp->tcp_wstamp_ns;
	return since;
}

/*
 * The peer's window was closed until now. Nobody has to have waited for it all that time: there was nothing to send
 * yet, or other limits came first. The kernel counts in ticks when it was the window.
 */
static __always_inline void tell_peer_window(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
					     __u64 now)
{
	__u64 limited = (__u64)(limited_ticks(tp) - f->peer_limited) * config.tick_ns;
	__u64 start = f->peer_closed;

	if (now - start > limited + config.tick_ns)
		start = now - limited;
	tell_window(sk, f, TCP_ZERO_WINDOW_PEER, start, now);
}

/* An acknowledgement has arrived that says how much room there is. */
static __always_inline void peer_window(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
					__u32 ack, __u32 window)
{
	__u32 mss = tp->mss_cache;
	__u64 now;
	bool open;

	if (seq_diff(ack, tp->snd_una) < 0)
		return; /* an old one */
	open = window >= mss && window >= tp->max_window / 2;
	if (open && !f->peer_closed)
		return; /* nearly always */
	now = bpf_ktime_get_ns();
	if (!f->peer_closed) {
		f->peer_limited = limited_before(tp);
		f->peer_closed = limited_since(tp, now);
		if (!f->peer_closed && window < mss)
			f->peer_closed = now;
		return;
	}
	if (!open && (window < mss || now - f->peer_closed < WINDOW_TOLD_NS))
		return;
	tell_peer_window(sk, tp, f, now);
	f->peer_closed = open ? 0 : now;
	f->peer_limited = limited_ticks(tp);
}

#endif
