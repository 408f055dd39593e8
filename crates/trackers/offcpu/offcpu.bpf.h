/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * From a wait's end to a sample: the record itself and the kernel's part of the stack at once, the part
 * in user mode when the thread goes back there (offcpu.bpf.c). The ledger program calls these.
 */
#ifndef UNDERSPAN_OFFCPU_BPF_H
#define UNDERSPAN_OFFCPU_BPF_H

#include "../bpf/charge.h"
#include "../stack/stack.bpf.h"
#include "offcpu.h"
#include "sample.bpf.h"
#include <bpf/bpf_endian.h>

#define FUTEX_SYSCALL 202

struct weights {
	__u64 state, gc, ready;
};

static __always_inline bool any_weight(const struct weights *w)
{
	return w->state || w->gc || w->ready;
}

/* The newest sample's number. They begin at a time, so that none repeats one of an earlier thread with
 * this tid. */
static __always_inline __u64 next_sequence(const struct sampling *s, __u64 born)
{
	return (s->sequence ? s->sequence : born) + 1;
}

static __always_inline __u64 new_sample(struct thread *t)
{
	return t->sampling.sequence = next_sequence(&t->sampling, t->born);
}

/* Begins a sample of a thread that is about to go on: where in the kernel it was. */
static __always_inline __u64 begin_sample(struct thread *t, struct task_struct *task, __u64 now)
{
	struct sampling *sampling = &t->sampling;
	struct stack_scratch *s;

	new_sample(t);
	if (!sampling->due)
		sampling->due = sampling->sequence;
	s = stack_begin(STACK_ASLEEP, t, now);
	if (s) {
		s->e.sequence = sampling->sequence;
		stack_kernel(s, task);
		stack_send(s, EVENT_STACK, TRACKER_OFFCPU);
	}
	return sampling->sequence;
}

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
static __always_inline struct off_cpu_event *off_cpu_event(const struct thread *t, __u64 start,
							   const struct weights *weights)
{
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

/* A wait is over that was not for the GIL. `ready_state`: what it was in between wake-up and CPU. */
static __always_inline bool weigh_wait(struct thread *t, __u8 ready_state, __u64 now, struct weights *weights)
{
	struct wait *w = &t->wait;
	__u64 duration = now - w->start, ready = 0;

	if (!is_blocked(w->state)) {
		ready = duration;
		ready_state = w->state;
	} else if (w->woken) {
		ready = now - w->woken;
	}
	weights->gc = 0;
	weights->state = duration > ready ? sample_weight(t, w->state, duration - ready) : 0;
	weights->ready = sample_weight(t, ready_state, ready);
	return any_weight(weights);
}

static __always_inline void sample_wait(struct thread *t, struct task_struct *task, __u8 ready_state,
					const struct weights *weights, __u64 sequence, __u64 now)
{
	struct wait *w = &t->wait;
	struct off_cpu_event *e = off_cpu_event(t, w->start, weights);
	struct pt_regs *regs;

	if (!e)
		return;
	e->sequence = sequence;
	e->duration = now - w->start;
	e->state = w->state;
	e->ready_state = is_blocked(w->state) ? ready_state : w->state;
	e->runnable = !is_blocked(w->state) ? e->duration : w->woken ? now - w->woken : 0;
	e->futex = w->futex;
	if (w->futex) {
		regs = (struct pt_regs *)bpf_task_pt_regs(task);
		e->futex_op = regs->si;
	}
	e->syscall = w->syscall;
	e->fd = w->fd;
	e->waker_tgid = w->waker_tgid;
	e->waker_tid = w->waker_tid;
	__builtin_memcpy(e->waker_comm, w->waker_comm, COMM_LEN);
	fill_off_cpu_peer(e, (struct sock *)w->sock);
	submit(e);
}

/* What a wait for the GIL consists of, up to its latest sleep. */
static __always_inline __u64 gil_blocked(const struct gil_wait *g)
{
	__s64 ns = g->slept - g->runnable_ns - g->gc_ns;

	return ns > 0 ? ns : 0;
}

/* Whether the wait for the GIL will be a sample, were it over now. Its stack is that of any of its
 * sleeps; when the wait turns out to be over, the thread is elsewhere. */
static __always_inline bool gil_needs_stack(struct thread *t)
{
	const struct gil_wait *g = &t->gil;

	if (g->sequence)
		return false;
	return would_sample(t, STATE_GIL_WAIT, gil_blocked(g)) || would_sample(t, STATE_GC_WAIT, g->gc_ns) ||
	       would_sample(t, STATE_RUNNABLE, g->runnable_ns);
}

/* The wait for the GIL is over. */
static __noinline void sample_gil_wait(struct thread *t)
{
	const struct gil_wait *g = &t->gil;
	struct weights weights = {
		.state = sample_weight(t, STATE_GIL_WAIT, gil_blocked(g)),
		.gc = sample_weight(t, STATE_GC_WAIT, g->gc_ns),
		.ready = sample_weight(t, STATE_RUNNABLE, g->runnable_ns),
	};
	struct off_cpu_event *e;

	if (!any_weight(&weights))
		return;
	e = off_cpu_event(t, g->start, &weights);
	if (!e)
		return;
	/* None: no sleep of it ended where a stack could be taken. */
	e->sequence = g->sequence ? g->sequence : new_sample(t);
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
}

/* A PyMutex (CPython 3.14) sleeps on a semaphore in the waiter's own stack frame; before it stands which
 * lock it is for. */
#define NEAR_STACK_POINTER 4096

static __always_inline __u64 lock_behind(const struct thread *t, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 futex = t->wait.futex, lock = 0;

	if (futex - regs->sp < NEAR_STACK_POINTER)
		bpf_probe_read_user(&lock, sizeof(lock), (void *)(futex - sizeof(lock)));
	return lock;
}

/* The current thread, about to go back to user mode, tells where it has waited. */
static __always_inline void tell_stack(struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct stack_scratch *s;

	if (!t || !t->sampling.due)
		return;
	s = stack_begin(STACK_AFTER_WAIT, t, bpf_ktime_get_ns());
	if (!s)
		return;
	s->e.sequence = t->sampling.sequence;
	s->e.oldest = t->sampling.due;
	t->sampling.due = 0;
	s->e.lock = lock_behind(t, task);
	stack_user(s);
	stack_send(s, EVENT_STACK, TRACKER_OFFCPU);
}

/* As an errand it may be interrupted by another thread's, and there is one scratch for both. */
static int errand_stack(struct bpf_map *map, void *key, void *value)
{
	bpf_preempt_disable();
	tell_stack(bpf_get_current_task_btf());
	bpf_preempt_enable();
	return 0;
}

/* The thread is back on a CPU. */
static __always_inline void off_cpu_end(struct thread *t, struct task_struct *task, __u8 ready_state, __u64 now)
{
	struct weights weights;

	if (t->wait.gil) {
		if (gil_needs_stack(t))
			t->gil.sequence = begin_sample(t, task, now);
	} else if (weigh_wait(t, ready_state, now, &weights)) {
		sample_wait(t, task, ready_state, &weights, begin_sample(t, task, now), now);
	}
	if (!t->sampling.due)
		return;
	if (has_rseq(task) || !send_on_errand(task, errand_stack))
		ask_for_stack(t);
}

/* The thread came back on a CPU a while ago, and nobody told: a sample without a stack. */
static __always_inline void off_cpu_untold(struct thread *t, struct task_struct *task, __u8 ready_state, __u64 now)
{
	struct weights weights;

	if (!t->wait.gil && weigh_wait(t, ready_state, now, &weights))
		sample_wait(t, task, ready_state, &weights, new_sample(t), now);
}

/*
 * The current thread, not an interrupt, has woken one whose wait will be a sample because it was long:
 * where it stands now is where it released what was waited for.
 */
static __always_inline void tell_waker(const struct thread *sleeper, __u64 now)
{
	const struct wait *w = &sleeper->wait;
	const struct gil_wait *g = &sleeper->gil;
	__u64 asleep = now - w->start, sequence = next_sequence(&sleeper->sampling, sleeper->born);
	struct thread *waker;

	if (w->gil) {
		asleep += g->slept;
		if (g->sequence)
			sequence = g->sequence;
	}
	if (asleep < config.off_cpu_period_ns)
		return;
	waker = bpf_map_lookup_elem(&threads, &w->waker_tid);
	if (waker)
		take_stack(waker, STACK_OF_WAKER, (__u64)sleeper->tid << 32 | (__u32)sequence, now,
			   TRACKER_OFFCPU);
}

#endif
