/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Records of the tcp_accept tracker.
 */
#ifndef UNDERSPAN_TCP_ACCEPT_H
#define UNDERSPAN_TCP_ACCEPT_H

#include "../bpf/tcp_record.h"

/* A connection was accepted. */
struct tcp_accept_event {
	struct event_header h; /* time: when the connection was there to be accepted; tid: who did */
	__u64 duration;	       /* until accept() returned it */
	__u64 handshake;       /* from the first SYN-ACK to the client's ACK, 0: not known */
	__u32 queue_length;    /* of the accept queue when it came, itself included */
	__u32 queue_limit;
	__u32 synacks; /* sent again */
	__u32 _pad;
	struct tcp_ends ends;
};

/* How a listening socket is, once a second. */
struct tcp_listener_event {
	struct event_header h; /* time: when it was read; tid: who listens */
	__u64 sock;	       /* which one */
	__u32 queue_length;    /* the most since it was read before */
	__u32 queue_limit;
	__u32 drops;	       /* since it was made */
	__u32 half_open;       /* handshakes in progress */
	struct tcp_ends ends;
};

#endif
