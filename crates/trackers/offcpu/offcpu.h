/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the offcpu tracker: a wait that became a sample. Where the thread was comes in records of
 * their own (stack/stack.h), which have its `sequence`.
 */
#ifndef UNDERSPAN_OFFCPU_H
#define UNDERSPAN_OFFCPU_H

#include "../bpf/event.h"

struct off_cpu_event {
	struct event_header h; /* time: when the thread left the CPU */
	__u64 sequence;	       /* grows with each of the thread's samples */
	__u64 asleep_as;       /* which sample's stack in the kernel is also this one's; mostly an earlier one's */
	__u64 duration;	       /* until it was back on a CPU */
	__u64 runnable;	       /* the last part, after it was woken */
	__u64 gc_ns;	       /* of a wait for the GIL: a sibling collected */
	/* Nanoseconds that the sample stands for, of each of the states the wait consists of: */
	__u64 weight;	    /* `state` */
	__u64 gc_weight;    /* gc_wait */
	__u64 ready_weight; /* `ready_state` */
	__u64 futex;
	__s32 syscall;
	__s32 fd;
	__u32 futex_op;
	__u32 gc_tid;
	__u32 holder; /* of the GIL, 0 if not known */
	__u32 waker_tgid;
	__u32 waker_tid;
	char waker_comm[COMM_LEN];
	__u8 peer[16]; /* IPv6, or IPv4 in the first four bytes; network order */
	__u16 peer_port;
	__u16 family; /* 0: not a socket */
	__u8 state;
	__u8 ready_state;
	__u8 gil;	 /* the futex is the GIL's */
	__u8 python;	 /* the process has a GIL that we know */
	__u8 in_request; /* the thread has read a request that it has not answered */
	__u8 _pad[7];
};

/* Of so many threads whose wait goes on the stack is taken at once, at the most. */
#define ONGOING_AT_ONCE 256

#endif
