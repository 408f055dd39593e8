/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's types that packets need, with only the fields that are read. It stands in for
 * bpf/kernel.h, which has those that threads need. CO-RE relocates every access.
 */
#ifndef UNDERSPAN_NETSTACK_KERNEL_BPF_H
#define UNDERSPAN_NETSTACK_KERNEL_BPF_H

#define UNDERSPAN_KERNEL_H
#define __VMLINUX_H__

#include "../bpf/types.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rb_node {
	unsigned long __rb_parent_color;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[];
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sk_buff_head {
	struct sk_buff *next;
	struct sk_buff *prev;
	__u32 qlen;
};

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	int sk_rx_dst_ifindex;
	__u16 sk_protocol;
	struct sock_cgroup_data sk_cgrp_data;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	__s64 tstamp;
	char cb[48];
	unsigned int len;
	int skb_iif;
	__u16 network_header;
	__be16 protocol;
	unsigned char *head;
	__u8 tstamp_type : 2;	     /* since 6.11: which clock tstamp is of; 0: CLOCK_REALTIME */
	__u8 mono_delivery_time : 1; /* before: tstamp is when it was to leave */
};

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
};

struct iphdr {
	__u8 protocol;
};

struct ipv6hdr {
	__u8 nexthdr;
};

struct nf_hook_state {
	__u8 pf;
	struct net *net;
};

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

/* In the order of the kernel's: it reads both. */
struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};

struct scm_timestamping_internal {
	struct timespec64 ts[3];
};

#pragma clang attribute pop

struct msghdr;

#define AF_INET6 10
#define NFPROTO_IPV6 10
#define NF_ACCEPT 1
#define TCP_ESTABLISHED 1
#define MSG_PEEK 2
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
/* On the wire. */
#define ETH_P_IP_BE 0x0008
#define ETH_P_IPV6_BE 0xdd86

#include "../bpf/read.h"
#include <bpf/bpf_tracing.h>

#endif
