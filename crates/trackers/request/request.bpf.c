// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Requests, seen from the server's sockets:
 *
 *	ready (first byte in the kernel) -> accepted -> read by a thread -> answered
 *
 * A connection that this host accepts has a `struct conn` in its socket's storage, which lives and
 * dies with the socket. The thread that first reads a request is the one whose ledger it gets.
 */
#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include "../ledger/classify.bpf.h"
#include <bpf/bpf_endian.h>
#include "request.h"

#define MSG_PEEK 2

/* Writes that are told one by one; after these, at most one a millisecond. */
#define SENDS_TOLD 16
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
	__u8 _pad[4];
	char answer[ANSWER_HEAD];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct conn);
} conns SEC(".maps");

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

/* A place to build a record whose length varies; see copy_head() for the second half. */
struct read_scratch {
	struct request_read_event event;
	__u8 beyond[REQUEST_HEAD];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct read_scratch);
} read_scratch SEC(".maps");

/* ---- the reading thread's ledger, as of now ---- */

/* Copies it to `ns`, the current state charged up to now, and takes `before` away. */
static __always_inline bool ledger_since(struct conn *c, __u64 now, const __u64 *before, __u64 *ns)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &c->tid);
	__u64 sum, since;
	__u8 state;

	if (!t || t->born != c->born)
		return false;
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
	__builtin_memcpy(e->answer, c->answer, ANSWER_HEAD);
	submit(e);
	c->told = c->sent;
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

/* A read or write in progress: the user's buffers, from the system call's registers. */
#define BUFFERS 4

struct user_buffers {
	struct { __u64 base, len; } at[BUFFERS]; /* struct iovec */
};

static __always_inline void user_buffers(struct user_buffers *b, __u32 bytes)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 second = regs->si, iov = 0, count = regs->dx;

	barrier_var(second); /* loaded once: a register holds one kind of pointer */
	switch (regs->orig_ax) {
	case SYS_read:
	case SYS_recvfrom:
	case SYS_write:
	case SYS_sendto:
		b->at[0].base = second;
		b->at[0].len = bytes;
		return;
	case SYS_readv:
	case SYS_writev:
		iov = second;
		break;
	case SYS_recvmsg:
	case SYS_sendmsg: /* struct msghdr: name, namelen (padded), iov, iovlen */
		bpf_probe_read_user(&iov, sizeof(iov), (void *)(second + 16));
		bpf_probe_read_user(&count, sizeof(count), (void *)(second + 24));
		break;
	}
	if (!iov)
		return;
	for (int i = 0; i < BUFFERS && i < count; i++)
		bpf_probe_read_user(&b->at[i], sizeof(b->at[i]), (void *)(iov + i * 16));
}

/* Copies the first bytes of a request to `head`, which has room for twice REQUEST_HEAD: the verifier
 * bounds offset and length one by one. Returns how many. */
static __always_inline __u32 copy_head(__u8 *head, const struct user_buffers *b, __u32 bytes)
{
	__u32 copied = 0, n;

	for (int i = 0; i < BUFFERS; i++) {
		n = bytes - copied;
		if (n > b->at[i].len)
			n = b->at[i].len;
		if (n > REQUEST_HEAD)
			n = REQUEST_HEAD;
		/* Or the compiler derives bounds that the verifier does not see. */
		barrier_var(n);
		barrier_var(copied);
		if (!n || n > REQUEST_HEAD || copied >= REQUEST_HEAD)
			break;
		if (bpf_probe_read_user(head + copied, n, (void *)b->at[i].base))
			break;
		copied += n;
	}
	return copied < REQUEST_HEAD ? copied : REQUEST_HEAD;
}

static __always_inline void tell_read(struct conn *c, struct sock *sk, struct thread *t, __u32 bytes,
				      __u64 now)
{
	__u32 zero = 0, len;
	struct read_scratch *scratch = bpf_map_lookup_elem(&read_scratch, &zero);
	struct request_read_event *e = &scratch->event;
	struct user_buffers buffers = {};

	if (!scratch)
		return;
	fill_header(&e->h, EVENT_REQUEST_READ, t, now);
	bpf_get_current_comm(e->h.comm, COMM_LEN);
	e->id = c->id;
	e->ready = c->ready;
	e->accepted = c->number ? 0 : c->accepted;
	e->accept_tid = c->accept_tid;
	e->number = c->number;
	e->bytes = bytes;
	__builtin_memset(e->peer, 0, 2 * 16);
	e->peer_port = 0;
	e->local_port = 0;
	fill_addresses(e, sk);

	user_buffers(&buffers, bytes);
	len = copy_head(e->head, &buffers, bytes);
	e->head_len = len;
	len += __builtin_offsetof(struct request_read_event, head);
	if (len > sizeof(*e))
		return;
	if (bpf_ringbuf_output(&events, e, len, BPF_RB_NO_WAKEUP))
		count_lost(TRACKER_REQUEST, LOST_RING_FULL);
}

/* ---- the window's edges ---- */

static __always_inline bool is_tcp(const struct sock *sk)
{
	return sk->__sk_common.skc_family == AF_INET || sk->__sk_common.skc_family == AF_INET6;
}

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
	if (!c)
		return;
	t = bpf_map_lookup_elem(&threads, &tid);
	if (!t)
		return;
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
	if (c->phase == PHASE_IDLE)
		begin_request(c, sk, t, ret, now);
	else
		c->bytes_in += ret;
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

/* The first bytes of an answer. */
static __always_inline void answered(struct conn *c, int ret)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &c->tid);
	struct user_buffers buffers = {};

	if (t && t->born == c->born && t->open_requests)
		t->open_requests--;
	c->phase = PHASE_SENT;
	user_buffers(&buffers, ret);
	if (ret >= ANSWER_HEAD && buffers.at[0].len >= ANSWER_HEAD &&
	    !bpf_probe_read_user(c->answer, ANSWER_HEAD, (void *)buffers.at[0].base))
		c->answer_len = ANSWER_HEAD;
}

static __always_inline void sent(struct sock *sk, int ret)
{
	struct conn *c;
	__u64 now;

	if (ret <= 0)
		return;
	c = bpf_sk_storage_get(&conns, sk, NULL, 0);
	if (!c || c->phase == PHASE_IDLE)
		return;
	now = bpf_ktime_get_ns();
	if (c->phase == PHASE_READ)
		answered(c, ret);
	c->bytes_out += ret;
	c->sent = now;
	c->sent_tid = bpf_get_current_pid_tgid();
	c->ledger_ok = ledger_since(c, now, c->at_read, c->at_sent);
	if (c->sends++ < SENDS_TOLD || now - c->told >= SENDS_TOLD_EVERY_NS)
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
	__u64 sk;

	if (!bpf_map_lookup_elem(&processes, &a.tgid))
		return;
	sk = (__u64)sock_of(file);
	if (!sk)
		return;
	a.time = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&accepted, &sk, &a, BPF_ANY))
		count_lost(TRACKER_REQUEST, LOST_MAP_FULL);
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
