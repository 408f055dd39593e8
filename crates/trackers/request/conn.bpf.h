/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connection that this host accepts, and telling user space of its requests. It lives in its
 * socket's storage, and goes with the socket.
 */
#ifndef UNDERSPAN_CONN_H
#define UNDERSPAN_CONN_H

#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include <bpf/bpf_endian.h>
#include "head.bpf.h"

/* After SENDS_TOLD writes, at most one is told in so long. */
#define SENDS_TOLD_EVERY_NS 1000000

enum phase {
	PHASE_IDLE, /* nothing asked */
	PHASE_READ, /* asked, nothing answered */
	PHASE_SENT, /* answered, perhaps not to the end */
};

struct conn {
	__u64 ready;	/* bytes have been waiting to be read since then, 0: none */
	__u64 accepted;
	__u64 id;	/* of the current request */
	__u64 read;
	__u64 sent;	/* the latest write */
	__u64 told;	/* when a write was last told */
	__u64 bytes_in;
	__u64 bytes_out;
	__u64 born;	/* the reading thread's, so that a reused tid is not taken for it */
	__u64 at_read[STATES];
	__u64 at_sent[STATES]; /* since then, at the latest write */
	__u32 tid;	/* who read it */
	__u32 tgid;
	__u32 sent_tid;
	__u32 accept_tid;
	__u32 number;
	__u32 sends;
	__u8 phase;
	__u8 answer_len;
	__u8 ledger_ok;
	__u8 shared;	/* its thread read another request before this one was answered */
	__u8 head_pieces; /* that may still be told */
	__u8 unsure;	/* older than us: a request may be in progress */
	__u16 head_left; /* bytes of the head that may still be told; 0: it is over */
	char answer[ANSWER_HEAD];
	__u8 last_chunk; /* the latest write ended as chunked answers end */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct conn);
} conns SEC(".maps");

/* ---- the reading thread's ledger, as of now ---- */

/* Copies it to `ns`, the current state charged up to now, and takes `before` away. */
static __always_inline bool ledger_since(struct conn *c, __u64 now, const __u64 *before, __u64 *ns)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &c->tid);
	__u64 sum, since;
	__u8 state;

	if (!t || t->born != c->born)
		return false;
	if (!is_on_cpu(t->state) && (__u32)bpf_get_current_pid_tgid() == c->tid)
		arrive_untold(now);
	/* Another CPU may be changing it: what was copied is whole if it sums to its own span. */
	for (int attempt = 0; attempt < 3; attempt++) {
		since = *(volatile __u64 *)&t->since;
		state = *(volatile __u8 *)&t->state;
		sum = 0;
		for (int i = 0; i < STATES; i++) {
			ns[i] = *(volatile __u64 *)&t->ns[i];
			sum += ns[i];
		}
		if (sum != since - t->born || since != *(volatile __u64 *)&t->since)
			continue;
		if (now > since)
			add_time(ns, state, now - since);
		if (before)
			for (int i = 0; i < STATES; i++)
				ns[i] -= before[i];
		return true;
	}
	count_lost(TRACKER_REQUEST, LOST_TORN);
	return false;
}

/* ---- telling ---- */

static __always_inline void tell_sent(struct conn *c, enum request_end end)
{
	struct request_sent_event *e = reserve(TRACKER_REQUEST, sizeof(*e));
	struct thread *t = bpf_map_lookup_elem(&threads, &c->tid);

	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->h.kind = end ? EVENT_REQUEST_END : EVENT_REQUEST_SENT;
	e->h.tgid = c->tgid;
	e->h.tid = c->sent_tid;
	e->h.time = c->sent;
	e->id = c->id;
	e->bytes_in = c->bytes_in;
	e->bytes_out = c->bytes_out;
	__builtin_memcpy(e->ns, c->at_sent, sizeof(e->ns));
	e->number = c->number;
	e->ledger_ok = c->ledger_ok;
	e->end = end;
	e->answered = c->phase == PHASE_SENT;
	/* Remembered, since the thread may be gone at the end. */
	if (t && t->born == c->born && t->shared_at >= c->read)
		c->shared = 1;
	e->shared_thread = c->shared;
	e->answer_len = c->answer_len;
	e->last_chunk = c->last_chunk;
	__builtin_memcpy(e->answer, c->answer, ANSWER_HEAD);
	submit(e);
	c->told = c->sent;
}

/* How an answer begins, in the first buffer of its first write: there the head is that says how long it is. */
static __always_inline void tell_answer(struct conn *c, __u64 start, __u32 len)
{
	struct request_answer_event *e = reserve(TRACKER_REQUEST, sizeof(*e));

	if (!e)
		return;
	__builtin_memset(&e->h, 0, sizeof(e->h));
	e->h.kind = EVENT_REQUEST_ANSWER;
	e->h.tgid = c->tgid;
	e->id = c->id;
	e->_pad = 0;
	if (len > ANSWER_START)
		len = ANSWER_START;
	barrier_var(len);
	e->len = len;
	if (len > ANSWER_START || bpf_probe_read_user(e->start, len, (void *)start))
		e->len = 0;
	submit(e);
}

static __always_inline void close_request(struct conn *c, enum request_end end, __u64 now)
{
	struct thread *t;

	if (c->phase == PHASE_IDLE)
		return;
	if (c->phase == PHASE_READ) { /* never answered: it lasted until now */
		c->sent = now;
		c->ledger_ok = ledger_since(c, now, c->at_read, c->at_sent);
	}
	tell_sent(c, end);
	if (c->phase == PHASE_READ) {
		t = bpf_map_lookup_elem(&threads, &c->tid);
		if (t && t->born == c->born && t->open_requests)
			t->open_requests--;
	}
	c->phase = PHASE_IDLE;
	c->number++;
}

static __always_inline void fill_addresses(struct request_read_event *e, struct sock *sk)
{
	struct sock_common *s = &sk->__sk_common;

	e->family = s->skc_family;
	if (e->family == AF_INET) {
		bpf_core_read(e->peer, 4, &s->skc_daddr);
		bpf_core_read(e->local, 4, &s->skc_rcv_saddr);
	} else if (e->family == AF_INET6) {
		bpf_core_read(e->peer, 16, &s->skc_v6_daddr);
		bpf_core_read(e->local, 16, &s->skc_v6_rcv_saddr);
	} else {
		return;
	}
	e->peer_port = bpf_ntohs(s->skc_dport);
	e->local_port = s->skc_num;
}

static __always_inline void tell_read(struct conn *c, struct sock *sk, struct thread *t, __u32 bytes,
				      __u64 now)
{
	__u32 zero = 0, len;
	struct head_scratch *scratch = bpf_map_lookup_elem(&head_scratch, &zero);
	struct request_read_event *e = &scratch->read;

	if (!scratch)
		return;
	fill_header(&e->h, EVENT_REQUEST_READ, t, now);
	bpf_get_current_comm(e->h.comm, COMM_LEN);
	e->id = c->id;
	e->ready = c->ready;
	e->accepted = c->number ? 0 : c->accepted;
	e->born = c->born;
	__builtin_memcpy(e->ns, c->at_read, sizeof(e->ns));
	e->accept_tid = c->accept_tid;
	e->number = c->number;
	e->bytes = bytes;
	__builtin_memset(e->peer, 0, 2 * 16);
	e->peer_port = 0;
	e->local_port = 0;
	fill_addresses(e, sk);

	len = read_head(e->head, bytes);
	e->head_len = len;
	e->head_open = is_method(e->head[0]) && len < REQUEST_HEAD && !is_over(e->head, len, bytes);
	c->head_left = e->head_open ? REQUEST_HEAD - len : 0;
	c->head_pieces = HEAD_PIECES;
	e->unsure = c->unsure;
	c->unsure = 0;
	output(e, len + __builtin_offsetof(struct request_read_event, head), sizeof(*e));
}

/* More of a request was read, and its head was not over. */
static __always_inline void tell_head(struct conn *c, struct thread *t, __u32 bytes, __u64 now)
{
	__u32 zero = 0, len;
	struct head_scratch *scratch = bpf_map_lookup_elem(&head_scratch, &zero);
	struct request_head_event *e = &scratch->more;

	if (!scratch)
		return;
	fill_header(&e->h, EVENT_REQUEST_HEAD, t, now);
	e->id = c->id;
	e->at = REQUEST_HEAD - c->head_left;
	len = read_head(e->head, bytes);
	c->head_pieces--;
	if (len >= c->head_left) {
		len = c->head_left;
		c->head_left = 0;
	} else if (!c->head_pieces || is_over(e->head, len, bytes)) {
		c->head_left = 0;
	} else {
		c->head_left -= len;
	}
	e->len = len;
	output(e, len + __builtin_offsetof(struct request_head_event, head), sizeof(*e));
}

#endif
