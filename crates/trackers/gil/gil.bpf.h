/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Waits for the GIL, without a probe in the interpreter: they are futex sleeps whose address lies in
 * the GIL's condition variable. take_gil() sleeps in slices of the switch interval (5 ms) until it
 * gets the GIL, so one wait is many sleeps; they are merged here. The ledger program, the only one
 * on sched_switch, calls these.
 */
#ifndef UNDERSPAN_GIL_BPF_H
#define UNDERSPAN_GIL_BPF_H

#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include "../offcpu/offcpu.bpf.h"
#include "gil.h"

/*
 * struct _gil_runtime_state is the same from 3.8 to 3.14. From `cond` to its end it is what threads
 * sleep on: cond (take_gil), mutex (both), switch_cond and switch_mutex (drop_gil, which waits until
 * the thread that asked for the GIL has it).
 */
#define GIL_LAST_HOLDER 8
#define GIL_COND 32
#define GIL_END 208

/* A thread whose sleep timed out still waits: it sleeps again after a few microseconds. One that a
 * sibling woke may lose the race for the GIL, also within microseconds; if it ran longer, it had it. */
#define STILL_WAITING_NS 200000
#define LOST_RACE_NS 30000

/* Threads that fight over a futex sleep so often that looking their process up each time would be
 * a tenth of what a switch costs. */
#define GIL_PLACE_NS 1000000

static __always_inline bool is_gil_futex(struct thread *t, __u64 address, __u64 now)
{
	struct gil_place *place = &t->gil_place;

	if (now - place->as_of >= GIL_PLACE_NS) {
		struct process *p = bpf_map_lookup_elem(&processes, &t->tgid);

		place->as_of = now;
		place->address = p ? p->gil : 0;
		place->tstate_pthread_offset = p ? p->tstate_pthread_offset : 0;
	}
	address -= place->address;
	return place->address && address >= GIL_COND && address < GIL_END;
}

/*
 * Who holds the GIL: its tid, 0 if not known. A thread state tells its thread's pthread_self() in
 * every version, and that means the same in every pid namespace.
 */
static __always_inline __u32 gil_holder(const struct thread *t)
{
	struct pthread_key key = { .tgid = t->tgid };
	__u64 tstate = 0;
	__u32 *tid;

	bpf_probe_read_user(&tstate, sizeof(tstate), (void *)(t->gil_place.address + GIL_LAST_HOLDER));
	if (!tstate)
		return 0;
	bpf_probe_read_user(&key.pthread, sizeof(key.pthread),
			    (void *)(tstate + t->gil_place.tstate_pthread_offset));
	tid = bpf_map_lookup_elem(&pthreads, &key);
	/* Its own name: the GIL was just let go, and the field is old. */
	return tid && *tid != t->tid ? *tid : 0;
}

/* The wait is over: the thread has (or had) the GIL. */
static __always_inline void gil_wait_flush(struct thread *t)
{
	struct gil_wait *g = &t->gil;
	struct gil_event *e;

	if (!g->start)
		return;
	if (g->end - g->start >= config.wait_threshold_ns && (e = reserve(TRACKER_GIL, sizeof(*e)))) {
		fill_header(&e->h, EVENT_GIL, t, g->start);
		e->duration = g->end - g->start;
		e->gc_ns = g->gc_ns;
		e->runnable_ns = g->runnable_ns;
		e->holder = g->holder;
		e->holder_ns = g->holder_ns;
		e->futex = t->wait.futex;
		e->slices = g->slices;
		e->gc_tid = g->gc_ns ? g->gc_tid : 0;
		e->_pad = 0;
		e->waker_tgid = g->waker_tgid;
		e->waker_tid = g->waker_tid;
		submit(e);
	}
	if (config.off_cpu_period_ns)
		sample_gil_wait(t);
	__builtin_memset(g, 0, sizeof(*g));
}

/* The thread goes to sleep on the GIL. */
static __always_inline void gil_sleep_begin(struct thread *t, __u64 now)
{
	struct gil_wait *g = &t->gil;
	__u64 ran = now - g->end;

	if (g->start && ran >= (g->waker_tid ? LOST_RACE_NS : STILL_WAITING_NS))
		gil_wait_flush(t);
	if (!g->start)
		g->start = now;
	g->slices++;
	g->waker_tid = 0;
	g->waker_tgid = 0;
	t->gc_before = collection_time(t->tgid, now, NULL);
	t->wait.holder = gil_holder(t);
}

/* The thread is back on a CPU after such a sleep. */
static __always_inline void gil_sleep_end(struct thread *t, __u64 now)
{
	struct gil_wait *g = &t->gil;
	struct wait *w = &t->wait;
	__u64 slept = now - w->start;

	g->end = now;
	g->slept += slept;
	if (w->woken)
		g->runnable_ns += now - w->woken;
	g->waker_tgid = w->waker_tgid;
	g->waker_tid = w->waker_tid;

	/* Weighted majority (Boyer and Moore): exact if one holder had most of the time. */
	if (!w->holder)
		return;
	if (g->holder == w->holder) {
		g->holder_weight += slept;
		g->holder_ns += slept;
	} else if (slept > g->holder_weight) {
		g->holder = w->holder;
		g->holder_weight = slept - g->holder_weight;
		g->holder_ns = slept;
	} else {
		g->holder_weight -= slept;
	}
}

#endif
