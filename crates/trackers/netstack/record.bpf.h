/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * From an age to a count in a histogram, through the filters.
 */
#ifndef UNDERSPAN_NETSTACK_RECORD_BPF_H
#define UNDERSPAN_NETSTACK_RECORD_BPF_H

#include "kernel.bpf.h"
#include "netstack.h"

const volatile struct netstack_config netstack_config SEC(".rodata.config") = {};

/* The namespace that is looked at, if it is but one; else 0. */
volatile __u32 netstack_only_netns SEC(".data.netns") = 0;

/* Ungrouped: by point and family. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NETSTACK_POINTS * 2);
	__type(key, __u32);
	__type(value, struct netstack_histogram);
} plain SEC(".maps");

/* Grouped. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct netstack_key);
	__type(value, struct netstack_histogram);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct netstack_histogram);
} blank SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NETSTACK_POINTS * NETSTACK_LOST_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* tgid */
	__type(value, __u8);
} pids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct netstack_interface);
	__type(value, __u8);
} interfaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* inode */
	__type(value, __u8);
} namespaces SEC(".maps");

/* What is remembered of a socket; it goes with the socket. */
struct socket_note {
	__u32 gap_start; /* bytes that came while earlier ones were missing: from here */
	__u32 gap_end;	 /* to here; the same: none */
	__u32 wanted;	 /* a process that was asked for reads it */
	__u32 first_ifindex; /* of the datagram that will be read next */
	__u64 first_stamp;   /* 0: there is none, or it is not known */
	bool first_ipv6;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_note);
} notes SEC(".maps");

static __always_inline void count_lost(enum netstack_point point, enum netstack_lost reason)
{
	__u32 cell = point * NETSTACK_LOST_REASONS + reason;
	__u64 *count = bpf_map_lookup_elem(&lost, &cell);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 octave = 0, bucket;
	__u64 rest = ns, cell;

	if (ns >> 32) {
		rest >>= 32;
		octave = 32;
	}
	if (rest >> 16) {
		rest >>= 16;
		octave += 16;
	}
	if (rest >> 8) {
		rest >>= 8;
		octave += 8;
	}
	if (rest >> 4) {
		rest >>= 4;
		octave += 4;
	}
	if (rest >> 2) {
		rest >>= 2;
		octave += 2;
	}
	octave += rest >> 1;
	if (octave < NETSTACK_FIRST_OCTAVE)
		return 0;
	if (octave > NETSTACK_LAST_OCTAVE)
		return NETSTACK_BUCKETS - 1;
	cell = octave * 8 + ((ns >> (octave - 3)) & 7);
	/* The compiler knows that it is; Linux 6.1 lost track of it, and wants to see the question. */
	barrier_var(cell);
	if (cell >= NETSTACK_CELLS)
		return NETSTACK_BUCKETS - 1;
	bucket = netstack_config.cells[cell];
	if (bucket < NETSTACK_BOUNDS && ns > netstack_config.bounds[bucket])
		bucket++;
	return bucket;
}

/* Where a packet was seen, and whose it is. */
struct sighting {
	enum netstack_point point;
	bool ipv6;
	__u32 ifindex;
	__u32 netns;
	__u64 cgroup;
};

static __always_inline struct netstack_histogram *grouped(const struct sighting *at)
{
	struct netstack_key key = { .point = at->point, .ipv6 = at->ipv6 };
	struct netstack_histogram *histogram, *empty;
	__u32 zero = 0;

	if (netstack_config.by_interface) {
		key.ifindex = at->ifindex;
		key.netns = at->netns;
	}
	if (netstack_config.by_cgroup)
		key.cgroup = at->cgroup;
	histogram = bpf_map_lookup_elem(&histograms, &key);
	if (histogram)
		return histogram;
	empty = bpf_map_lookup_elem(&blank, &zero);
	if (!empty)
		return 0;
	bpf_map_update_elem(&histograms, &key, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&histograms, &key);
}

static __always_inline void record(const struct sighting *at, __u64 age)
{
	struct netstack_histogram *histogram;
	__u32 cell = at->point * 2 + at->ipv6, bucket;

	if (netstack_config.by_interface || netstack_config.by_cgroup)
		histogram = grouped(at);
	else
		histogram = bpf_map_lookup_elem(&plain, &cell);
	if (!histogram) {
		count_lost(at->point, NETSTACK_LOST_MAP_FULL);
		return;
	}
	bucket = bucket_of(age);
	if (bucket >= NETSTACK_BUCKETS)
		return;
	/* A thread that reads can be interrupted by one more that does. */
	__sync_fetch_and_add(&histogram->sum, age);
	__sync_fetch_and_add(&histogram->buckets[bucket], 1);
}

/* Whether what belongs to the packet alone was asked for. */
static __always_inline bool place_is_wanted(const struct sighting *at)
{
	/* Mostly there is one. */
	if (netstack_config.filter_netns && at->netns != netstack_only_netns &&
	    !bpf_map_lookup_elem(&namespaces, &at->netns))
		return false;
	if (netstack_config.filter_interfaces) {
		struct netstack_interface key = { .netns = at->netns, .ifindex = at->ifindex };

		if (!bpf_map_lookup_elem(&interfaces, &key))
			return false;
	}
	return true;
}

/* Filters that only a socket can pass: before it is known, nothing is counted. */
static __always_inline bool needs_socket(void)
{
	return netstack_config.filter_pids || netstack_config.cgroup_count || netstack_config.min_queue;
}

/* A cgroup is wanted if it or one above it is. */
static __always_inline bool cgroup_is_wanted(const struct cgroup *cgroup)
{
	int level = BPF_CORE_READ(cgroup, level);

	for (__u32 i = 0; i < NETSTACK_CGROUPS && i < netstack_config.cgroup_count; i++) {
		__u32 above = netstack_config.cgroups[i].level;
		struct cgroup *ancestor = 0;

		if ((int)above > level)
			continue;
		bpf_core_read(&ancestor, sizeof(ancestor), &cgroup->ancestors[above]);
		if (ancestor && BPF_CORE_READ(ancestor, kn, id) == netstack_config.cgroups[i].id)
			return true;
	}
	return false;
}

static __always_inline bool needs_cgroup(void)
{
	return netstack_config.cgroup_count || netstack_config.by_cgroup;
}

static __always_inline __u32 waiting(const struct sock *sk)
{
	__u32 count = READ(struct sock, sk, sk_receive_queue.qlen);

	if (READ(struct sock, sk, sk_protocol) == IPPROTO_UDP)
		count += READ(struct udp_sock, sk, reader_queue.qlen);
	return count;
}

/*
 * Notes the socket's cgroup; whether it, its queue and the packet's place were asked for. `taken`: the
 * packet, which waited too, is not in the queue any more.
 */
static __always_inline bool socket_is_wanted(struct sighting *at, const struct sock *sk, bool taken)
{
	if (!place_is_wanted(at))
		return false;
	if (netstack_config.min_queue && waiting(sk) + taken < netstack_config.min_queue)
		return false;
	if (needs_cgroup()) {
		struct cgroup *cgroup = READ(struct sock, sk, sk_cgrp_data.cgroup);

		at->cgroup = cgroup ? BPF_CORE_READ(cgroup, kn, id) : 0;
		if (netstack_config.cgroup_count && (!cgroup || !cgroup_is_wanted(cgroup)))
			return false;
	}
	return true;
}

static __always_inline bool current_is_wanted(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	return !netstack_config.filter_pids || bpf_map_lookup_elem(&pids, &tgid);
}

#endif
