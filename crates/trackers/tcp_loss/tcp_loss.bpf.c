// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Time that connections lose: from the first unacknowledged byte of a loss until it is made good, and
 * while a window is closed. The kernel says when a retransmission begins and when its recovery ends;
 * for tail loss probes and windows, arriving segments do.
 */
#include "../tcp_connect/tcp_connect.bpf.h"
#include "drop.bpf.h"
#include "reset.bpf.h"
#include "retransmit.bpf.h"
#include "window.bpf.h"

/* A segment has arrived, and nothing is done about it yet. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(tcp_loss_segment, struct sock *sk, struct sk_buff___tcp *skb)
{
	struct tcp_flow *f = tcp_flow(sk);
	struct tcp_sock___tcp *tp;
	__u64 header, word;
	__u32 ack, window;

	if (!f)
		return 0;
	tp = tcp_sock(sk);
	if (!tp)
		return 0;
	/* The header's acknowledgement, flags and window; the end of its data from the kernel's notes. */
	header = (__u64)skb->data;
	word = read_word(header + 8);
	ack = bpf_ntohl((__u32)word);
	window = bpf_ntohs(word >> 48) << BPF_CORE_READ_BITFIELD(tp, rx_opt.snd_wscale);
	/* Segments are told of on connections that are made. */
	if (f->connecting) {
		count_syns(tp, f);
		tell_untold_attempt(sk, tp, f);
	}
	if (f->stall.kind || f->retransmits != tp->total_retrans)
		stalled(sk, tp, f, header, ack);
	burst_over(sk, f);
	peer_window(sk, tp, f, ack, window);
	own_window(sk, tp, f, read_word((__u64)skb->cb) >> 32);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_loss_state, struct sock *sk, int old, int new)
{
	struct tcp_sock___tcp *tp;
	struct tcp_flow *f;
	__u64 now, end;

	/* The peer's half-close leaves us free to send; ours, to be answered. */
	if (new == TCP_CLOSE_WAIT || new == TCP_CLOSING || new == TCP_SYN_SENT || new == TCP_LISTEN ||
	    old == TCP_LISTEN)
		return 0;
	if (old == TCP_ESTABLISHED && new != TCP_CLOSE)
		return 0;
	f = tcp_flow(sk);
	if (!f)
		return 0;
	tp = tcp_sock(sk);
	if (!tp)
		return 0;
	now = bpf_ktime_get_ns();
	f->closed = new == TCP_CLOSE;
	if (old == TCP_SYN_SENT)
		count_syns(tp, f);
	if (f->stall.kind) {
		end = old == TCP_SYN_SENT ? 0 : ended_before(&f->stall, tp);
		/* That all is acknowledged: a FIN's acknowledgement comes by another way. A server answers
		 * each SYN with the first one's timestamp, also if its answer was lost. */
		if (old != TCP_SYN_SENT && (end || tp->snd_una == tp->snd_nxt))
			judge_afterwards(&f->stall, tp);
		end_stall(sk, tp, f, end ? end : now);
	}
	if (new == TCP_ESTABLISHED)
		retransmits_are_known(f, tp);
	if (f->window_filled && f->window_closed)
		tell_window(sk, f, TCP_ZERO_WINDOW_LOCAL, f->window_filled, f->last_read);
	f->window_filled = 0;
	if (f->drops)
		tell_drops(sk, f);
	if (f->peer_closed)
		tell_peer_window(sk, tp, f, now);
	f->peer_closed = 0;
	return 0;
}

/*
 * The kernel may keep the end of a connection to itself: that an attempt failed, that one was reset, or
 * given up. Its row is missing then, and that is counted.
 */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(tcp_loss_gone, struct sock *sk)
{
	struct tcp_flow *f = tcp_flow(sk);

	if (!f || f->listener == (__u64)sk)
		return 0;
	if (f->connecting)
		count_lost(TRACKER_TCP_CONNECT, LOST_UNTOLD);
	else if (!f->closed)
		count_lost(TRACKER_TCP_LOSS, LOST_UNTOLD);
	return 0;
}
