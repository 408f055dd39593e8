/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Into the ring, or counted as lost.
 */
#ifndef UNDERSPAN_EMIT_H
#define UNDERSPAN_EMIT_H

#include "maps.h"

/* User space drains the ring ten times a second; it is woken only when the ring gets full, so that
 * an event costs no context switch of its own. */
#define WAKEUP_BYTES (2 << 20)

static __always_inline void count_lost(enum tracker_id tracker, enum lost_reason reason)
{
	__u32 cell = tracker * LOST_REASONS + reason;
	__u64 *count = bpf_map_lookup_elem(&lost, &cell);

	if (count)
		(*count)++;
}

static __always_inline void *reserve(enum tracker_id tracker, __u64 size)
{
	void *event = bpf_ringbuf_reserve(&events, size, 0);

	if (!event)
		count_lost(tracker, LOST_RING_FULL);
	return event;
}

static __always_inline void submit(void *event)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	bpf_ringbuf_submit(event, waiting > WAKEUP_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void fill_header(struct event_header *h, enum event_kind kind,
					const struct thread *t, __u64 time)
{
	h->kind = kind;
	h->tgid = t->tgid;
	h->tid = t->tid;
	h->_pad = 0;
	h->time = time;
	__builtin_memcpy(h->comm, t->comm, COMM_LEN);
}

#endif
