/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where in the kernel a thread slept. The kernel unwinds that by tables, which are seldom in a cache: some
 * twenty microseconds, on the way of a thread that has just been woken. Threads sleep in the same place
 * again and again, so the last stack is remembered with the places of its return addresses. If they all
 * stand there still, in the same system call, it is the same stack.
 *
 * The comparison is in global functions (asleep.bpf.c): they are verified once, not on every way to them.
 */
#ifndef UNDERSPAN_ASLEEP_BPF_H
#define UNDERSPAN_ASLEEP_BPF_H

#include "../stack/stack.bpf.h"

/* Whether the thread, whose stack pointer this is, sleeps where it was told to. */
int asleep_still(struct thread *t, __u64 sp);

/* The thread's stack that has just been unwound, and told as that sample's. */
int remember_asleep(struct thread *t, __u64 sp, __u64 sequence);

/*
 * Tells where the thread, which is about to go on, slept: in a record of the sample `sequence`, unless an
 * earlier one's still holds. Returns the sequence of the sample that tells.
 */
static __always_inline __u64 tell_asleep(struct thread *t, struct task_struct *task, __u64 sequence, __u64 now)
{
	__u64 sp = task->thread.sp;
	struct stack_scratch *s;

	if (asleep_still(t, sp))
		return t->asleep.sequence;
	t->asleep.frames = 0;
	s = stack_begin(STACK_ASLEEP, t, now);
	if (!s)
		return sequence;
	s->e.sequence = sequence;
	stack_kernel(s, task);
	if (stack_send(s, EVENT_STACK, TRACKER_OFFCPU))
		remember_asleep(t, sp, sequence);
	return sequence;
}

#endif
