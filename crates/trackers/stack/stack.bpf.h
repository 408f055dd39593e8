/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Taking a stack:
 *
 *	s = stack_begin(moment, t, now)		who, when; no frames
 *	stack_kernel(s, task)			the kernel's part of a thread that is not running, or
 *	stack_user(s)				the current thread's native and Python part, or both
 *	stack_send(s, EVENT_STACK, tracker)	into the ring, or counted as lost
 *
 * send_user_stack() is the last two; if the thread stands where it stood before, it says that instead. A
 * record is put together in a scratch of its CPU, one for each moment: the sampling clock may interrupt a
 * program that takes another stack.
 */
#ifndef UNDERSPAN_STACK_BPF_H
#define UNDERSPAN_STACK_BPF_H

#include "../bpf/emit.h"
#include "again.bpf.h"
#include "errand.bpf.h"
#include "native.bpf.h"
#include "python.bpf.h"
#include "scratch.bpf.h"

STACKS struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STACK_MOMENTS);
	__type(key, __u32);
	__type(value, struct stack_scratch);
} stack_scratch SEC(".maps");

/* The thread that last came on this CPU and is to tell its stack when it goes back to user mode. */
STACKS struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32); /* tid */
} stack_due SEC(".maps");

/* What lies above a sleeping thread's stack pointer in the kernel (offcpu/asleep.bpf.h). */
struct asleep_words {
	__u64 at[ASLEEP_WORDS];
};

STACKS struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct asleep_words);
} asleep_words SEC(".maps");

static __always_inline void ask_for_stack(const struct thread *t)
{
	__u32 zero = 0, *due = bpf_map_lookup_elem(&stack_due, &zero);

	if (due)
		*due = t->tid;
}

static __always_inline struct stack_scratch *stack_begin(enum stack_moment moment, const struct thread *t,
							 __u64 now)
{
	__u32 slot = moment;
	struct stack_scratch *s = bpf_map_lookup_elem(&stack_scratch, &slot);

	if (!s)
		return NULL;
	__builtin_memset(&s->e, 0, sizeof(s->e));
	s->used = 0;
	fill_header(&s->e.h, EVENT_STACK, t, now);
	s->e.moment = moment;
	s->e.loop = t->loop_kind != 0;
	s->e.kernel_end = STACK_ABSENT;
	s->e.native_end = STACK_ABSENT;
	s->e.python_end = STACK_ABSENT;
	return s;
}

/* What bpf_get_stack() or bpf_get_task_stack() put into s->words. Comes first: frames are in order. */
static __always_inline void stack_kernel_taken(struct stack_scratch *s, long bytes)
{
	if (bytes <= 0 || bytes > (long)(KERNEL_FRAMES * sizeof(__u64))) {
		s->e.kernel_end = STACK_UNREADABLE;
		return;
	}
	s->used = s->e.kernel_frames = bytes / sizeof(__u64);
	s->e.kernel_end = s->used == KERNEL_FRAMES ? STACK_TOO_DEEP : STACK_COMPLETE;
}

/* Where in the kernel a thread sleeps. */
static __always_inline void stack_kernel(struct stack_scratch *s, struct task_struct *task)
{
	stack_kernel_taken(s, bpf_get_task_stack(task, s->words, KERNEL_FRAMES * sizeof(__u64), 0));
}

/* The current thread's frames in user mode. */
static __always_inline void stack_user(struct stack_scratch *s)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	s->e.native_end = walk_native(s, task, regs);
	s->e.python_end = walk_python(s, task);
}

/* False: it is lost. */
static __always_inline bool stack_send(struct stack_scratch *s, enum event_kind kind, enum tracker_id tracker)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	__u64 used = s->used;

	barrier_var(used);
	if (used > STACK_WORDS)
		return false;
	s->e.h.kind = kind;
	if (bpf_ringbuf_output(&events, s, sizeof(s->e) + used * sizeof(__u64),
			       waiting > WAKEUP_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP)) {
		count_lost(tracker, LOST_RING_FULL);
		return false;
	}
	return true;
}

/*
 * Sends the current thread's stack in user mode, or says as which one it stands again: for AFTER_WAIT and
 * OF_WAKER. What else the record has is in the moment's scratch. A global function: it is verified once, and
 * not in every program that takes stacks.
 */
int send_user_stack(__u32 moment);

/* The same. `sequence`: see struct stack_event. */
static __always_inline void take_stack(const struct thread *t, enum stack_moment moment, __u64 sequence,
				       __u64 now)
{
	struct stack_scratch *s = stack_begin(moment, t, now);

	if (!s)
		return;
	s->e.sequence = sequence;
	send_user_stack(moment);
}

#endif
