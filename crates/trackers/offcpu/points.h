/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where on the strings of short stretches the sampling points lie: the arithmetic of sample.bpf.c. Compiles as BPF and
 * as user code; who includes it has `config` and waits_for_request() already (tests/points.c).
 */
#ifndef UNDERSPAN_POINTS_H
#define UNDERSPAN_POINTS_H

#include "../bpf/config.h"
#include "../bpf/thread.h"

#define GOLDEN 0x9e3779b9 /* (sqrt(5) - 1) / 2, of 2^32 */

/* The point after this one: 1 … period. */
static __always_inline __s32 next_point(__s32 point, __u64 period)
{
	__u32 next = point + (__u32)(period * GOLDEN >> 32);

	return next > period ? next - period : next;
}

/* Another one for each thread and state. */
static __always_inline __s32 first_point(struct stretches *s, __u64 state, __u32 tid, __u64 period)
{
	__u32 phase = (tid + state * STATES) * GOLDEN;

	if (!s->point)
		s->point = 1 + (phase * period >> 32);
	return s->point;
}

/*
 * Of how many nanoseconds of a state this stretch is the sample; mostly 0. The bound is checked on the
 * register that is the index, as in add_time().
 */
static __always_inline __u64 sample_weight(struct thread *t, __u64 state, __u64 ns)
{
	bool idle = waits_for_request(t, state);
	__u64 period = idle ? config.idle_period_ns : config.off_cpu_period_ns, weight = 0;
	struct stretches *s;
	__s32 carried;

	if (ns >= period)
		return ns;
	barrier_var(state);
	if (state >= STATES)
		return 0;
	s = idle ? &t->sampling.idle[state] : &t->sampling.of[state];
	carried = s->carried + (__s32)ns;
	if (carried >= s->point) {
		first_point(s, state, t->tid, period);
		/* A stretch shorter than the period holds two points at the most. */
		for (int i = 0; i < 2 && carried >= s->point; i++) {
			weight += period;
			carried -= (__s32)period;
			s->point = next_point(s->point, period);
		}
	}
	s->carried = carried;
	return weight;
}

/* Whether sample_weight() would not be 0, of a state that is no wait for a request. */
static __always_inline bool would_sample(struct thread *t, __u64 state, __u64 ns)
{
	__u64 period = config.off_cpu_period_ns;
	struct stretches *s;

	if (ns >= period)
		return true;
	barrier_var(state);
	if (state >= STATES)
		return false;
	s = &t->sampling.of[state];
	return s->carried + (__s32)ns >= first_point(s, state, t->tid, period);
}

#endif
