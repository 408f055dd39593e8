/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * TCP connections of watched processes, for the trackers tcp_accept, tcp_connect and tcp_loss.
 *
 * What is known of a connection lives in its socket's storage, and goes with the socket. A listening
 * socket has it too, and the kernel copies it to every connection that is made on it: thus a new
 * connection is known to be watched before anybody accepts it, and a handshake that fails leaves
 * nothing behind.
 */
#ifndef UNDERSPAN_TCP_H
#define UNDERSPAN_TCP_H

#include "emit.h"
#include "read.h"
#include "tcp_record.h"
#include <bpf/bpf_endian.h>

/* A time lost to retransmission that has not ended; kind 0: none. */
struct tcp_stall {
	__u64 start;
	__u64 bytes;	   /* that the kernel had sent again before it */
	__u32 retransmits; /* the same of segments */
	__u32 end_seq;	   /* acknowledged, it is over */
	__u32 sent_at;	   /* the timestamp that the first retransmission carries; 0: none was told */
	__u32 sent_seq;	   /* and where it begins */
	__u8 kind;	 /* enum tcp_loss_kind */
	__u8 backoff;
	__u8 recovering; /* the kernel calls it recovery or loss, and will say when it is over */
	__u8 verdict;	 /* enum tcp_verdict */
	__u32 _pad;
};

/* What the acknowledgement of the first segment that was sent again says of it. */
enum tcp_verdict {
	TCP_NO_VERDICT,
	TCP_LOST,
	TCP_LATE, /* the original arrived */
};

struct tcp_flow {
	__u64 listener;	     /* the kernel's struct sock on which it was made, 0: by connect() */
	__u64 connecting;    /* since then, 0: connected, or not seen */
	__u64 first_syn;     /* the same, and stays */
	__u64 window_filled; /* its peer has used up all of our window since then, 0: it has not */
	__u64 last_read;
	__u64 peer_closed;   /* the peer's window has had no room since then, 0: it has */
	__u32 peer_limited;  /* ticks for which the kernel said, by then, that the peer's window held it up */
	__u32 window_most;   /* the most that was left of our window */
	__u64 dropped;	     /* first of the drops that were not told yet */
	__u32 drops;
	__u32 drop_bytes;
	__u32 retransmits; /* the kernel's count of segments sent again, as far as it is known */
	__u64 retransmitted; /* the same of bytes */
	struct tcp_stall stall;
	__u32 tgid; /* who read it last; until then, who connected or listens */
	__u32 tid;
	__u8 window_closed; /* a reader found it filled */
	__u8 drop_reason;
	__u8 closed; /* its end was told */
	__u8 _pad[5];
};

SHARED struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct tcp_flow);
} tcp_flows SEC(".maps");

/* Connected, and waiting for accept(). By address, which is all that accept's return tells. */
struct tcp_waiting {
	__u64 established;
	__u64 handshake; /* 0: not known */
	__u32 queue_length;
	__u32 queue_limit;
	__u32 synacks;	 /* sent again */
	__u32 tgid;
	struct tcp_ends ends;
};

SHARED struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64); /* struct sock * */
	__type(value, struct tcp_waiting);
} tcp_waiting SEC(".maps");

/* ---- the kernel's types: the fields that are read ---- */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rb_root___tcp {
	struct rb_node *rb_node;
};

struct rb_node___tcp {
	struct rb_node *rb_left;
};

struct atomic___tcp {
	int counter;
};

struct sock___tcp {
	struct sock_common __sk_common;
	struct rb_root___tcp tcp_rtx_queue;
	struct socket *sk_socket;
	struct atomic___tcp sk_drops;
	int sk_err;
	__u16 sk_protocol;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
};

struct inet_sock___tcp {
	__be16 inet_sport;
};

struct icsk_ack___tcp {
	__u16 rcv_mss;
};

struct request_sock___tcp {
	struct request_sock___tcp *dl_next;
	__u8 num_retrans;
	struct sock *sk;
};

struct request_sock_queue___tcp {
	struct atomic___tcp qlen;
	struct request_sock___tcp *rskq_accept_head;
	struct request_sock___tcp *rskq_accept_tail;
};

struct inet_connection_sock___tcp {
	struct inet_sock___tcp icsk_inet;
	struct request_sock_queue___tcp icsk_accept_queue;
	__u8 icsk_ca_state : 5;
	__u8 icsk_backoff;
	struct icsk_ack___tcp icsk_ack;
};

struct tcp_options_received___tcp {
	__u32 rcv_tsecr;
	__u16 saw_tstamp : 1;
	__u16 snd_wscale : 4;
};

struct rcvq_space___tcp {
	__u64 time;
};

struct tcp_sock___tcp {
	struct inet_connection_sock___tcp inet_conn;
	struct tcp_options_received___tcp rx_opt;
	__u64 first_tx_mstamp;
	__u64 delivered_mstamp;
	__u64 bytes_retrans;
	__u32 mss_cache;
	__u32 packets_out;
	__u32 segs_out;
	__u32 total_retrans;
	__u32 srtt_us;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 tlp_high_seq;
	__u32 write_seq;
	__u32 rcv_nxt;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 max_window;
	__u64 tcp_wstamp_ns;
	__u32 chrono_start;
	__u32 chrono_stat[3];
	__u8 chrono_type : 2;
	__u32 tsoffset;
	__u8 tcp_usec_ts : 1; /* since 6.7 */
	struct rcvq_space___tcp rcvq_space;
};

struct sk_buff___tcp {
	__u64 skb_mstamp_ns;
	unsigned int len;
	unsigned char *data;
	char cb[48];
};

struct tcp_skb_cb___tcp {
	__u8 sacked;
};

struct tcp_request_sock___tcp {
	__u64 snt_synack;
};

struct trace_event_raw_tcp_retransmit_skb {
	int err; /* since 6.17 */
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
};

#pragma clang attribute pop

#define IPPROTO_TCP 6
/* In `sacked`: the segment was sent more than once. */
#define TCPCB_EVER_RETRANS 0x80

enum tcp_ca_state {
	TCP_CA_Open,
	TCP_CA_Disorder,
	TCP_CA_CWR,
	TCP_CA_Recovery,
	TCP_CA_Loss,
};

static __always_inline struct tcp_sock___tcp *tcp_sock(struct sock *sk)
{
	return (struct tcp_sock___tcp *)bpf_skc_to_tcp_sock(sk);
}

/* Sequence numbers wrap. */
static __always_inline __s32 seq_diff(__u32 a, __u32 b)
{
	return (__s32)(a - b);
}

static __always_inline struct tcp_flow *tcp_flow(struct sock *sk)
{
	return bpf_sk_storage_get(&tcp_flows, sk, NULL, 0);
}

static __always_inline struct tcp_flow *tcp_new_flow(struct sock *sk)
{
	return bpf_sk_storage_get(&tcp_flows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

/* What was sent again until now is known, or nobody asks. */
static __always_inline void retransmits_are_known(struct tcp_flow *f, struct tcp_sock___tcp *tp)
{
	f->retransmits = tp->total_retrans;
	f->retransmitted = tp->bytes_retrans;
}

static __always_inline bool is_watched(__u32 tgid)
{
	return bpf_map_lookup_elem(&processes, &tgid);
}

/* A socket that closes has given its port back already; what it sent from is still known. */
static __always_inline void fill_ends(struct tcp_ends *ends, struct sock *sk)
{
	struct sock_common *s = &sk->__sk_common;
	struct tcp_sock___tcp *tp = tcp_sock(sk);

	__builtin_memset(ends, 0, sizeof(*ends));
	ends->family = s->skc_family;
	if (ends->family == AF_INET) {
		bpf_core_read(ends->peer, 4, &s->skc_daddr);
		bpf_core_read(ends->local, 4, &s->skc_rcv_saddr);
	} else {
		bpf_core_read(ends->peer, 16, &s->skc_v6_daddr);
		bpf_core_read(ends->local, 16, &s->skc_v6_rcv_saddr);
	}
	ends->peer_port = bpf_ntohs(s->skc_dport);
	ends->local_port = s->skc_num;
	if (tp && !ends->local_port)
		ends->local_port = bpf_ntohs(tp->inet_conn.icsk_inet.inet_sport);
}

/* The same of a socket of which only the address is known. */
static __always_inline void fill_ends_at(struct tcp_ends *ends, __u64 sk)
{
	struct sock_common *s = &((struct sock *)sk)->__sk_common;

	__builtin_memset(ends, 0, sizeof(*ends));
	ends->family = BPF_CORE_READ(s, skc_family);
	if (ends->family == AF_INET) {
		bpf_core_read(ends->peer, 4, &s->skc_daddr);
		bpf_core_read(ends->local, 4, &s->skc_rcv_saddr);
	} else {
		bpf_core_read(ends->peer, 16, &s->skc_v6_daddr);
		bpf_core_read(ends->local, 16, &s->skc_v6_rcv_saddr);
	}
	ends->peer_port = bpf_ntohs(BPF_CORE_READ(s, skc_dport));
	ends->local_port = BPF_CORE_READ(s, skc_num);
}

/* The header of a record about a thread that need not be the current one. */
static __always_inline void fill_thread(struct event_header *h, enum event_kind kind, __u32 tgid,
					__u32 tid, __u64 time)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);

	h->kind = kind;
	h->tgid = tgid;
	h->tid = tid;
	h->_pad = 0;
	h->time = time;
	if (t)
		__builtin_memcpy(h->comm, t->comm, COMM_LEN);
	else
		__builtin_memset(h->comm, 0, COMM_LEN);
}

#endif
