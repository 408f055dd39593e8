// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where in its own code a thread has waited: taken when it goes back to user mode, in its own context,
 * so that its memory can be read.
 */
#include "offcpu.bpf.h"

/* Once after each switch-in of a thread that has registered rseq: all of glibc 2.35 and later. */
SEC("tp_btf/rseq_update")
int BPF_PROG(offcpu_resume, struct task_struct *task)
{
	__u32 zero = 0, *due = bpf_map_lookup_elem(&stack_due, &zero);

	if (!due || *due != task->pid)
		return 0;
	*due = 0;
	tell_stack(task);
	return 0;
}
