// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where in its own code a thread has waited: taken when it goes back to user mode, in its own context,
 * so that its memory can be read.
 */
#include "offcpu.bpf.h"

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

static __always_inline void tell_stack(struct task_struct *task)
{
	__u32 zero = 0, tid = task->pid, *due = bpf_map_lookup_elem(&stack_due, &zero);
	struct stack_scratch *s;
	struct thread *t;

	if (!due || *due != tid)
		return;
	*due = 0;
	t = bpf_map_lookup_elem(&threads, &tid);
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

/* Once after each switch-in of a thread that has registered rseq: all of glibc 2.35 and later. */
SEC("tp_btf/rseq_update")
int BPF_PROG(offcpu_resume, struct task_struct *task)
{
	tell_stack(task);
	return 0;
}
