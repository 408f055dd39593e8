/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the netstack tracker's programs and user space exchange: histograms, filters, the clock.
 */
#ifndef UNDERSPAN_NETSTACK_H
#define UNDERSPAN_NETSTACK_H

#include "../bpf/types.h"

/* Where a packet's age is looked at. */
enum netstack_point {
	NETSTACK_IP_START,
	NETSTACK_TCP_START,
	NETSTACK_UDP_START,
	NETSTACK_TCP_SOCKET_ENQUEUED,
	NETSTACK_UDP_SOCKET_ENQUEUED,
	NETSTACK_TCP_SOCKET_READ,
	NETSTACK_TCP_SOCKET_READ_AFTER_GAP, /* an earlier segment was missing when it came */
	NETSTACK_UDP_SOCKET_READ,
	NETSTACK_POINTS,
};

/* Why a packet is in no histogram. */
enum netstack_lost {
	NETSTACK_LOST_MAP_FULL,	    /* more groups than the map holds */
	NETSTACK_LOST_UNSTAMPED,    /* it came before the kernel stamped packets, or on a way that does not */
	NETSTACK_LOST_CLOCK_STEP,   /* the wall clock was set meanwhile */
	NETSTACK_LOST_UNMATCHED,    /* a socket got it, and it is not known which packet it was */
	NETSTACK_LOST_REASONS,
};

/*
 * Buckets: the first up to 2^-24 s (60 ns), then four to the octave, each with its upper bound, and
 * the last beyond 2^8 s. These are the bounds of Prometheus' native histograms of schema 2.
 */
#define NETSTACK_BOUNDS 129
#define NETSTACK_BUCKETS (NETSTACK_BOUNDS + 1)

/* Values of 2^3 to 2^39 ns, each octave in 8 cells: no cell has more than one bound in it. */
#define NETSTACK_FIRST_OCTAVE 3
#define NETSTACK_LAST_OCTAVE 38
#define NETSTACK_CELLS ((NETSTACK_LAST_OCTAVE + 1) * 8)

struct netstack_key {
	__u8 point;    /* enum netstack_point */
	__u8 ipv6;
	__u16 _pad;
	__u32 ifindex; /* the interface that it came in by; 0 unless asked for */
	__u32 netns;   /* inode of the network namespace; 0 unless asked for */
	__u32 _pad2;
	__u64 cgroup;  /* of the socket; 0 unless asked for, or before the socket is known */
};

struct netstack_histogram {
	__u64 sum; /* nanoseconds */
	__u64 buckets[NETSTACK_BUCKETS];
};

/* Written by user space; a program that finds it wrong sets `paused` until it is written again. */
struct netstack_clock {
	__u64 real_offset; /* CLOCK_REALTIME - CLOCK_MONOTONIC */
	__u64 tai_offset;  /* CLOCK_TAI - CLOCK_MONOTONIC */
	__u64 valid_from;  /* stamps before this CLOCK_REALTIME may be of another clock */
	__u64 paused;
};

#define NETSTACK_CGROUPS 16

struct netstack_cgroup {
	__u64 id;
	__u32 level; /* of its ancestors, the root is 0 */
	__u32 _pad;
};

struct netstack_interface {
	__u32 netns;
	__u32 ifindex;
};

struct netstack_config {
	__u64 bounds[NETSTACK_BOUNDS]; /* in nanoseconds, each belongs to its bucket */
	__u8 cells[NETSTACK_CELLS];    /* the bucket in which a cell begins */
	struct netstack_cgroup cgroups[NETSTACK_CGROUPS];
	__u32 cgroup_count;
	__u32 min_queue; /* only sockets with so many packets waiting to be read */
	__u8 filter_pids;
	__u8 filter_interfaces;
	__u8 filter_netns;
	__u8 by_interface;
	__u8 by_cgroup;
	__u8 _pad[3];
};

#endif
