// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A wire that notes every TCP segment put on it, and loses those that it is told to.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) =
	(void *)BPF_FUNC_skb_load_bytes;
static __u32 (*random)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u64 (*now)(void) = (void *)BPF_FUNC_ktime_get_ns;

enum { SYN = 1, SYN_ACK = 2, DATA = 4, ACK = 8, ALL = 15 };

/* What an interface loses: of the segments of some kinds, so many after so many; or each with a chance. */
struct rule {
	__u32 kinds;
	__u32 skip;
	__u32 drop;
	__u32 per_mille;
};

struct packet {
	__u64 time;
	__u32 interface;
	__u32 seq;
	__u32 ack;
	__u32 len;
	__u32 window; /* as it is in the header */
	__u32 ports;  /* source << 16 | destination */
	__u32 flags;
	__u32 lost;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct packet);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} count SEC(".maps");

struct tcp {
	__be16 source, dest;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window;
};

static int loses(__u32 interface, __u32 kind)
{
	struct rule *rule = lookup(&rules, &interface);

	if (!rule || !(rule->kinds & kind))
		return 0;
	if (rule->per_mille)
		return random() % 1000 < rule->per_mille;
	if (rule->skip) {
		rule->skip--;
		return 0;
	}
	if (!rule->drop)
		return 0;
	rule->drop--;
	return 1;
}

SEC("tc")
int wire(struct __sk_buff *skb)
{
	__u32 zero = 0, at, end, kind, index;
	struct packet *packet;
	struct tcp tcp;
	__u8 protocol = 0, version = 0;
	__u16 len = 0;
	__u64 *next;

	/* An Ethernet header of 14 bytes; no VLANs, no options, no extension headers. */
	load_bytes(skb, 14, &version, 1);
	if (version >> 4 == 4) {
		load_bytes(skb, 14 + 9, &protocol, 1);
		load_bytes(skb, 14 + 2, &len, 2);
		at = 14 + 20;
		end = 14 + __builtin_bswap16(len);
	} else if (version >> 4 == 6) {
		load_bytes(skb, 14 + 6, &protocol, 1);
		load_bytes(skb, 14 + 4, &len, 2);
		at = 14 + 40;
		end = at + __builtin_bswap16(len);
	} else {
		return TC_ACT_OK;
	}
	if (protocol != 6 || load_bytes(skb, at, &tcp, sizeof(tcp)))
		return TC_ACT_OK;
	next = lookup(&count, &zero);
	if (!next)
		return TC_ACT_OK;
	index = __sync_fetch_and_add(next, 1);
	packet = lookup(&packets, &index);
	if (!packet)
		return TC_ACT_OK;
	packet->time = now();
	packet->interface = skb->ifindex;
	packet->seq = __builtin_bswap32(tcp.seq);
	packet->ack = __builtin_bswap32(tcp.ack);
	packet->len = end - at - (tcp.offset >> 4) * 4;
	packet->window = __builtin_bswap16(tcp.window);
	packet->ports = (__u32)__builtin_bswap16(tcp.source) << 16 | __builtin_bswap16(tcp.dest);
	packet->flags = tcp.flags;
	if (tcp.flags & 0x02)
		kind = tcp.flags & 0x10 ? SYN_ACK : SYN;
	else
		kind = packet->len ? DATA : ACK;
	packet->lost = loses(skb->ifindex, kind);
	/* Of one that is dropped (TC_ACT_SHOT) the sender hears, and it counts as not sent. */
	return packet->lost ? TC_ACT_STOLEN : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
