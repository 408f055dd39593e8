/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the gc tracker: one garbage collection.
 */
#ifndef UNDERSPAN_GC_H
#define UNDERSPAN_GC_H

#include "../bpf/event.h"

/* How a collection was seen, best first. */
enum gc_rung {
	GC_RUNG_NONE,
	GC_RUNG_USDT,
	GC_RUNG_SYMBOL,
	GC_RUNG_WATCHPOINT,
};

struct gc_event {
	struct event_header h; /* time: when it began */
	__u64 duration;
	__u64 cpu; /* the part of it that the thread was on a CPU */
	__s64 collected; /* objects, -1 if not known */
	__s32 generation; /* -1 if not known */
	__u32 rung;	  /* enum gc_rung */
};

#endif
