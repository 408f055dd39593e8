/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks the native frames of the current thread.
 */
#ifndef UNDERSPAN_NATIVE_BPF_H
#define UNDERSPAN_NATIVE_BPF_H

#include "scratch.bpf.h"
#include "native.h"

/*
 * In: `task` is the current thread, `regs` are the registers with which it left user mode (all of
 * them are there, after a system call as after an interrupt). `s->e.h.tgid` is its process. Preemption
 * is off and page faults are not taken: memory is read with bpf_probe_read_user().
 *
 * Out: each frame's address by stack_push(), innermost first: regs->ip, then return addresses; how many
 * in s->e.native_frames, NATIVE_FRAMES at the most. Returns why it ended.
 */
static __always_inline enum stack_end walk_native(struct stack_scratch *s, struct task_struct *task,
						  struct pt_regs *regs)
{
	return STACK_ABSENT;
}

#endif
