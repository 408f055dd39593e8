/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The arithmetic of sampling points as user code.
 */
#include "user.h"
#include "../../bpf/config.h"
#include "../../bpf/thread.h"

static _Thread_local struct config config;

/* Which waits are for a request is asked elsewhere (offcpu.bpf.h): here the test says so. */
static bool waits_for_request(const struct thread *t, __u64 state)
{
	(void)state;
	return t->serves;
}

#include "../points.h"

__u64 underspan_test_sample_weight(struct thread *t, __u64 period, __u64 idle_period, __u64 state, __u64 ns)
{
	config.off_cpu_period_ns = period;
	config.idle_period_ns = idle_period;
	return sample_weight(t, state, ns);
}

int underspan_test_would_sample(struct thread *t, __u64 period, __u64 state, __u64 ns)
{
	config.off_cpu_period_ns = period;
	return would_sample(t, state, ns);
}
