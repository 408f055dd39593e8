// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which waits become samples, and for how much time each stands.
 *
 * A stretch of a state that lasts for a period or longer is a sample, and stands for itself. Shorter
 * ones are strung together, per thread and state, and on the string there is one point in each period:
 * the stretch that holds it is a sample and stands for a whole period. So every nanosecond has the same
 * chance, nothing is lost between samples, and the work follows time waited, not switches.
 *
 * Waits for a request, of threads that serve some, are strung together on their own, and their period is
 * longer: nearly all of such a thread's waiting is that, and it says the same each time.
 *
 * Where in its period the point lies is the sequence of multiples of the golden ratio: evenly spread,
 * and in step with nothing that a program does. Each state has a sequence of its own: of one that others
 * take numbers from, what is left is spread no better than by chance.
 */
#include "offcpu.bpf.h"
#include "points.h"
#include <bpf/bpf_endian.h>

#define FUTEX_SYSCALL 202

static __always_inline void fill_off_cpu_peer(struct off_cpu_event *e, struct sock *sk)
{
	struct sock_common *c = &sk->__sk_common;
	__u16 family = sk ? BPF_CORE_READ(c, skc_family) : 0;

	if (family == AF_INET6)
		bpf_core_read(e->peer, 16, &c->skc_v6_daddr);
	else if (family == AF_INET)
		bpf_core_read(e->peer, 4, &c->skc_daddr);
	e->family = family;
	if (family == AF_INET || family == AF_INET6)
		e->peer_port = bpf_ntohs(BPF_CORE_READ(c, skc_dport));
}

/* Reserves the record of a sample, and fills in what all have. */
static __always_inline struct off_cpu_event *off_cpu_event(const struct thread *t, __u64 start)
{
	const struct weights *weights = &t->sampling.weights;
	struct off_cpu_event *e = reserve(TRACKER_OFFCPU, sizeof(*e));

	if (!e)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->h, EVENT_OFF_CPU, t, start);
	e->weight = weights->state;
	e->gc_weight = weights->gc;
	e->ready_weight = weights->ready;
	e->syscall = -1;
	e->fd = -1;
	e->ready_state = STATE_RUNNABLE;
	e->python = t->gil_place.address != 0;
	e->in_request = t->open_requests != 0;
	return e;
}

static __always_inline int any_weight(const struct weights *weights)
{
	return weights->state || weights->gc || weights->ready;
}

/* Of a wait that is over: since when was the thread ready? */
static __always_inline __u64 ready_ns(const struct wait *w, __u64 now)
{
	if (!is_blocked(w->state))
		return now - w->start;
	return w->woken ? now - w->woken : 0;
}

int weigh_wait(struct thread *t, __u64 now)
{
	__u64 duration, ready;
	struct weights *weights;
	struct wait *w;

	if (!t)
		return 0;
	w = &t->wait;
	weights = &t->sampling.weights;
	duration = now - w->start;
	ready = ready_ns(w, now);
	weights->gc = 0;
	weights->state = duration > ready ? sample_weight(t, w->state, duration - ready) : 0;
	weights->ready = sample_weight(t, is_blocked(w->state) ? w->ready : w->state, ready);
	return any_weight(weights);
}

int sample_wait(struct thread *t, __u64 asleep_as, __u64 now)
{
	struct off_cpu_event *e;
	struct wait *w;

	if (!t)
		return 0;
	w = &t->wait;
	e = off_cpu_event(t, w->start);
	if (!e)
		return 0;
	e->sequence = t->sampling.sequence;
	e->asleep_as = asleep_as;
	e->duration = now - w->start;
	e->state = w->state;
	e->ready_state = is_blocked(w->state) ? w->ready : w->state;
	e->runnable = ready_ns(w, now);
	e->futex = w->futex;
	e->futex_op = w->futex ? w->futex_op : 0;
	e->syscall = w->syscall;
	e->fd = w->fd;
	e->waker_tgid = w->waker_tgid;
	e->waker_tid = w->waker_tid;
	__builtin_memcpy(e->waker_comm, w->waker_comm, COMM_LEN);
	fill_off_cpu_peer(e, (struct sock *)w->sock);
	submit(e);
	return 0;
}

/* What a wait for the GIL consists of, up to its latest sleep. */
static __always_inline __u64 gil_blocked(const struct gil_wait *g)
{
	__s64 ns = g->slept - g->runnable_ns - g->gc_ns;

	return ns > 0 ? ns : 0;
}

/* Its stack is that of any of its sleeps; when the wait turns out to be over, the thread is elsewhere. */
int gil_needs_stack(struct thread *t)
{
	const struct gil_wait *g;

	if (!t || t->gil.sequence)
		return 0;
	g = &t->gil;
	return would_sample(t, STATE_GIL_WAIT, gil_blocked(g)) || would_sample(t, STATE_GC_WAIT, g->gc_ns) ||
	       would_sample(t, STATE_RUNNABLE, g->runnable_ns);
}

int sample_gil_wait(struct thread *t)
{
	const struct gil_wait *g;
	struct weights *weights;
	struct off_cpu_event *e;

	if (!t)
		return 0;
	g = &t->gil;
	weights = &t->sampling.weights;
	weights->state = sample_weight(t, STATE_GIL_WAIT, gil_blocked(g));
	weights->gc = sample_weight(t, STATE_GC_WAIT, g->gc_ns);
	weights->ready = sample_weight(t, STATE_RUNNABLE, g->runnable_ns);
	if (!any_weight(weights))
		return 0;
	e = off_cpu_event(t, g->start);
	if (!e)
		return 0;
	/* None: no sleep of it ended where a stack could be taken. */
	e->sequence = g->sequence ? g->sequence : new_sample(t);
	e->asleep_as = g->sequence ? g->asleep_as : e->sequence;
	e->duration = g->end - g->start;
	e->runnable = g->runnable_ns;
	e->gc_ns = g->gc_ns;
	e->gc_tid = g->gc_tid;
	e->state = STATE_GIL_WAIT;
	e->gil = 1;
	e->futex = t->gil_place.address;
	e->syscall = FUTEX_SYSCALL;
	e->holder = g->holder;
	e->waker_tgid = g->waker_tgid;
	e->waker_tid = g->waker_tid;
	submit(e);
	return 0;
}
