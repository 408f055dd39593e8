// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where threads stand whose wait is not over, in the kernel and in native code. User space says which, runs
 * this, and reads the rest of their stacks, Python's, from outside.
 */
#define UNDERSPAN_WALKS_OTHERS
#include "offcpu.bpf.h"

/* Threads that user space asks about. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ONGOING_AT_ONCE);
	__type(key, __u32); /* tid */
	__type(value, __u8);
} ongoing SEC(".maps");

/* It may sleep: what is read of another process may have to be brought into memory first. */
SEC("iter.s/task")
int offcpu_ongoing(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct stack_scratch *s;
	struct pt_regs *regs;
	struct thread *t;
	__u32 tid;

	if (!task)
		return 0;
	tid = task->pid;
	if (!bpf_map_lookup_elem(&ongoing, &tid))
		return 0;
	t = bpf_map_lookup_elem(&threads, &tid);
	if (!t || t->tgid != (__u32)task->tgid || is_on_cpu(t->state) || task->on_cpu)
		return 0;
	/* The thread may go on meanwhile: user space looks at its ledger when it has all. */
	s = stack_begin(STACK_ONGOING, t, bpf_ktime_get_ns());
	if (!s)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	stack_kernel(s, task);
	s->e.native_end = walk_native(s, task, regs);
	stack_send(s, EVENT_STACK, TRACKER_OFFCPU);
	return 0;
}
