/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Is this an interrupt? Then `current` is a bystander, and nothing that happens is its doing.
 */
#ifndef UNDERSPAN_INTERRUPT_H
#define UNDERSPAN_INTERRUPT_H

#include "maps.h"
#include "read.h"

/* NMI, hard interrupt, and softirq being served (not merely disabled): linux/preempt.h */
#define INTERRUPT_MASK (0x00f00000 | 0x000f0000 | 0x00000100)

/*
 * The preemption count is a per-CPU variable that kernels built without KALLSYMS_ALL do not let
 * programs name. Its distance from another per-CPU variable, the run queue, is in BTF
 * (config.preempt_count_from_rq), and the run queue's address is in the current task.
 */
static __always_inline bool in_interrupt(struct task_struct *task)
{
	__u64 address;

	if (!task->pid)
		return true; /* the idle task wakes nobody by itself */
	if (!config.preempt_count_from_rq)
		return true; /* nobody is named rather than a bystander */
	address = (__u64)task->se.cfs_rq->rq + config.preempt_count_from_rq;
	return read_word(address) & INTERRUPT_MASK;
}

#endif
