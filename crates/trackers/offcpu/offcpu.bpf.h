/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * From a wait's end to a sample: the record itself (sample.bpf.c) and the kernel's part of the stack at
 * once, the part in user mode when the thread goes back there (offcpu.bpf.c). The ledger program calls
 * these.
 */
#ifndef UNDERSPAN_OFFCPU_BPF_H
#define UNDERSPAN_OFFCPU_BPF_H

#include "../bpf/charge.h"
#include "../stack/stack.bpf.h"
#include "asleep.bpf.h"
#include "offcpu.h"

/* In sample.bpf.c: a global function is verified once, and not on every way that leads to it. So the verifier does not
 * know that its thread is one: each asks. */

/* Whether the thread's wait, which is over and was not for the GIL, is a sample. If so, of how much. */
int weigh_wait(struct thread *t, __u64 now);
/* Tells of such a wait. `asleep_as`: see struct off_cpu_event. */
int sample_wait(struct thread *t, __u64 asleep_as, __u64 now);
/* Whether the thread's wait for the GIL will be a sample, were it over now, and has no stack yet. */
int gil_needs_stack(struct thread *t);
/* The thread's wait for the GIL is over. */
int sample_gil_wait(struct thread *t);

/*
 * Whether the thread, which serves requests and has none now, is in a state in which it waits for one. It may
 * wait for something else, such as a lock after its answer: looked at more coarsely, that has its share as well.
 */
static __always_inline bool waits_for_request(const struct thread *t, __u64 state)
{
	const __u32 states = 1U << STATE_POLL_WAIT | 1U << STATE_NET_READ | 1U << STATE_LOCK_WAIT;

	return t->serves && !t->open_requests && states >> (state & 31) & 1;
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

/* Begins a sample of a thread that is about to go on. Returns as which one it slept in the kernel. */
static __always_inline __u64 begin_sample(struct thread *t, struct task_struct *task, __u64 now)
{
	struct sampling *sampling = &t->sampling;
	__u64 sequence = new_sample(t);

	if (!sampling->due)
		sampling->due = sequence;
	return tell_asleep(t, task, sequence, now);
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
	send_user_stack(STACK_AFTER_WAIT);
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
static __always_inline void off_cpu_end(struct thread *t, struct task_struct *task, __u64 now)
{
	if (t->wait.gil) {
		if (gil_needs_stack(t)) {
			t->gil.asleep_as = begin_sample(t, task, now);
			t->gil.sequence = t->sampling.sequence;
		}
	} else if (weigh_wait(t, now)) {
		sample_wait(t, begin_sample(t, task, now), now);
	}
	if (!t->sampling.due)
		return;
	if (has_rseq(task) || !send_on_errand(task, errand_stack))
		ask_for_stack(t);
}

/* The thread came back on a CPU a while ago, and nobody told: a sample without a stack. */
static __always_inline void off_cpu_untold(struct thread *t, __u64 now)
{
	if (!t->wait.gil && weigh_wait(t, now))
		sample_wait(t, new_sample(t), now);
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
	if (asleep < (waits_for_request(sleeper, w->state) ? config.idle_period_ns : config.off_cpu_period_ns))
		return;
	waker = bpf_map_lookup_elem(&threads, &w->waker_tid);
	if (waker)
		take_stack(waker, STACK_OF_WAKER, (__u64)sleeper->tid << 32 | (__u32)sequence, now);
}

#endif
