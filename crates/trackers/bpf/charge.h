/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Charging time to a ledger. Whoever moves a thread to another state settles it first, so the cells
 * always sum to the time between `born` and `since`.
 */
#ifndef UNDERSPAN_CHARGE_H
#define UNDERSPAN_CHARGE_H

#include "maps.h"

static __always_inline bool is_blocked(__u8 state)
{
	return state > STATE_THROTTLED;
}

static __always_inline bool is_on_cpu(__u8 state)
{
	return state == STATE_RUNNING || state == STATE_GC_RUN;
}

/*
 * The current thread is on a CPU, and its ledger has it waiting still: nobody told that it came. Ends the
 * wait. Who reads or marks the ledger of the thread that runs asks is_on_cpu() first. (ledger.bpf.c)
 */
int arrive_untold(__u64 now);

/* Nanoseconds that the process has spent collecting garbage, up to `now`. */
static __always_inline __u64 collection_time(__u32 tgid, __u64 now, __u32 *who)
{
	struct collections *c = bpf_map_lookup_elem(&collections, &tgid);
	__u64 since, total;

	if (!c)
		return 0;
	since = *(volatile __u64 *)&c->since;
	total = *(volatile __u64 *)&c->total;
	/* It ended in between: `total` may or may not have it yet. Read again. */
	if (since != *(volatile __u64 *)&c->since) {
		since = *(volatile __u64 *)&c->since;
		total = *(volatile __u64 *)&c->total;
	}
	if (who)
		*who = c->tid;
	return total + (since && now > since ? now - since : 0);
}

/* How much of `elapsed`, slept waiting for the GIL, a sibling spent collecting. */
static __always_inline __u64 collection_overlap(struct thread *t, __u64 now, __u64 elapsed)
{
	__u32 who = 0;
	__u64 overlap = collection_time(t->tgid, now, &who) - t->gc_before;

	if ((__s64)overlap <= 0 || who == t->tid)
		return 0;
	t->gil.gc_tid = who;
	return overlap < elapsed ? overlap : elapsed;
}

/* Adds to one cell. The bound is checked on the very register that is the index: verifiers before
 * Linux 6.3 forget what they know of a number when the compiler keeps it on the stack. */
static __always_inline void add_time(__u64 *ns, __u64 state, __u64 elapsed)
{
	barrier_var(state);
	if (state < STATES)
		ns[state] += elapsed;
}

/* Charges the time since the last settlement to the thread's state. */
static __always_inline void settle(struct thread *t, __u64 now)
{
	__u64 elapsed = now - t->since;
	__u8 state = t->state;

	if ((__s64)elapsed <= 0)
		return;
	if (state == STATE_GIL_WAIT) {
		__u64 gc = collection_overlap(t, now, elapsed);

		t->ns[STATE_GC_WAIT] += gc;
		t->gc_before += gc;
		t->gil.gc_ns += gc;
		elapsed -= gc;
	}
	add_time(t->ns, state, elapsed);
	t->since = now;
}

/*
 * The same for the current thread, where it may be preempted: in a uprobe. A switch may charge the ledger
 * between any two instructions here, so the span is claimed before it is charged; a span that a switch has
 * claimed meanwhile is charged already.
 */
static __always_inline void settle_in_uprobe(struct thread *t, __u64 now)
{
	__u64 since = *(volatile __u64 *)&t->since;
	__u64 state = *(volatile __u8 *)&t->state;

	if ((__s64)(now - since) <= 0 || __sync_val_compare_and_swap(&t->since, since, now) != since)
		return;
	barrier_var(state);
	if (state < STATES)
		__sync_fetch_and_add(&t->ns[state], now - since);
}

static __always_inline struct pthread_key pthread_key(const struct thread *t)
{
	return (struct pthread_key){ .pthread = t->pthread, .tgid = t->tgid };
}

/* Remembers which thread the task's fs base, pthread_self(), belongs to. */
static __always_inline void learn_pthread(struct thread *t, struct task_struct *task)
{
	struct pthread_key key;

	t->pthread = task->thread.fsbase;
	key = pthread_key(t);
	bpf_map_update_elem(&pthreads, &key, &t->tid, BPF_ANY);
}

static __always_inline __u8 on_cpu_state(const struct thread *t)
{
	return t->collecting ? STATE_GC_RUN : STATE_RUNNING;
}

#endif
