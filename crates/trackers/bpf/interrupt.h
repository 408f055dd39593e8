/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Is this an interrupt? Then `current` is a bystander, and nothing that happens is its doing.
 */
#ifndef UNDERSPAN_INTERRUPT_H
#define UNDERSPAN_INTERRUPT_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Linux 6.2 moved the count into pcpu_hot, 6.15 moved it back. */
struct pcpu_hot {
	int preempt_count;
} __attribute__((preserve_access_index));

extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;

/* NMI, hard interrupt, and softirq being served (not merely disabled): linux/preempt.h */
#define INTERRUPT_MASK (0x00f00000 | 0x000f0000 | 0x00000100)

static __always_inline bool in_interrupt(void)
{
	int count = 0;

	if (bpf_ksym_exists(&pcpu_hot))
		count = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	else if (bpf_ksym_exists(&__preempt_count))
		count = *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	return count & INTERRUPT_MASK;
}

#endif
