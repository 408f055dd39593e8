/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Records of the oncpu tracker: a sample is a stack (../stack/stack.h) with the counters filled in.
 */
#ifndef UNDERSPAN_ONCPU_H
#define UNDERSPAN_ONCPU_H

#include "../stack/stack.h"

/* The processor's counters, in the order of their cells in the map. */
enum counter {
	COUNTER_CYCLES,
	COUNTER_INSTRUCTIONS,
	COUNTER_CACHE_MISSES,
	COUNTER_BRANCH_MISSES,
	COUNTERS,
};

/* A counter that cannot be read. */
#define COUNTER_UNKNOWN (~0ull)

#endif
