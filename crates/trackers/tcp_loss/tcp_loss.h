/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Record of the tcp_loss tracker: time that a connection lost, or why it ended early.
 */
#ifndef UNDERSPAN_TCP_LOSS_H
#define UNDERSPAN_TCP_LOSS_H

#include "../bpf/tcp_record.h"

enum tcp_loss_kind {
	TCP_NO_LOSS,
	TCP_FAST_RETRANSMIT,
	TCP_TAIL_LOSS_PROBE,
	TCP_RTO,
	TCP_SYN_RETRY,
	TCP_ZERO_WINDOW_LOCAL,
	TCP_ZERO_WINDOW_PEER,
	TCP_RESET_SENT,
	TCP_RESET_RECEIVED,
	TCP_DROP,
	TCP_LOSS_KINDS,
};

/* Why a reset was sent, or a packet dropped. The kernel has more reasons, and other numbers in each
 * version. */
enum tcp_loss_reason {
	TCP_REASON_NONE,
	TCP_REASON_OTHER,
	TCP_REASON_ABORT_ON_CLOSE, /* closed with data that was not read */
	TCP_REASON_ABORTED,	   /* closed with a linger time of 0, or disconnected */
	TCP_REASON_ABORT_ON_DATA,  /* data came after it was closed */
	TCP_REASON_ABORT_ON_MEMORY,
	TCP_REASON_KEEPALIVE_TIMEOUT,
	TCP_REASON_RECEIVE_BUFFER,
	TCP_REASON_MEMORY,
	TCP_REASON_BACKLOG,
	TCP_REASON_OUT_OF_ORDER_QUEUE,
	TCP_LOSS_REASONS,
};

struct tcp_loss_event {
	struct event_header h; /* time: when it began; tid: whose connection it is */
	__u64 duration;
	__u64 bytes; /* sent again, or dropped */
	__u32 retransmits;
	__u8 kind;   /* enum tcp_loss_kind */
	__u8 reason; /* enum tcp_loss_reason */
	__u8 backoff;
	__u8 _pad;
	struct tcp_ends ends;
};

#endif
