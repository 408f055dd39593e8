/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the tcp_connect tracker: an attempt to connect is over.
 */
#ifndef UNDERSPAN_TCP_CONNECT_H
#define UNDERSPAN_TCP_CONNECT_H

#include "../bpf/tcp_record.h"

struct tcp_connect_event {
	struct event_header h; /* time: when the first SYN was sent; tid: who connected */
	__u64 duration;
	__s32 error;	       /* the socket's errno, 0: it has none */
	__u32 retransmits;     /* SYNs sent again */
	__u8 connected;
	__u8 sent; /* at least one SYN left */
	__u8 _pad[6];
	struct tcp_ends ends;
};

#endif
