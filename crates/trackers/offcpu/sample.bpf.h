/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which waits become samples, and for how much time each stands.
 *
 * A stretch of a state that lasts for a period or longer is a sample, and stands for itself. Shorter
 * ones are strung together, per thread and state, and on the string there is one point in each period:
 * the stretch that holds it is a sample and stands for a whole period. So every nanosecond has the same
 * chance, nothing is lost between samples, and the work follows time waited, not switches.
 *
 * Where in its period the point lies is the sequence of multiples of the golden ratio: evenly spread,
 * and in step with nothing that a program does.
 */
#ifndef UNDERSPAN_SAMPLE_BPF_H
#define UNDERSPAN_SAMPLE_BPF_H

#include "../bpf/maps.h"

#define GOLDEN 0x9e3779b9 /* (sqrt(5) - 1) / 2, of 2^32 */

/* The next point: 1 … period. */
static __always_inline __s32 next_point(struct sampling *s, __u32 tid)
{
	s->phase = (s->phase ? s->phase : tid * GOLDEN) + GOLDEN;
	return 1 + (s->phase * config.off_cpu_period_ns >> 32);
}

static __always_inline __s32 first_point(struct sampling *s, __u64 state, __u32 tid)
{
	if (!s->of[state].point)
		s->of[state].point = next_point(s, tid);
	return s->of[state].point;
}

/*
 * Of how many nanoseconds of a state this stretch is the sample; mostly 0. The bound is checked on the
 * register that is the index, as in add_time().
 */
static __always_inline __u64 sample_weight(struct thread *t, __u64 state, __u64 ns)
{
	struct sampling *s = &t->sampling;
	__u64 weight = 0;
	__s32 carried;

	if (ns >= config.off_cpu_period_ns)
		return ns;
	barrier_var(state);
	if (state >= STATES)
		return 0;
	carried = s->of[state].carried + (__s32)ns;
	if (carried >= s->of[state].point) {
		first_point(s, state, t->tid);
		/* A stretch shorter than the period holds two points at the most. */
		for (int i = 0; i < 2 && carried >= s->of[state].point; i++) {
			weight += config.off_cpu_period_ns;
			carried -= (__s32)config.off_cpu_period_ns;
			s->of[state].point = next_point(s, t->tid);
		}
	}
	s->of[state].carried = carried;
	return weight;
}

/* Whether sample_weight() would not be 0. */
static __always_inline bool would_sample(struct thread *t, __u64 state, __u64 ns)
{
	struct sampling *s = &t->sampling;

	if (ns >= config.off_cpu_period_ns)
		return true;
	barrier_var(state);
	return state < STATES && s->of[state].carried + (__s32)ns >= first_point(s, state, t->tid);
}

#endif
