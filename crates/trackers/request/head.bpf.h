/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The first bytes of a request, copied from the buffers into which they were just read. Where the head
 * is over is not searched for: that would cost every request more than its few bytes are worth. A head
 * that was sent whole ends with an empty line, and so do the bytes that were read.
 */
#ifndef UNDERSPAN_HEAD_H
#define UNDERSPAN_HEAD_H

#include "../bpf/emit.h"
#include "buffers.bpf.h"
#include "request.h"

/* Reads after the first in which a head may go on. A client that sends byte by byte is not followed
 * to the end. */
#define HEAD_PIECES 8

/* A place to build a record whose length varies; see copy_head() for the second half. */
struct head_scratch {
	union {
		struct request_read_event read;
		struct request_head_event more;
	};
	__u8 beyond[REQUEST_HEAD];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head_scratch);
} head_scratch SEC(".maps");

/* Copies the first of `bytes` that the current thread has just read; how many. */
static __always_inline __u32 read_head(__u8 *head, __u32 bytes)
{
	struct user_buffers buffers = {};

	user_buffers(&buffers, bytes);
	return copy_head(head, &buffers, bytes);
}

/* HTTP/1's methods are words in capitals. Other protocols seldom begin so, and have no such head. */
static __always_inline bool is_method(__u8 first)
{
	return first >= 'A' && first <= 'Z';
}

#define EMPTY_LINE 0x0a0d0a0d /* "\r\n\r\n" */

/* Whether the bytes that were read, of which `len` were copied to `head`, are the head's last; or what
 * follows them would leave a gap. */
static __always_inline bool is_over(const __u8 *head, __u32 len, __u32 bytes)
{
	__u32 last;

	if (len < bytes)
		return true;
	last = len - sizeof(__u32);
	barrier_var(last);
	return last < REQUEST_HEAD && *(const __u32 *)(head + last) == EMPTY_LINE;
}

static __always_inline void output(void *event, __u32 len, __u32 most)
{
	barrier_var(len);
	if (len <= most && bpf_ringbuf_output(&events, event, len, BPF_RB_NO_WAKEUP))
		count_lost(TRACKER_REQUEST, LOST_RING_FULL);
}

#endif
