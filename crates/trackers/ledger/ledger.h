/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Records of the ledger tracker.
 */
#ifndef UNDERSPAN_LEDGER_H
#define UNDERSPAN_LEDGER_H

#include "../bpf/event.h"
#include "states.h"

/* One wait of at least the threshold, from leaving the CPU to coming back to it. */
struct wait_event {
	struct event_header h; /* time: when it left the CPU */
	__u64 duration;
	__u64 runnable; /* the part after it was woken */
	__u64 futex;
	__s32 syscall;
	__s32 fd;
	__u32 waker_tgid;
	__u32 waker_tid;
	char waker_comm[COMM_LEN];
	__u32 instead_tgid; /* who had the CPU until then */
	__u32 instead_tid;
	char instead_comm[COMM_LEN];
	__u8 peer[16]; /* IPv6, or IPv4 in the first four bytes; network order */
	__u8 local[16];
	__u16 peer_port;
	__u16 local_port;
	__u16 family; /* 0: not a socket */
	__u8 state;
	__u8 _pad;
};

/* A watched thread ended; its last ledger. */
struct thread_exit_event {
	struct event_header h; /* time: when the ledger began */
	__u64 until;	       /* when it ended */
	__u64 ns[STATES];
};

#endif
