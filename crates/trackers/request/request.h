/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Records of the request tracker. A request is told in parts: read, head (for every further piece of
 * it, if it came in several), answer, sent (again for every further write), end. User space puts
 * them together by id.
 */
#ifndef UNDERSPAN_REQUEST_H
#define UNDERSPAN_REQUEST_H

#include "../bpf/event.h"
#include "states.h"

#define REQUEST_HEAD 2048 /* first bytes of a request: enough for the traceparent header */
#define ANSWER_HEAD 16	  /* first bytes of an answer: "HTTP/1.1 200 OK" */
#define ANSWER_START 1024 /* first bytes of an answer: enough for the header that says how long it is */

#define SENDS_TOLD 16 /* writes of an answer that are told one by one */

enum request_end {
	END_NOT,
	END_NEXT,   /* the next request was read, or an attempt to read found nothing */
	END_CLOSED, /* the server closed */
	END_PEER_CLOSED,
	END_RESET,
};

/* The first bytes were read. Only head_len bytes of the head are sent. */
struct request_read_event {
	struct event_header h; /* time: when it was read */
	__u64 id;
	__u64 ready;	/* first byte in the kernel, 0 if not seen */
	__u64 accepted; /* 0: not seen, or not this connection's first request */
	__u64 born;	/* where the reading thread's ledger began, 0: it could not be read */
	__u64 ns[STATES]; /* the ledger, when it read */
	__u32 accept_tid;
	__u32 number; /* of its connection, from 0 */
	__u8 peer[16];
	__u8 local[16];
	__u16 peer_port;
	__u16 local_port;
	__u16 family;
	__u16 head_len;
	__u32 bytes;
	__u8 head_open; /* the head is not over: more of it may follow */
	__u8 unsure;	/* perhaps the rest of a request whose beginning was not seen */
	__u8 _pad[2];
	__u8 head[REQUEST_HEAD];
};

/* More bytes of a head that was not over. Only len bytes are sent. */
struct request_head_event {
	struct event_header h;
	__u64 id;
	__u32 at; /* that much of the head was told before */
	__u32 len;
	__u8 head[REQUEST_HEAD];
};

/* The first write of an answer that is HTTP/1.x, of which `len` bytes are told. Comes before its
 * request_sent_event. */
struct request_answer_event {
	struct event_header h;
	__u64 id;
	__u32 len;
	__u32 _pad;
	__u8 start[ANSWER_START];
};

/* Bytes of the answer were sent, or the request ended. */
struct request_sent_event {
	struct event_header h; /* tid: who sent; time: when */
	__u64 id;
	__u64 bytes_in;
	__u64 bytes_out;
	__u64 ns[STATES]; /* the reading thread's time since it read the request */
	__u32 number;
	__u32 ledger_ok; /* 0: the reading thread is gone, or its ledger could not be read */
	__u8 end;	 /* enum request_end */
	__u8 shared_thread;
	__u8 answered; /* something was sent */
	__u8 answer_len;
	__u8 last_chunk; /* the write ended as chunked answers end */
	__u8 _pad[3];
	char answer[ANSWER_HEAD];
};

#endif
