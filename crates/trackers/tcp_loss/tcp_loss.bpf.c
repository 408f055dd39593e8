// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Time that connections lose: from the first unacknowledged byte of a loss until it is made good, and
 * while a window is closed. The kernel says when a retransmission begins and when its recovery ends;
 * for tail loss probes and windows, arriving segments do.
 */
#include "../bpf/interrupt.h"
#include "../bpf/tcp.h"
#include "tcp_loss.h"

/* How deep the tree of unacknowledged segments can be. */
#define TREE_DEPTH 32

/* A drop is told at most this often; the others of the time are counted in it. */
#define DROPS_TOLD_EVERY_NS 100000000

static __always_inline struct tcp_loss_event *new_event(struct sock *sk, struct tcp_flow *f,
							__u64 start, __u64 duration,
							enum tcp_loss_kind kind)
{
	struct tcp_loss_event *e;

	if (!is_watched(f->tgid))
		return NULL;
	e = reserve(TRACKER_TCP_LOSS, sizeof(*e));
	if (!e)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	fill_thread(&e->h, EVENT_TCP_LOSS, f->tgid, f->tid, start);
	e->duration = duration;
	e->kind = kind;
	fill_ends(&e->ends, sk);
	return e;
}

/* ---- retransmission ---- */

/*
 * The kernel does not tell everything: of what interrupts a thread that it keeps to itself nobody
 * hears. So what was sent again, and how often the timer was doubled, is taken from its own counters,
 * and a beginning or an end that was not told is noticed at the next segment, with the times that the
 * kernel keeps.
 */

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
 * flight that it belongs to began has not.
 */
static __always_inline __u64 missing_since(struct sock *sk, struct tcp_sock___tcp *tp)
{
	__u64 oldest = oldest_unacknowledged(sk), notes;

	if (!oldest)
		return 0;
	notes = (__u64)&((struct sk_buff___tcp *)oldest)->cb;
	if (READ(struct tcp_skb_cb___tcp, notes, sacked) & TCPCB_EVER_RETRANS)
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
			    missing_since(sk, tp));
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
				begin_stall(f, TCP_TAIL_LOSS_PROBE, missing_since(sk, tp));
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
		begin_stall(f, TCP_TAIL_LOSS_PROBE, missing_since(sk, tp));
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

/* ---- windows ---- */

/*
 * A window seldom closes at once: the last of it goes in portions, each smaller than the one before,
 * and each used up as soon as it is told. Once used up it counts as closed until most of it is back.
 */

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

/* An acknowledgement has arrived that says how much room there is. */
static __always_inline void peer_window(struct sock *sk, struct tcp_sock___tcp *tp, struct tcp_flow *f,
					__u32 ack, __u32 window)
{
	__u32 mss = tp->mss_cache;
	bool more, open;
	__u64 now;

	if (seq_diff(ack, tp->snd_una) < 0)
		return; /* an old one */
	open = window >= mss && window >= tp->max_window / 2;
	if (open && !f->peer_closed)
		return; /* nearly always */
	now = bpf_ktime_get_ns();
	more = tp->write_seq != tp->snd_nxt;
	if (!f->peer_closed) {
		f->peer_closed = limited_since(tp, now);
		if (!f->peer_closed && window < mss)
			f->peer_closed = now;
		return;
	}
	if (!open && (window < mss || now - f->peer_closed < WINDOW_TOLD_NS))
		return;
	/* Nothing was held up unless there is something to send. */
	if (more)
		tell_window(sk, f, TCP_ZERO_WINDOW_PEER, f->peer_closed, now);
	f->peer_closed = open ? 0 : now;
}

/* ---- drops ---- */

enum skb_drop_reason {
	SKB_DROP_REASON_SOCKET_RCVBUFF,
	SKB_DROP_REASON_PROTO_MEM,
	SKB_DROP_REASON_SOCKET_BACKLOG,
	SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE,
	SKB_DROP_REASON_TCP_OFO_DROP,
};

/* The kernel's numbers change, and its names come and go. */
#define IS_REASON(type, reason, name)                   \
	(bpf_core_enum_value_exists(enum type, name) && \
	 (reason) == bpf_core_enum_value(enum type, name))
#define DROP_IS(reason, name) IS_REASON(skb_drop_reason, reason, SKB_DROP_REASON_##name)
#define RESET_IS(reason, name) IS_REASON(sk_rst_reason, reason, SK_RST_REASON_##name)

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

/* ---- segments ---- */

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
	if (f->stall.kind || f->retransmits != tp->total_retrans)
		stalled(sk, tp, f, header, ack);
	burst_over(sk, f);
	peer_window(sk, tp, f, ack, window);
	own_window(sk, tp, f, read_word((__u64)skb->cb) >> 32);
	return 0;
}

/* ---- the end of a connection ---- */

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
		tell_window(sk, f, TCP_ZERO_WINDOW_PEER, f->peer_closed, now);
	f->peer_closed = 0;
	return 0;
}

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
