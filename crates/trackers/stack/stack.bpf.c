// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The maps of this folder, and the current thread's stack in user mode, sent.
 */
#define UNDERSPAN_DEFINE_STACKS
#include "stack.bpf.h"

/* Nothing is in the record yet but its head. */
static __always_inline void forget_frames(struct stack_scratch *s)
{
	s->used = 0;
	s->e.python_frames = 0;
	s->python.hash = 0;
}

/* If the thread stands where it stood when `before` was remembered, the record says so instead of frames. */
static __always_inline bool stands_again(struct stack_scratch *s, const struct stack_again *before,
					 struct unwind_memory *memory, struct task_struct *task)
{
	__u32 tgid = s->e.h.tgid;
	struct unwind_process *p = bpf_map_lookup_elem(&unwind_processes, &tgid);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	bool same;

	if (!p || !native_again(before, memory, regs, p->generation))
		return false;
	s->e.python_end = walk_python(s, task);
	same = s->python.hash == before->python && s->e.python_end == before->python_end;
	forget_frames(s);
	if (!same)
		return false;
	s->e.native_end = STACK_COMPLETE;
	s->e.again = before->time;
	return true;
}

int send_user_stack(__u32 moment)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct stack_scratch *s = bpf_map_lookup_elem(&stack_scratch, &moment);
	struct unwind_memory *memory = bpf_map_lookup_elem(&unwind_memory, &moment);
	const struct stack_again *before;
	struct again_key key;

	if (!s || !memory)
		return 0;
	s->e.place = place_of((struct pt_regs *)bpf_task_pt_regs(task));
	key = again_key(s);
	forget_frames(s);
	before = bpf_map_lookup_elem(&stacks_again, &key);
	if (before && stands_again(s, before, memory, task)) {
		stack_send(s, EVENT_STACK, TRACKER_OFFCPU);
		return 0;
	}
	stack_user(s);
	if (stack_send(s, EVENT_STACK, TRACKER_OFFCPU))
		remember_stack(s, memory);
	return 0;
}
