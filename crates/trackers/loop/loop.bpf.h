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

/* A thread that asks for events is back from a wait for some: if it is its loop's, and not one for
 * something else within an iteration, the next iteration begins. */
static __always_inline void loop_wait_ended(struct thread *t, __u64 now)
{
	struct loop *l = bpf_map_lookup_elem(&loops, &t->tid);

	if (!l || !l->asked || loop_kind_of(t->wait.syscall) != l->kind)
		return;
	loop_iteration_begins(l, t, now);
}

#endif
