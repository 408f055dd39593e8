/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Segments that are sent again: stalls, from what was first not acknowledged until it is made good.
 *
 * The kernel does not tell everything: of what interrupts a thread that it keeps to itself nobody
 * hears. So what was sent again, and how often the timer was doubled, is taken from its own counters,
 * and a beginning or an end that was not told is noticed at the next segment, with the times that the
 * kernel keeps.
 */
#ifndef UNDERSPAN_TCP_LOSS_RETRANSMIT_BPF_H
#define UNDERSPAN_TCP_LOSS_RETRANSMIT_BPF_H

#include "event.bpf.h"

/* How deep the tree of unacknowledged segments can be. */
#define TREE_DEPTH 32

/* The oldest unacknowledged segment: the leftmost of a tree. A segment begins with its node. */
static __always_inline __u64 oldest_unacknowledged(struct sock *sk)
{
	__u64 node = (__u64)((struct sock___tcp *)sk)->tcp_rtx_queue.rb_node, left;

	for (int i = 0; i < TREE_DEPTH && node; i++) {
		left = (__u64)READ(struct rb_node___tcp, node, rb_left);
		if (!left)
			break;
		node = left;
	}
	return node;
}

/*
 * When what is missing was sent. Of a segment that was sent again that has been overwritten; when the
 * flight that it belongs to began has not. Of the one that is sent `again` just now, some kernels note
 * only afterwards that it was.
 */
static __always_inline __u64 missing_since(struct sock *sk, struct tcp_sock___tcp *tp, __u64 again)
{
	__u64 oldest = oldest_unacknowledged(sk), notes;

	if (!oldest)
		return 0;
	notes = (__u64)&((struct sk_buff___tcp *)oldest)->cb;
	if (oldest == again || READ(struct tcp_skb_cb___tcp, notes, sacked) & TCPCB_EVER_RETRANS)
		return tp->first_tx_mstamp * 1000;
	return READ(struct sk_buff___tcp, oldest, skb_mstamp_ns);
}

static __always_inline void begin_stall(struct tcp_flow *f, enum tcp_loss_kind kind, __u64 start)
{
	__u64 now = bpf_ktime_get_ns();

	__builtin_memset(&f->stall, 0, sizeof(f->stall));
	f->stall.kind = kind;
	f->stall.start = start && start < now ? start : now;
	f->stall.retransmits = f->retransmits;
	f->stall.bytes = f->retransmitted;
}

static __always_inline void end_stall(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
				      __u64 end)
{
	__u32 retransmits = tp->total_retrans - f->stall.retransmits;
	struct tcp_stall *s = &f->stall;
	struct tcp_loss_event *e;

	/* The kernel may take fright: then nothing was sent again, or what had been sent was only late,
	 * or in another order, which is soon over. */
	if (retransmits && s->verdict != TCP_LATE && end >= s->start + config.wait_threshold_ns) {
		e = new_event(sk, f, s->start, end - s->start, s->kind);
		if (e) {
			e->bytes = tp->bytes_retrans - s->bytes;
			e->retransmits = retransmits;
			e->backoff = s->backoff;
			submit(e);
		}
	}
	s->kind = TCP_NO_LOSS;
	retransmits_are_known(f, tp);
}

/* Begins what the kernel calls recovery or loss, unless it has begun. */
static __always_inline void recovers(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
				     __u8 state)
{
	if (!f->stall.kind)
		begin_stall(f, state == TCP_CA_Loss ? TCP_RTO : TCP_FAST_RETRANSMIT,
			    missing_since(sk, tp, 0));
	else if (state == TCP_CA_Loss)
		f->stall.kind = TCP_RTO; /* what was sent again is lost, too */
	f->stall.recovering = 1;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(tcp_loss_recovery, struct sock *sk, __u8 state)
{
	struct tcp_flow *f = tcp_flow(sk);
	struct tcp_sock___tcp *tp;

	if (!f || sk->__sk_common.skc_state == TCP_SYN_SENT)
		return 0;
	if (state < TCP_CA_Recovery && !(f->stall.kind && f->stall.recovering))
		return 0;
	tp = tcp_sock(sk);
	if (!tp)
		return 0;
	if (state < TCP_CA_Recovery)
		end_stall(sk, tp, f, bpf_ktime_get_ns());
	else
		recovers(sk, tp, f, state);
	return 0;
}

/* What a segment that was sent then says of when, for the peer to give back. */
static __always_inline __u32 timestamp(struct tcp_sock___tcp *tp, __u64 sent)
{
	__u64 unit = 1000000;

	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		unit = 1000;
	return sent / unit + tp->tsoffset;
}

/* (sk, skb), and since Linux 6.17 an error: then it is also told of what could not be sent again. */
SEC("tp_btf/tcp_retransmit_skb")
int tcp_loss_retransmit(__u64 *ctx)
{
	struct sk_buff___tcp *skb = (struct sk_buff___tcp *)ctx[1];
	struct sock *sk = (struct sock *)ctx[0];
	struct tcp_sock___tcp *tp;
	struct tcp_flow *f;

	tp = tcp_sock(sk);
	f = tcp_flow(sk);
	if (!f || !tp)
		return 0;
	if (!bpf_core_field_exists(struct trace_event_raw_tcp_retransmit_skb, err) || !(int)ctx[2]) {
		if (!f->stall.kind) {
			/* A tail loss probe is a retransmission out of the blue. */
			if (sk->__sk_common.skc_state == TCP_SYN_SENT)
				begin_stall(f, TCP_SYN_RETRY, f->connecting);
			else
				begin_stall(f, TCP_TAIL_LOSS_PROBE, missing_since(sk, tp, (__u64)skb));
			f->stall.end_seq = tp->snd_nxt;
		}
		if (!f->stall.sent_at) {
			f->stall.sent_at = timestamp(tp, skb->skb_mstamp_ns);
			/* The kernel's notes begin with it. */
			f->stall.sent_seq = read_word((__u64)skb->cb);
		}
		if (f->stall.backoff < tp->inet_conn.icsk_backoff)
			f->stall.backoff = tp->inet_conn.icsk_backoff;
	}
	retransmits_are_known(f, tp);
	return 0;
}

/* Makes good what was not told. Whether there is a stall. */
static __always_inline bool catch_up(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f)
{
	__u8 state = BPF_CORE_READ_BITFIELD(tp, inet_conn.icsk_ca_state);
	__u8 backoff = tp->inet_conn.icsk_backoff;

	if (state >= TCP_CA_Recovery) {
		recovers(sk, tp, f, state);
	} else if (!f->stall.kind) {
		if (!tp->tlp_high_seq) {
			retransmits_are_known(f, tp); /* it is over */
			return false;
		}
		begin_stall(f, TCP_TAIL_LOSS_PROBE, missing_since(sk, tp, 0));
		f->stall.end_seq = tp->tlp_high_seq;
	}
	if (!f->stall.sent_at) {
		/* Any other than the original's. */
		f->stall.sent_at = timestamp(tp, f->stall.start) + 1;
		f->stall.sent_seq = tp->snd_una;
	}
	/* It was doubled once more after each that was sent. */
	if (backoff && f->stall.backoff < backoff - 1)
		f->stall.backoff = backoff - 1;
	return true;
}

/* A connection is made, or given up. SYNs that were sent again without a word have been counted. */
static __always_inline void count_syns(struct tcp_sock___tcp *tp, struct tcp_flow *f)
{
	__u32 retransmits;

	if (!f->stall.kind) {
		if (f->retransmits == tp->total_retrans)
			return;
		begin_stall(f, TCP_SYN_RETRY, f->first_syn);
		f->stall.end_seq = tp->snd_una;
	}
	retransmits = tp->total_retrans - f->stall.retransmits;
	/* The timer is doubled after each. */
	if (retransmits && f->stall.backoff < retransmits - 1)
		f->stall.backoff = retransmits - 1;
}

/* When it ended, if that was not told; else 0. */
static __always_inline __u64 ended_before(struct tcp_stall *s, struct tcp_sock___tcp *tp)
{
	if (s->recovering ? BPF_CORE_READ_BITFIELD(tp, inet_conn.icsk_ca_state) >= TCP_CA_Recovery :
			    seq_diff(tp->snd_una, s->end_seq) < 0)
		return 0;
	return tp->delivered_mstamp * 1000;
}

/* No operation twice, and a timestamp of ten bytes: how every kernel begins its options. */
#define TIMESTAMP_OPTION 0x0101080a

/*
 * Was it lost, or late? The peer gives back the timestamp of what made it acknowledge more: that of
 * the original, sent before the retransmission, if it arrived after all (RFC 3522). Acknowledgements
 * of what was sent before it say nothing, such as of retransmissions of the recovery before this one.
 */
static __always_inline void judge(struct tcp_stall *s, __u64 header, __u32 ack)
{
	__u32 echoed;

	if (s->verdict || !s->sent_at || seq_diff(ack, s->sent_seq) <= 0)
		return;
	s->verdict = TCP_LOST;
	if (bpf_ntohl((__u32)read_word(header + 20)) != TIMESTAMP_OPTION)
		return;
	echoed = bpf_ntohl((__u32)read_word(header + 28));
	if (seq_diff(echoed, s->sent_at) < 0)
		s->verdict = TCP_LATE;
}

/* The same afterwards, by what the kernel noted. It has taken its own offset from the timestamp. */
static __always_inline void judge_afterwards(struct tcp_stall *s, struct tcp_sock___tcp *tp)
{
	if (s->verdict || !s->sent_at || !BPF_CORE_READ_BITFIELD(tp, rx_opt.saw_tstamp))
		return;
	if (seq_diff(tp->rx_opt.rcv_tsecr + tp->tsoffset, s->sent_at) < 0)
		s->verdict = TCP_LATE;
}

/* A segment has arrived that acknowledges so much, in the midst of a stall, or after one. */
static __always_inline void stalled(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
				    __u64 header, __u32 ack)
{
	__u64 end;

	if (f->stall.kind) {
		end = ended_before(&f->stall, tp);
		if (end) {
			if (f->stall.kind != TCP_SYN_RETRY)
				judge_afterwards(&f->stall, tp);
			end_stall(sk, tp, f, end);
			return;
		}
	}
	if (!catch_up(sk, tp, f))
		return;
	judge(&f->stall, header, ack);
	if (!f->stall.recovering && seq_diff(ack, f->stall.end_seq) >= 0)
		end_stall(sk, tp, f, bpf_ktime_get_ns());
}

#endif
