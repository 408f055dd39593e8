/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the loop tracker: an iteration of an event loop that took too long.
 */
#ifndef UNDERSPAN_LOOP_H
#define UNDERSPAN_LOOP_H

#include "../bpf/event.h"
#include "states.h"

/* How a loop asks for events. */
enum loop_kind {
	LOOP_EPOLL,
	LOOP_POLL,
	LOOP_SELECT,
	LOOP_KINDS,
};

struct loop_event {
	struct event_header h; /* time: when it had been given events */
	__u64 duration;	       /* until it asked for more */
	__u64 ns[STATES];      /* what its thread did meanwhile */
	__s32 fd;	       /* of the epoll instance, -1 for poll and select */
	__u8 kind;	       /* enum loop_kind */
	__u8 _pad[3];
};

#endif
