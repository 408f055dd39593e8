/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where the loop's side of a context switch is kept: an iteration begins when its thread comes back
 * from waiting for events.
 */
#ifndef UNDERSPAN_LOOP_BPF_H
#define UNDERSPAN_LOOP_BPF_H

#include "../bpf/maps.h"
#include "loop.h"

/* A thread that asks for events, and its current iteration. */
struct loop {
	__u64 since;	  /* when the iteration began */
	__u64 ns[STATES]; /* the thread's ledger then */
	__u64 asleep;	  /* in its calls, lately: nanoseconds */
	__u64 elsewhere;  /* asleep in others while it served no request */
	__u32 iterations; /* of this loop so far */
	__u32 strangers;  /* calls about something else since its last own one */
	__s32 fd;
	__u8 kind;
	__u8 asked; /* its latest call was for the loop's events, not about something else */
	__u8 _pad[2];
};

#ifdef UNDERSPAN_DEFINE_LOOPS
#define LOOPS
#else
#define LOOPS extern
#endif

LOOPS struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tid */
	__type(value, struct loop);
} loops SEC(".maps");

/* The thread's settled ledger is where the next iteration begins. */
static __always_inline void loop_iteration_begins(struct loop *l, const struct thread *t, __u64 now)
{
	l->since = now;
	__builtin_memcpy(l->ns, t->ns, sizeof(l->ns));
}

/* By the system call that the thread slept in: x86-64 numbers. */
static __always_inline int loop_kind_of(__s32 syscall)
{
	switch (syscall) {
	case 232: /* epoll_wait */
	case 281: /* epoll_pwait */
	case 441: /* epoll_pwait2 */
		return LOOP_EPOLL;
	case 7:	  /* poll */
	case 271: /* ppoll */
		return LOOP_POLL;
	case 23:  /* select */
	case 270: /* pselect6 */
		return LOOP_SELECT;
	}
	return LOOP_KINDS;
}

/* What a thread sleeps in that waits for something to do. */
static __always_inline bool waits_for_work(__u8 state)
{
	const __u32 states = 1U << STATE_POLL_WAIT | 1U << STATE_NET_READ | 1U << STATE_LOCK_WAIT |
			     1U << STATE_SLEEP | 1U << STATE_PIPE_IPC;

	return states >> (state & 31) & 1;
}

/* A thread that asks for events is back from a wait: if that was for its loop's, and not for something else
 * within an iteration, the next iteration begins. */
static __always_inline void loop_wait_ended(struct thread *t, __u64 now)
{
	struct wait *w = &t->wait;
	struct loop *l = bpf_map_lookup_elem(&loops, &t->tid);
	__u64 slept = w->start ? (w->woken ? w->woken : now) - w->start : 0;

	if (!l)
		return;
	if (w->state == STATE_POLL_WAIT && l->asked && loop_kind_of(w->syscall) == l->kind) {
		l->asleep += slept;
		loop_iteration_begins(l, t, now);
	} else if (!t->open_requests) {
		l->elsewhere += slept;
	}
}

#endif
