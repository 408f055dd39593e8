/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How old a packet is: now, less when it entered the kernel. Both are CLOCK_REALTIME, because the
 * kernel stamps packets with it; a program only has the monotonic clock and their distance.
 *
 * A packet that a TCP socket of this host sent carries, in the same field, when it was to leave, on
 * the monotonic clock, until it is handed to the transport, which stamps it anew. Such packets are
 * remembered when they come: in `arrivals` by their buffer until they have a stamp, then in
 * `restamped` by that stamp, since one packet may go on as a part of another. Both are direct-mapped
 * and hold one word an entry: what does not fit overwrites, and a lookup tells its own from others.
 */
#ifndef UNDERSPAN_NETSTACK_AGE_BPF_H
#define UNDERSPAN_NETSTACK_AGE_BPF_H

#include "record.bpf.h"

volatile struct netstack_clock netstack_clock SEC(".data.clock") = {};

#define TIME_BITS 40
#define TIME_MASK ((1ULL << TIME_BITS) - 1)
#define UNKNOWN (~0ULL)

/* Packets are in the first for microseconds, in the second until they are read. */
#define ARRIVALS 8192
#define SLOTS 65536

static __u64 arrivals[ARRIVALS];
static __u64 restamped[SLOTS];
/* Whether this host has sent itself anything: without, neither is looked at. */
static bool has_local;

/* Younger packets' ages are plausible without a look at the clock. */
#define PLAUSIBLE_NS 100000
/* What two readings of a clock, one after the other, may differ by. */
#define READING_NS 50000
/* What user space's reading of the clocks may be wrong by. */
#define OFFSET_ERROR_NS 2000

static __always_inline __u64 scattered(__u64 key)
{
	return key * 0x9e3779b97f4a7c15ULL;
}

/* The upper bits choose the slot, the next mark it as the key's own. */
static __always_inline void put(__u64 *table, __u32 slots, __u64 key, __u64 ns)
{
	__u64 h = scattered(key);

	table[(h >> 48) & (slots - 1)] = (h << 16 >> TIME_BITS << TIME_BITS) | (ns & TIME_MASK);
}

static __always_inline bool get(const __u64 *table, __u32 slots, __u64 key, __u64 *ns)
{
	__u64 h = scattered(key);
	__u64 word = table[(h >> 48) & (slots - 1)];

	if (!word || (word >> TIME_BITS) != (h << 16 >> TIME_BITS))
		return false;
	*ns = word & TIME_MASK;
	return true;
}

static __always_inline void forget(__u64 *table, __u32 slots, __u64 key)
{
	__u64 h = scattered(key), ns;

	if (get(table, slots, key, &ns))
		table[(h >> 48) & (slots - 1)] = 0;
}

/* Whether the stamp is when the packet was to leave. */
static __always_inline bool is_to_leave(struct sk_buff *skb)
{
	if (bpf_core_field_exists(skb->tstamp_type))
		return BPF_CORE_READ_BITFIELD(skb, tstamp_type);
	return BPF_CORE_READ_BITFIELD(skb, mono_delivery_time);
}

/* Whether the clocks are as far from each other as user space said. `monotonic`: just read. */
static __always_inline bool clock_holds(__u64 monotonic)
{
	for (int i = 0; i < 3; i++) {
		__s64 drift = bpf_ktime_get_tai_ns() - monotonic - netstack_clock.tai_offset;

		if (drift > -READING_NS && drift < READING_NS)
			return true;
		/* The second reading may be late, since a CPU can be taken away in between. */
		monotonic = bpf_ktime_get_ns();
	}
	netstack_clock.paused = 1;
	return false;
}

/* Only TCP says when a packet is to leave. */
static __always_inline bool is_tcp(enum netstack_point point)
{
	return point != NETSTACK_IP_START && point != NETSTACK_UDP_START &&
	       point != NETSTACK_UDP_SOCKET_ENQUEUED && point != NETSTACK_UDP_SOCKET_READ;
}

/* The age of a packet stamped at `stamp`, or UNKNOWN, and then it is counted why. */
static __always_inline __u64 age_of_stamp(enum netstack_point point, __u64 stamp, __u64 now)
{
	__s64 age;
	__u64 before;

	if (!stamp) {
		count_lost(point, NETSTACK_LOST_UNSTAMPED);
		return UNKNOWN;
	}
	age = now + netstack_clock.real_offset - stamp;
	if (netstack_clock.paused || stamp < netstack_clock.valid_from) {
		count_lost(point, NETSTACK_LOST_CLOCK_STEP);
		return UNKNOWN;
	}
	if (age < 0 || age > PLAUSIBLE_NS) {
		if ((age < -OFFSET_ERROR_NS) | !clock_holds(now)) {
			count_lost(point, NETSTACK_LOST_CLOCK_STEP);
			return UNKNOWN;
		}
		if (age < 0)
			age = 0;
	}
	if (is_tcp(point) && has_local && get(restamped, SLOTS, stamp, &before))
		age += before;
	return age;
}

/* Its buffer's address. Read as a number, since the verifier lets nobody count with pointers that it knows. */
static __always_inline __u64 packet_id(const struct sk_buff *skb)
{
	return read_word((__u64)&skb->head);
}

/* A packet enters the stack. */
static __always_inline void arrives(struct sk_buff *skb)
{
	if (is_to_leave(skb)) {
		has_local = true;
		put(arrivals, ARRIVALS, packet_id(skb), bpf_ktime_get_ns());
	}
}

/* The age at the start of the network layer, where every packet passes first. */
static __always_inline __u64 age_at_start(enum netstack_point point, struct sk_buff *skb, bool wanted)
{
	__u64 now = bpf_ktime_get_ns(), arrival;

	if (!is_to_leave(skb))
		return wanted ? age_of_stamp(point, skb->tstamp, now) : UNKNOWN;
	if (get(arrivals, ARRIVALS, packet_id(skb), &arrival))
		return (now - arrival) & TIME_MASK;
	/* It came on a way that is not watched: from here on it is. */
	has_local = true;
	put(arrivals, ARRIVALS, packet_id(skb), now);
	if (wanted)
		count_lost(point, NETSTACK_LOST_UNSTAMPED);
	return UNKNOWN;
}

/* The packet's buffer may have been that of one of this host's own. */
static __always_inline void forget_another(struct sk_buff *skb)
{
	if (has_local && !is_to_leave(skb))
		forget(arrivals, ARRIVALS, packet_id(skb));
}

/* The packet has its final stamp: its arrival is kept with that, if it has one of its own. */
static __always_inline void has_final_stamp(struct sk_buff *skb)
{
	__u64 arrival, stamp = skb->tstamp;

	if (!has_local || !stamp || is_to_leave(skb) || !get(arrivals, ARRIVALS, packet_id(skb), &arrival))
		return;
	put(restamped, SLOTS, stamp, stamp - netstack_clock.real_offset - arrival);
	forget(arrivals, ARRIVALS, packet_id(skb));
}

/* The age of a packet anywhere later. */
static __always_inline __u64 age(enum netstack_point point, struct sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), arrival;

	if (!is_to_leave(skb))
		return age_of_stamp(point, skb->tstamp, now);
	if (get(arrivals, ARRIVALS, packet_id(skb), &arrival))
		return (now - arrival) & TIME_MASK;
	count_lost(point, NETSTACK_LOST_UNSTAMPED);
	return UNKNOWN;
}

#endif
