// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Requests, seen from the server's sockets:
 *
 *	ready (first byte in the kernel) -> accepted -> read by a thread -> answered
 *
 * A connection that this host accepts has a `struct conn` in its socket's storage, which lives and
 * dies with the socket. The thread that first reads a request is the one whose ledger it gets.
 */
#include "../tcp_accept/tcp_accept.bpf.h"
#include "conn.bpf.h"
#include "older.bpf.h"

#define MSG_PEEK 2
#define SEND_SHUTDOWN 2

/* accept() returned this socket. Between accept and the first read only its address is known. */
struct accepted {
	__u64 time;
	__u32 tid;
	__u32 tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64); /* struct sock * */
	__type(value, struct accepted);
} accepted SEC(".maps");

/* A Unix socket has no event of its own when it is connected: it is taken up when bytes arrive and
 * it is still waiting for accept(), or has just been accepted. */
static __always_inline bool is_accepted_unix(struct sock *sk)
{
	__u64 key = (__u64)sk;

	if (sk->__sk_common.skc_family != AF_UNIX || sk->sk_type != SOCK_STREAM)
		return false;
	return !sk->sk_socket || bpf_map_lookup_elem(&accepted, &key);
}

static __always_inline void data_ready(struct sock *sk)
{
	struct conn *c = bpf_sk_storage_get(&conns, sk, NULL, 0);

	if (!c && is_accepted_unix(sk))
		c = bpf_sk_storage_get(&conns, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (c && !c->ready)
		c->ready = bpf_ktime_get_ns();
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(request_data_ready, struct sock *sk)
{
	data_ready(sk);
	return 0;
}

/* before Linux 6.2 */
SEC("fentry/sock_def_readable")
int BPF_PROG(request_data_ready_fentry, struct sock *sk)
{
	data_ready(sk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(request_state, struct sock *sk, int old, int new)
{
	struct conn *c;

	if (new == TCP_ESTABLISHED && old == TCP_SYN_RECV) {
		if (!bpf_sk_storage_get(&conns, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE))
			count_lost(TRACKER_REQUEST, LOST_MAP_FULL);
		return 0;
	}
	if (new == TCP_LISTEN) {
		struct lifecycle_event *e;
		__u64 id = bpf_get_current_pid_tgid();
		__u32 tgid = id >> 32;

		if (!config.discover || bpf_map_lookup_elem(&processes, &tgid))
			return 0;
		e = reserve(TRACKER_REQUEST, sizeof(*e));
		if (!e)
			return 0;
		__builtin_memset(e, 0, sizeof(*e));
		e->h.kind = EVENT_LISTEN;
		e->h.tgid = tgid;
		e->h.tid = id;
		e->h.time = bpf_ktime_get_ns();
		bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
		return 0;
	}
	/* The peer's half-close (to CLOSE_WAIT) leaves the server free to answer. */
	if (new == TCP_CLOSE_WAIT || (old != TCP_ESTABLISHED && old != TCP_CLOSE_WAIT))
		return 0;
	c = bpf_sk_storage_get(&conns, sk, NULL, 0);
	if (c)
		close_request(c, new == TCP_CLOSE ? END_RESET : END_CLOSED, bpf_ktime_get_ns());
	return 0;
}

/*
 * A Unix socket has no states. An answered request would end by its silence; one that is closed
 * without an answer would go on for ever, and its thread seem to serve two.
 */
SEC("fentry/unix_release")
int BPF_PROG(request_close_unix, struct socket *socket)
{
	struct sock *sk = socket->sk;
	struct conn *c = sk ? bpf_sk_storage_get(&conns, sk, NULL, 0) : NULL;

	if (c)
		close_request(c, END_CLOSED, bpf_ktime_get_ns());
	return 0;
}

static __always_inline void begin_request(struct conn *c, struct sock *sk, struct thread *t,
					  __u32 bytes, __u64 now)
{
	__u64 key = (__u64)sk;
	struct accepted *a = c->number ? NULL : bpf_map_lookup_elem(&accepted, &key);

	if (a) {
		c->accepted = a->time;
		c->accept_tid = a->tid;
		bpf_map_delete_elem(&accepted, &key);
	}
	c->id = ((__u64)bpf_get_prandom_u32() << 32) | bpf_get_prandom_u32();
	c->tid = t->tid;
	c->tgid = t->tgid;
	c->born = t->born;
	c->read = now;
	c->bytes_in = bytes;
	c->bytes_out = 0;
	c->sends = 0;
	c->sent_tid = 0;
	c->shared = 0;
	c->answer_len = 0;
	c->phase = PHASE_READ;
	if (!ledger_since(c, now, NULL, c->at_read))
		c->born = 0; /* no ledger for this request, and said so */
	/* Another request of this thread is being served: it is an event loop. */
	if (t->open_requests)
		t->shared_at = now;
	t->open_requests++;
	t->serves = 1;
	tell_read(c, sk, t, bytes, now);
}

static __always_inline void received(struct sock *sk, int ret, int flags)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct conn *c;
	struct thread *t;
	__u64 now;

	if (flags & MSG_PEEK)
		return;
	c = bpf_sk_storage_get(&conns, sk, NULL, 0);
	if (!c && !was_accepted(sk))
		return;
	t = bpf_map_lookup_elem(&threads, &tid);
	if (!t)
		return;
	if (!c) {
		/* It was waiting for accept() when its process was watched, or came from another one. */
		__u64 key = (__u64)sk;

		c = take_up(sk, bpf_map_lookup_elem(&accepted, &key));
		if (!c)
			return;
	}
	now = bpf_ktime_get_ns();
	if (ret <= 0) {
		if (c->phase == PHASE_SENT)
			close_request(c, ret ? END_NEXT : END_PEER_CLOSED, now);
		if (ret == 0)
			c->ready = 0;
		return;
	}
	if (c->phase == PHASE_SENT)
		close_request(c, END_NEXT, now);
	if (c->phase == PHASE_IDLE) {
		/* Who can answer nothing more reads what is left of the last request (FastCGI's end of input, say). A
		 * first one may be there although its client has closed, which shuts both sides of a Unix socket. */
		if (!c->number || !(sk->sk_shutdown & SEND_SHUTDOWN))
			begin_request(c, sk, t, ret, now);
	} else {
		c->bytes_in += ret;
		if (c->head_left)
			tell_head(c, t, ret, now);
	}
	c->ready = 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(request_recv, struct sock *sk, int ret, int flags)
{
	received(sk, ret, flags);
	return 0;
}

/*
 * Before Linux 6.3. sock_recvmsg() and sock_sendmsg() would do, but compilers inline them into the
 * system calls; what they call through a pointer is always a function.
 */
static __always_inline int received_on(struct socket *socket, int ret, int flags)
{
	struct sock *sk = socket->sk;

	if (sk)
		received(sk, ret, flags);
	return 0;
}

SEC("fexit/inet_recvmsg")
int BPF_PROG(request_recv_inet, struct socket *socket, void *msg, unsigned long size, int flags,
	     int ret)
{
	return received_on(socket, ret, flags);
}

SEC("fexit/inet6_recvmsg")
int BPF_PROG(request_recv_inet6, struct socket *socket, void *msg, unsigned long size, int flags,
	     int ret)
{
	return received_on(socket, ret, flags);
}

SEC("fexit/unix_stream_recvmsg")
int BPF_PROG(request_recv_unix, struct socket *socket, void *msg, unsigned long size, int flags,
	     int ret)
{
	return received_on(socket, ret, flags);
}

/* "HTTP/1.1 100 Continue" and its like come before the answer; 101 is one. */
static __always_inline bool is_interim(const char *answer)
{
	return answer[0] == 'H' && answer[4] == '/' && answer[5] == '1' && answer[9] == '1' &&
	       answer[10] == '0' && answer[11] != '1';
}

static __always_inline bool is_http(const char *answer)
{
	return answer[0] == 'H' && answer[1] == 'T' && answer[2] == 'T' && answer[3] == 'P' &&
	       answer[4] == '/' && answer[5] == '1';
}

/* The first bytes of an answer; false if they are none of it. */
static __always_inline bool answered(struct conn *c, const struct user_buffers *buffers, int ret)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &c->tid);
	__u64 len = buffers->at[0].len;

	if (ret >= ANSWER_HEAD && len >= ANSWER_HEAD &&
	    !bpf_probe_read_user(c->answer, ANSWER_HEAD, (void *)buffers->at[0].base)) {
		if (is_interim(c->answer))
			return false;
		c->answer_len = ANSWER_HEAD;
		if (is_http(c->answer))
			tell_answer(c, buffers->at[0].base, len < ret ? len : ret);
	}
	if (t && t->born == c->born && t->open_requests)
		t->open_requests--;
	c->phase = PHASE_SENT;
	return true;
}

#define EPIPE 32

static __always_inline void sent(struct sock *sk, int ret)
{
	struct user_buffers buffers = {};
	struct conn *c;
	__u64 now;

	if (ret <= 0 && ret != -EPIPE)
		return;
	c = bpf_sk_storage_get(&conns, sk, NULL, 0);
	if (!c)
		return;
	if (ret == -EPIPE) {
		/* The client has gone. Of a Unix socket nothing else may tell. */
		if (c->phase == PHASE_READ)
			close_request(c, END_PEER_CLOSED, bpf_ktime_get_ns());
		return;
	}
	if (c->phase == PHASE_IDLE) {
		/* What was in progress has been answered, and so had been read: by a call that was not seen. */
		if (c->unsure)
			c->ready = 0;
		c->unsure = 0;
		return;
	}
	now = bpf_ktime_get_ns();
	user_buffers(&buffers, ret);
	if (c->phase == PHASE_READ && !answered(c, &buffers, ret))
		return;
	c->bytes_out += ret;
	c->sent = now;
	c->sent_tid = bpf_get_current_pid_tgid();
	c->ledger_ok = ledger_since(c, now, c->at_read, c->at_sent);
	c->last_chunk = ends_last_chunk(&buffers, ret);
	if (c->sends++ < SENDS_TOLD || c->last_chunk || now - c->told >= SENDS_TOLD_EVERY_NS)
		tell_sent(c, END_NOT);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(request_send, struct sock *sk, int ret, int flags)
{
	sent(sk, ret);
	return 0;
}

/* Before Linux 6.3, as above. */
static __always_inline int sent_on(struct socket *socket, int ret)
{
	struct sock *sk = socket->sk;

	if (sk)
		sent(sk, ret);
	return 0;
}

SEC("fexit/inet_sendmsg")
int BPF_PROG(request_send_inet, struct socket *socket, void *msg, unsigned long size, int ret)
{
	return sent_on(socket, ret);
}

SEC("fexit/inet6_sendmsg")
int BPF_PROG(request_send_inet6, struct socket *socket, void *msg, unsigned long size, int ret)
{
	return sent_on(socket, ret);
}

SEC("fexit/unix_stream_sendmsg")
int BPF_PROG(request_send_unix, struct socket *socket, void *msg, unsigned long size, int ret)
{
	return sent_on(socket, ret);
}

/* sendfile() and splice(), which have a way of their own before Linux 6.5 */
SEC("fexit/inet_sendpage")
int BPF_PROG(request_sendpage_inet, struct socket *socket, void *page, int offset,
	     unsigned long size, int flags, long ret)
{
	return sent_on(socket, ret);
}

SEC("fexit/unix_stream_sendpage")
int BPF_PROG(request_sendpage_unix, struct socket *socket, void *page, int offset,
	     unsigned long size, int flags, long ret)
{
	return sent_on(socket, ret);
}

/* accept() has given the current thread a connection. */
static __always_inline void note_accept(struct task_struct *task, struct file *file)
{
	struct accepted a = { .tgid = task->tgid, .tid = task->pid };
	struct thread *t;
	__u64 sk;

	if (!bpf_map_lookup_elem(&processes, &a.tgid))
		return;
	sk = (__u64)sock_of(file);
	if (!sk)
		return;
	a.time = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&accepted, &sk, &a, BPF_ANY))
		count_lost(TRACKER_REQUEST, LOST_MAP_FULL);
	t = bpf_map_lookup_elem(&threads, &a.tid);
	if (t)
		t->serves = 1;
	tcp_accepted(sk, task, a.time);
}

#define MAX_ERRNO 4095

/* Cheaper than the system call's tracepoints, which slow down every system call a little. */
SEC("fexit/do_accept")
int BPF_PROG(request_accept_fexit, void *listener, void *arg, void *address, void *length,
	     int flags, struct file *file)
{
	if (file && (unsigned long)file < (unsigned long)-MAX_ERRNO)
		note_accept(bpf_get_current_task_btf(), file);
	return 0;
}

static __always_inline int accept_returned(long fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file *file = fd < 0 ? NULL : file_of(task, fd);

	if (file)
		note_accept(task, file);
	return 0;
}

SEC("tp/syscalls/sys_exit_accept4")
int request_accept4(struct trace_event_raw_sys_exit *ctx)
{
	return accept_returned(ctx->ret);
}

SEC("tp/syscalls/sys_exit_accept")
int request_accept(struct trace_event_raw_sys_exit *ctx)
{
	return accept_returned(ctx->ret);
}

/* Connections that processes had before they were watched. */
SEC("iter/task_file")
int request_adopt(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket *socket;

	if (!task || !file || !is_watched(task->tgid))
		return 0;
	socket = bpf_sock_from_file(file);
	if (socket && socket->sk && was_accepted(socket->sk))
		take_up(socket->sk, false);
	return 0;
}
