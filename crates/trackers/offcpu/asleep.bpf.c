// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Is a thread that slept in the kernel where it was the last time? See asleep.bpf.h.
 */
#include "asleep.bpf.h"

static __always_inline struct asleep_words *read_asleep(__u64 sp)
{
	__u32 zero = 0;
	struct asleep_words *words = bpf_map_lookup_elem(&asleep_words, &zero);

	/* A stack that is not even this deep is unwound in no time. */
	return words && !bpf_probe_read_kernel(words, sizeof(*words), (void *)sp) ? words : NULL;
}

struct asleep_search {
	struct asleep *asleep;
	const struct asleep_words *words;
	const struct stack_scratch *stack;
	bool differs;
};

/* Is this return address where it was? */
static long compare_frame(__u32 i, struct asleep_search *c)
{
	if (i >= ASLEEP_FRAMES)
		return 1;
	c->differs = c->words->at[c->asleep->slot[i] & (ASLEEP_WORDS - 1)] != c->asleep->address[i];
	return c->differs;
}

int asleep_still(__u32 tid, __u64 sp)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct asleep_search c = {};

	if (!t || !t->asleep.sequence || !t->asleep.frames || t->asleep.sp != sp || t->asleep.syscall != t->wait.syscall)
		return 0;
	c.asleep = &t->asleep;
	c.words = read_asleep(sp);
	if (!c.words)
		return 0;
	bpf_loop(t->asleep.frames, compare_frame, &c, 0);
	return !c.differs;
}

/* Is this word the next return address? How many are found is kept in the map: of what is there the
 * verifier does not try to know the value. */
static long find_frame(__u32 i, struct asleep_search *c)
{
	__u32 found = c->asleep->frames;

	if (i >= ASLEEP_WORDS || found >= ASLEEP_FRAMES || found >= c->stack->e.kernel_frames)
		return 1;
	if (c->words->at[i] != c->stack->words[found])
		return 0;
	c->asleep->address[found] = c->words->at[i];
	c->asleep->slot[found] = i;
	c->asleep->frames = found + 1;
	return 0;
}

int remember_asleep(__u32 tid, __u64 sp, __u64 sequence)
{
	__u32 moment = STACK_ASLEEP;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct asleep_search c = {};

	if (!t)
		return 0;
	c.asleep = &t->asleep;
	c.stack = bpf_map_lookup_elem(&stack_scratch, &moment);
	c.words = read_asleep(sp);
	if (!c.stack || !c.words)
		return 0;
	t->asleep.frames = 0;
	bpf_loop(ASLEEP_WORDS, find_frame, &c, 0);
	t->asleep.sequence = sequence;
	t->asleep.sp = sp;
	t->asleep.syscall = t->wait.syscall;
	return 0;
}
