/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stands in for the kernel where the walkers are compiled as user code, for their tests: memory is
 * read through a function that the test gives.
 */
#ifndef UNDERSPAN_USER_H
#define UNDERSPAN_USER_H

#include <stddef.h>

#include "../../bpf/types.h"

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier_var(var) ((void)0)

/* Copies `len` bytes from the recorded process; not 0: they are not there. */
typedef long (*user_read)(void *recording, void *to, __u32 len, __u64 from);

static _Thread_local struct {
	user_read read;
	void *recording;
} user;

static inline long bpf_probe_read_user(void *to, __u32 len, const void *from)
{
	return user.read(user.recording, to, len, (__u64)from);
}

static inline long bpf_loop(__u32 times, void *callback, void *context, __u64 flags)
{
	long (*step)(__u32, void *) = callback;
	__u32 done = 0;

	(void)flags;
	while (done < times)
		if (step(done++, context))
			break;
	return done;
}

#endif
