// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Connections on their way to accept(), and the sockets that listen for them.
 *
 *	SYN -> SYN-ACK sent -> ACK: established, in the accept queue -> accept() returns
 *	       handshake                                  queue
 */
#include "tcp_accept.bpf.h"

/* A socket that listens for a watched process. */
struct tcp_listener {
	__u32 tgid;
	__u32 tid;
	__u32 longest; /* its accept queue, since it was last told */
	__u32 _pad;
	struct tcp_ends ends;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64); /* struct sock * */
	__type(value, struct tcp_listener);
} tcp_listeners SEC(".maps");

/* How far to look for a connection in its queue: it came last, unless others came meanwhile. */
#define QUEUE_LOOK 16

/* What the kernel notes of a handshake: kept until accept() takes the connection. */
static __always_inline __u64 find_request(__u64 listener, __u64 sk)
{
	__u64 request = (__u64)READ(struct inet_connection_sock___tcp, listener,
				    icsk_accept_queue.rskq_accept_tail);

	if (request && (__u64)READ(struct request_sock___tcp, request, sk) == sk)
		return request;
	request = (__u64)READ(struct inet_connection_sock___tcp, listener,
			      icsk_accept_queue.rskq_accept_head);
	for (int i = 0; i < QUEUE_LOOK && request; i++) {
		if ((__u64)READ(struct request_sock___tcp, request, sk) == sk)
			return request;
		request = (__u64)READ(struct request_sock___tcp, request, dl_next);
	}
	return 0;
}

/* How long the handshake took. Of one made with a SYN cookie nothing was noted. */
static __always_inline void fill_handshake(struct tcp_waiting *w, __u64 listener, __u64 sk)
{
	__u64 request = find_request(listener, sk), sent;

	if (!request)
		return;
	w->synacks = READ(struct request_sock___tcp, request, num_retrans);
	sent = READ(struct tcp_request_sock___tcp, request, snt_synack) * 1000;
	if (sent && sent < w->established)
		w->handshake = w->established - sent;
}

static __always_inline void established(struct sock *sk, struct tcp_flow *f)
{
	/* Not read within READ(), which would look for struct tcp_flow in the kernel. */
	__u64 key = (__u64)sk, on = f->listener;
	struct tcp_listener *listener;
	struct tcp_waiting w = {};

	w.established = bpf_ktime_get_ns();
	w.tgid = f->tgid;
	w.queue_length = READ(struct sock___tcp, on, sk_ack_backlog);
	w.queue_limit = READ(struct sock___tcp, on, sk_max_ack_backlog);
	fill_handshake(&w, on, key);
	fill_ends(&w.ends, sk);
	if (bpf_map_update_elem(&tcp_waiting, &key, &w, BPF_ANY))
		count_lost(TRACKER_TCP_ACCEPT, LOST_MAP_FULL);
	listener = bpf_map_lookup_elem(&tcp_listeners, &on);
	if (listener && w.queue_length > listener->longest)
		listener->longest = w.queue_length;
}

static __always_inline void add_listener(struct sock *sk, __u32 tgid, __u32 tid)
{
	struct tcp_listener new = { .tgid = tgid, .tid = tid };
	__u64 key = (__u64)sk;
	struct tcp_flow *f = tcp_new_flow(sk);

	if (!f) {
		count_lost(TRACKER_TCP_ACCEPT, LOST_MAP_FULL);
		return;
	}
	f->listener = key;
	f->tgid = tgid;
	f->tid = tid;
	fill_ends(&new.ends, sk);
	if (bpf_map_update_elem(&tcp_listeners, &key, &new, BPF_ANY))
		count_lost(TRACKER_TCP_ACCEPT, LOST_MAP_FULL);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(tcp_accept_state, struct sock *sk, int old, int new)
{
	struct tcp_flow *f;
	__u64 key, id;

	if (new == TCP_LISTEN) {
		id = bpf_get_current_pid_tgid();
		if (is_watched(id >> 32))
			add_listener(sk, id >> 32, id);
	} else if (old == TCP_LISTEN && new == TCP_CLOSE) {
		key = (__u64)sk;
		bpf_map_delete_elem(&tcp_listeners, &key);
	} else if (old == TCP_SYN_RECV && new == TCP_ESTABLISHED) {
		f = tcp_flow(sk);
		if (f && f->listener && is_watched(f->tgid))
			established(sk, f);
	}
	return 0;
}

/* Sockets that processes had before they were watched. */
SEC("iter/task_file")
int tcp_adopt(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct tcp_sock___tcp *tp;
	struct socket *socket;
	struct tcp_flow *f;
	struct sock *sk;

	if (!task || !file || task->pid != task->tgid || !is_watched(task->tgid))
		return 0;
	socket = bpf_sock_from_file(file);
	sk = socket ? socket->sk : NULL;
	if (!sk || ((struct sock___tcp *)sk)->sk_protocol != IPPROTO_TCP)
		return 0;
	if (sk->__sk_common.skc_family != AF_INET && sk->__sk_common.skc_family != AF_INET6)
		return 0;
	if (tcp_flow(sk))
		return 0;
	if (sk->__sk_common.skc_state == TCP_LISTEN) {
		add_listener(sk, task->tgid, task->tgid);
		return 0;
	}
	f = tcp_new_flow(sk);
	tp = tcp_sock(sk);
	if (f && tp) {
		f->tgid = task->tgid;
		f->tid = task->tgid;
		f->closed = sk->__sk_common.skc_state == TCP_CLOSE;
		retransmits_are_known(f, tp);
	}
	return 0;
}

/* Run once a second. */
SEC("iter/bpf_map_elem")
int tcp_accept_listeners(struct bpf_iter__bpf_map_elem *ctx)
{
	struct tcp_listener *listener = ctx->value;
	struct tcp_listener_event *e;
	__u64 *key = ctx->key, sk;
	__u32 now;

	if (!key || !listener || !is_watched(listener->tgid))
		return 0;
	e = reserve(TRACKER_TCP_ACCEPT, sizeof(*e));
	if (!e)
		return 0;
	sk = *key;
	fill_thread(&e->h, EVENT_TCP_LISTENER, listener->tgid, listener->tid, bpf_ktime_get_ns());
	e->sock = sk;
	now = READ(struct sock___tcp, sk, sk_ack_backlog);
	e->queue_length = now < listener->longest ? listener->longest : now;
	listener->longest = now;
	e->queue_limit = READ(struct sock___tcp, sk, sk_max_ack_backlog);
	e->drops = READ(struct sock___tcp, sk, sk_drops.counter);
	e->half_open = READ(struct inet_connection_sock___tcp, sk, icsk_accept_queue.qlen.counter);
	e->ends = listener->ends;
	submit(e);
	return 0;
}
