/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What every record in the ring begins with. A record is this header and a body that the tracker's
 * own header defines; bindgen makes the Rust types from these same files.
 *
 * Times are CLOCK_MONOTONIC nanoseconds, pids are the initial namespace's.
 */
#ifndef UNDERSPAN_EVENT_H
#define UNDERSPAN_EVENT_H

#include "types.h"

#define COMM_LEN 16

enum event_kind {
	EVENT_PROCESS_FORK = 1, /* struct lifecycle_event: a watched process got a child */
	EVENT_PROCESS_EXEC = 2, /* struct lifecycle_event: any process started a program */
	EVENT_PROCESS_EXIT = 3, /* struct lifecycle_event: a watched process ended */
	EVENT_THREAD_START = 4, /* struct lifecycle_event: a watched process got a thread */
	EVENT_THREAD_EXIT = 5,	/* struct thread_exit_event (ledger) */
	EVENT_LISTEN = 6,	/* struct lifecycle_event: a process began to accept connections */
	EVENT_WAIT = 7,		/* struct wait_event (ledger) */
	EVENT_GIL = 8,		/* struct gil_event (gil) */
	EVENT_GC = 9,		/* struct gc_event (gc) */
	EVENT_REQUEST_READ = 10, /* struct request_read_event (request) */
	EVENT_REQUEST_SENT = 11, /* struct request_sent_event (request) */
	EVENT_REQUEST_END = 12,	 /* struct request_sent_event (request) */
	EVENT_STACK = 13,	 /* struct stack_event (stack): for EVENT_OFF_CPU or a waker */
	EVENT_OFF_CPU = 14,	 /* struct off_cpu_event (offcpu) */
	EVENT_ON_CPU = 15,	 /* struct stack_event (stack), with counters (oncpu) */
	EVENT_LOOP = 16,	 /* struct loop_event (loop) */
	EVENT_TCP_ACCEPT = 17,	 /* struct tcp_accept_event (tcp_accept) */
	EVENT_TCP_LISTENER = 18, /* struct tcp_listener_event (tcp_accept) */
	EVENT_TCP_CONNECT = 19,	 /* struct tcp_connect_event (tcp_connect) */
	EVENT_TCP_LOSS = 20,	 /* struct tcp_loss_event (tcp_loss) */
	EVENT_REQUEST_HEAD = 21, /* struct request_head_event (request) */
	EVENT_REQUEST_ANSWER = 22, /* struct request_answer_event (request) */
};

struct event_header {
	__u32 kind; /* enum event_kind */
	__u32 tgid;
	__u32 tid;
	__u32 _pad;
	__u64 time; /* when what it tells began */
	char comm[COMM_LEN];
};

struct lifecycle_event {
	struct event_header h;
	__u32 parent_tgid;
	__u32 _pad;
};

/* Why an event could not be recorded. One counter per tracker and reason. */
enum lost_reason {
	LOST_RING_FULL,	   /* user space was too slow */
	LOST_MAP_FULL,	   /* more threads, processes or connections than the map holds */
	LOST_TORN,	   /* a ledger changed while it was read from another CPU */
	LOST_UNPAIRED,	   /* an end without a beginning, or the other way round */
	LOST_UNREADABLE,   /* the process's memory could not be read */
	LOST_UNTOLD,	   /* a thread came on a CPU, or a connection ended, and the kernel did not tell */
	LOST_REASONS,
};

enum tracker_id {
	TRACKER_LEDGER,
	TRACKER_REQUEST,
	TRACKER_GC,
	TRACKER_GIL,
	TRACKER_OFFCPU,
	TRACKER_ONCPU,
	TRACKER_LOOP,
	TRACKER_TCP_ACCEPT,
	TRACKER_TCP_CONNECT,
	TRACKER_TCP_LOSS,
	TRACKERS,
};

#endif
