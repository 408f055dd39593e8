/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Connections that are older than us. Those that this host accepted are told from those that it opened
 * by what the kernel copies from a listening socket to each connection that is made on it.
 */
#ifndef UNDERSPAN_OLDER_H
#define UNDERSPAN_OLDER_H

#include "../bpf/emit.h"
#include "conn.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff_head___older {
	__u32 qlen;
};

struct hlist_node___older {
	struct hlist_node___older **pprev;
};

struct sock_common___older {
	struct hlist_node___older skc_bind_node;
	unsigned int skc_hash;
	unsigned short skc_family;
	volatile unsigned char skc_state;
};

struct sock___older {
	struct sock_common___older __sk_common;
	struct sk_buff_head___older sk_receive_queue;
	__u32 sk_max_ack_backlog;
	__u16 sk_protocol;
	__u16 sk_type;
};

struct ipv6_pinfo___older {
	int mcast_oif;
};

struct inet_sock___older {
	struct ipv6_pinfo___older *pinet6;
	int mc_index;
};

struct unix_sock___older {
	struct unix_address *addr;
};

#pragma clang attribute pop

/* The interface at which the client came in. Who calls connect() has none, since it is the one that its
 * multicasts would leave by. */
static __always_inline bool came_in(struct sock___older *sk)
{
	struct inet_sock___older *inet = (struct inet_sock___older *)bpf_skc_to_tcp_sock(sk);

	if (!inet)
		return false;
	if (inet->mc_index)
		return true;
	return sk->__sk_common.skc_family == AF_INET6 && bpf_core_field_exists(inet->pinet6) &&
	       inet->pinet6 && inet->pinet6->mcast_oif;
}

/* The length that listen() was given tells most, and at once; it may be 0. */
static __always_inline bool was_accepted_tcp(struct sock___older *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return sk->sk_protocol == IPPROTO_TCP &&
	       (state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT) &&
	       (sk->sk_max_ack_backlog || came_in(sk));
}

/* Abstract names have the upper half of the kernel's buckets, sockets that were not bound the lower. */
#define UNIX_HASH_MOD 255

/* bind() was called on this very socket. */
static __always_inline bool is_bound_unix(struct sock___older *sk)
{
	return sk->__sk_common.skc_bind_node.pprev || sk->__sk_common.skc_hash > UNIX_HASH_MOD;
}

/* The listener's name, without having been bound to it. */
static __always_inline bool was_accepted_unix(struct sock___older *sk)
{
	struct unix_sock___older *u = (struct unix_sock___older *)bpf_skc_to_unix_sock(sk);

	return u && sk->sk_type == SOCK_STREAM && sk->__sk_common.skc_state == TCP_ESTABLISHED &&
	       u->addr && !is_bound_unix(sk);
}

static __always_inline bool was_accepted(struct sock *sk)
{
	switch (sk->__sk_common.skc_family) {
	case AF_INET:
	case AF_INET6:
		return was_accepted_tcp((struct sock___older *)sk);
	case AF_UNIX:
		return was_accepted_unix((struct sock___older *)sk);
	}
	return false;
}

/* Follows such a connection from now on, unless it is followed. `is_new`: nothing was read from it. */
static __always_inline struct conn *take_up(struct sock *sk, bool is_new)
{
	struct conn *c = bpf_sk_storage_get(&conns, sk, NULL, 0);

	if (c)
		return c;
	c = bpf_sk_storage_get(&conns, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		count_lost(TRACKER_REQUEST, LOST_MAP_FULL);
		return NULL;
	}
	/* How long these bytes have been waiting is not known. */
	if (((struct sock___older *)sk)->sk_receive_queue.qlen)
		c->ready = bpf_ktime_get_ns();
	if (!is_new) {
		c->unsure = 1;
		c->number = 1; /* not the first, as far as anybody knows */
	}
	return c;
}

#endif
