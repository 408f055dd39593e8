/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the gil tracker: one wait for the GIL, its short sleeps merged.
 */
#ifndef UNDERSPAN_GIL_H
#define UNDERSPAN_GIL_H

#include "../bpf/event.h"

struct gil_event {
	struct event_header h; /* time: when the first sleep began */
	__u64 duration;	       /* until the thread was back on a CPU with the GIL */
	__u64 gc_ns;	       /* overlap with a sibling's collections */
	__u64 runnable_ns;     /* woken, no CPU yet */
	__u64 holder_ns;       /* how long it was seen holding the GIL */
	__u64 futex;
	__u32 holder; /* who held the GIL for most of it, 0 if not known */
	__u32 slices;
	__u32 gc_tid; /* who collected, 0 if nobody did */
	__u32 waker_tgid;
	__u32 waker_tid; /* who released the GIL in the end */
	__u32 _pad;
};

#endif
