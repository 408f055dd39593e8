/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Threads without restartable sequences (Go, musl): nothing tells when one goes back to user mode, but
 * since Linux 6.18 it can be given an errand for that moment.
 */
#ifndef UNDERSPAN_ERRAND_BPF_H
#define UNDERSPAN_ERRAND_BPF_H

#include "../bpf/maps.h"
#include "scratch.bpf.h"

#ifndef bpf_ksym_exists
#define bpf_ksym_exists(symbol) (&(symbol) != 0)
#endif

/* Nothing of it is read; but libbpf takes no declaration for the kernel's definition. */
struct bpf_map {
	__u32 id;
};

/* By this name the kernel knows it. */
struct bpf_task_work {
	__u64 __opaque;
} __attribute__((aligned(8)));

struct errand {
	struct bpf_task_work work;
	__u64 _pad;
};

typedef int (*errand_callback)(struct bpf_map *map, void *key, void *value);

/* 6.18, and what it is called later. */
extern int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map,
					      errand_callback callback, void *aux)
	__attribute__((section(".ksyms"), weak));
extern int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map,
					 errand_callback callback) __attribute__((section(".ksyms"), weak));
extern void bpf_preempt_disable(void) __attribute__((section(".ksyms"), weak));
extern void bpf_preempt_enable(void) __attribute__((section(".ksyms"), weak));

STACKS struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tid */
	__type(value, struct errand);
} errands SEC(".maps");

static __always_inline bool has_rseq(struct task_struct *task)
{
	return !bpf_core_field_exists(task->rseq) || task->rseq;
}

static __always_inline struct errand *errand_of(__u32 tid)
{
	struct errand *errand = bpf_map_lookup_elem(&errands, &tid), none = {};

	if (errand)
		return errand;
	bpf_map_update_elem(&errands, &tid, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&errands, &tid);
}

/* `callback` runs in the thread's context before it is back in user mode; false: it will not. One that
 * is on its way already will do. */
static __always_inline bool send_on_errand(struct task_struct *task, errand_callback callback)
{
	struct errand *errand;

	if (bpf_ksym_exists(bpf_task_work_schedule_resume_impl)) {
		errand = errand_of(task->pid);
		if (errand)
			bpf_task_work_schedule_resume_impl(task, &errand->work, &errands, callback, NULL);
		return errand;
	}
	if (bpf_ksym_exists(bpf_task_work_schedule_resume)) {
		errand = errand_of(task->pid);
		if (errand)
			bpf_task_work_schedule_resume(task, &errand->work, &errands, callback);
		return errand;
	}
	return false;
}

#endif
