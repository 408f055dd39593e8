/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A row about a connection of a watched process, before it has its figures.
 */
#ifndef UNDERSPAN_TCP_LOSS_EVENT_BPF_H
#define UNDERSPAN_TCP_LOSS_EVENT_BPF_H

#include "../bpf/tcp.h"
#include "tcp_loss.h"

static __always_inline struct tcp_loss_event *new_event(struct sock *sk, struct tcp_flow *f,
							__u64 start, __u64 duration,
							enum tcp_loss_kind kind)
{
	struct tcp_loss_event *e;

	if (!is_watched(f->tgid))
		return NULL;
	e = reserve(TRACKER_TCP_LOSS, sizeof(*e));
	if (!e)
		return NULL;
	__builtin_memset(e, 0, sizeof(*e));
	fill_thread(&e->h, EVENT_TCP_LOSS, f->tgid, f->tid, start);
	e->duration = duration;
	e->kind = kind;
	fill_ends(&e->ends, sk);
	return e;
}

/* The kernel's numbers change, and its names come and go. */
#define IS_REASON(type, reason, name)                   \
	(bpf_core_enum_value_exists(enum type, name) && \
	 (reason) == bpf_core_enum_value(enum type, name))

#endif
