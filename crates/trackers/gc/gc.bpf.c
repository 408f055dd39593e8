// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Garbage collections, from whichever probe the process allows: USDT, a uprobe on the collector's
 * function, or a watchpoint on its flag. Each process is seen through one of them (its rung), so
 * that a collection is never counted twice.
 *
 * The marks made here turn the collecting thread's `running` into `gc_run`, and its siblings'
 * waits for the GIL into `gc_wait`.
 */
#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include <bpf/usdt.bpf.h>
#include "gc.h"

#define GENERATIONS 3

/* struct gc_generation_stats */
struct generation_stats {
	__s64 collections, collected, uncollectable;
};

static __always_inline bool read_stats(const struct process *p, struct generation_stats *stats)
{
	return p->gc_stats && !bpf_probe_read_user(stats, GENERATIONS * sizeof(*stats),
						   (void *)p->gc_stats);
}

static __always_inline void gc_begin(__u32 rung, __s32 generation)
{
	__u64 id = bpf_get_current_pid_tgid(), now;
	__u32 tgid = id >> 32, tid = id;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct generation_stats stats[GENERATIONS];
	struct collections *c, none = {};

	if (!p || !t || p->gc_rung != rung)
		return;
	c = bpf_map_lookup_elem(&collections, &tgid);
	if (!c) {
		bpf_map_update_elem(&collections, &tgid, &none, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&collections, &tgid);
		if (!c) {
			count_lost(TRACKER_GC, LOST_MAP_FULL);
			return;
		}
	}
	now = bpf_ktime_get_ns();
	if (c->since) { /* its end was never seen: we do not know how long it took */
		count_lost(TRACKER_GC, LOST_UNPAIRED);
		c->since = 0;
	}
	c->started[0] = c->started[1] = c->started[2] = 0;
	if (read_stats(p, stats)) {
		for (int i = 0; i < GENERATIONS; i++) {
			c->started[i] = stats[i].collections;
			c->collected[i] = stats[i].collected;
		}
	}
	c->generation = generation;
	c->tid = tid;
	if (!is_on_cpu(t->state))
		arrive_untold(now);
	settle_in_uprobe(t, now);
	t->collecting = 1;
	t->state = STATE_GC_RUN;
	c->cpu_before = t->ns[STATE_GC_RUN];
	c->since = now;
}

/* The generation whose counter moved is the one that was collected. */
static __always_inline void read_outcome(const struct process *p, const struct collections *c,
					 struct gc_event *e)
{
	struct generation_stats stats[GENERATIONS];

	if (!read_stats(p, stats))
		return;
	for (int i = 0; i < GENERATIONS; i++) {
		if (stats[i].collections == c->started[i])
			continue;
		e->generation = i;
		e->collected = stats[i].collected - c->collected[i];
	}
}

static __always_inline void gc_end(__u32 rung, __s64 collected)
{
	__u64 id = bpf_get_current_pid_tgid(), now, since;
	__u32 tgid = id >> 32, tid = id;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct collections *c = bpf_map_lookup_elem(&collections, &tgid);
	struct gc_event *e;

	if (!p || !t || !c || p->gc_rung != rung)
		return;
	if (!c->since || c->tid != tid) {
		count_lost(TRACKER_GC, LOST_UNPAIRED);
		return;
	}
	now = bpf_ktime_get_ns();
	since = c->since;
	c->total += now - since;
	c->since = 0;
	if (!is_on_cpu(t->state))
		arrive_untold(now);
	settle_in_uprobe(t, now);
	t->collecting = 0;
	t->state = STATE_RUNNING;

	/* Thousands a second would say little: their time is in the ledger. */
	if (now - since < config.gc_threshold_ns)
		return;
	e = reserve(TRACKER_GC, sizeof(*e));
	if (!e)
		return;
	fill_header(&e->h, EVENT_GC, t, since);
	e->duration = now - since;
	e->cpu = t->ns[STATE_GC_RUN] - c->cpu_before;
	e->collected = collected;
	e->generation = c->generation;
	e->rung = rung;
	read_outcome(p, c, e);
	submit(e);
}

SEC("usdt")
int BPF_USDT(gc_usdt_start, int generation)
{
	gc_begin(GC_RUNG_USDT, generation);
	return 0;
}

SEC("usdt")
int BPF_USDT(gc_usdt_done, long collected)
{
	gc_end(GC_RUNG_USDT, collected);
	return 0;
}

SEC("uprobe")
int gc_symbol_start(struct pt_regs *ctx)
{
	gc_begin(GC_RUNG_SYMBOL, -1);
	return 0;
}

SEC("uretprobe")
int gc_symbol_done(struct pt_regs *ctx)
{
	gc_end(GC_RUNG_SYMBOL, -1);
	return 0;
}

/* After a write to gc.collecting: which value did it write? */
SEC("perf_event")
int gc_watchpoint(struct bpf_perf_event_data *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	__s32 collecting;

	if (!p || p->gc_rung != GC_RUNG_WATCHPOINT)
		return 0;
	if (bpf_probe_read_user(&collecting, sizeof(collecting), (void *)p->gc_collecting)) {
		count_lost(TRACKER_GC, LOST_UNREADABLE);
		return 0;
	}
	if (collecting)
		gc_begin(GC_RUNG_WATCHPOINT, -1);
	else
		gc_end(GC_RUNG_WATCHPOINT, -1);
	return 0;
}
