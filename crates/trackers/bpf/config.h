/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What user space tells the programs: once at load (struct config), and per process (struct process).
 */
#ifndef UNDERSPAN_CONFIG_H
#define UNDERSPAN_CONFIG_H

#include "../stack/python.h"
#include "types.h"

struct config {
	__u64 wait_threshold_ns; /* waits at least this long get a row of their own */
	__u64 gc_threshold_ns;	 /* so do collections */
	__u64 off_cpu_period_ns; /* waiting time per sample, at most 1 s; 0: no samples */
	__u64 idle_period_ns;	 /* the same of waits for a request, at most 1 s */
	__u64 loop_threshold_ns; /* and iterations of event loops */
	__u64 tick_ns;		 /* the kernel's: its jiffies */
	__s64 preempt_count_from_rq; /* see interrupt.h; 0: not known */
	__u8 discover;		 /* report every exec and listen, so that user space can choose */
	__u8 _pad[7];
};

/* What is known of a watched process. All zero: watched, and no Python that we can read. */
struct process {
	__u64 gil;		     /* address of the GIL, 0 if there is none or it failed its check */
	__u64 gc_collecting;	     /* address of the collector's flag, 0 if not known */
	__u64 gc_stats;		     /* address of generation_stats[3], 0 if not known */
	__u32 tstate_pthread_offset; /* PyThreadState.thread_id */
	__u32 gc_rung;		     /* enum gc_rung, which sees this process's collections */
	struct python_layout python; /* where its Python frames are */
};

#endif
