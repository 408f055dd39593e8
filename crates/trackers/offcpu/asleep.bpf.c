// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Does a thread sleep in the kernel where it slept the last time? See asleep.bpf.h.
 */
#include "../bpf/read.h"
#include "asleep.bpf.h"

/* Stacks in the kernel are aligned to their size. */
#define KERNEL_STACK 16384

int asleep_still(struct thread *t, __u64 sp)
{
	struct asleep *a;

	if (!t || !t->asleep.frames || t->asleep.syscall != t->wait.syscall)
		return 0;
	a = &t->asleep;
	for (__u32 i = 0; i < ASLEEP_FRAMES; i++) {
		if (i >= a->frames)
			break;
		if (read_word(sp + a->slot[i] * sizeof(__u64)) != a->address[i])
			return 0;
	}
	return 1;
}

struct asleep_search {
	struct asleep *asleep;
	const struct asleep_words *words;
	const struct stack_scratch *stack;
	__u32 depth; /* so many frames are looked for */
};

/* Is this word the next return address? How many are found is kept in the map: of what is there the
 * verifier does not try to know the value. */
static long find_frame(__u32 i, struct asleep_search *c)
{
	__u32 found = c->asleep->frames;

	if (i >= ASLEEP_WORDS || found >= ASLEEP_FRAMES || found >= c->depth)
		return 1;
	if (c->words->at[i] != c->stack->words[found])
		return 0;
	c->asleep->address[found] = c->words->at[i];
	c->asleep->slot[found] = i;
	c->asleep->frames = found + 1;
	return 0;
}

int remember_asleep(struct thread *t, __u64 sp, __u64 sequence)
{
	__u32 moment = STACK_ASLEEP, zero = 0;
	struct asleep_words *words = bpf_map_lookup_elem(&asleep_words, &zero);
	struct asleep_search c = { .words = words };
	__u64 size = KERNEL_STACK - sp % KERNEL_STACK;

	c.stack = bpf_map_lookup_elem(&stack_scratch, &moment);
	if (!t || !words || !c.stack)
		return 0;
	c.asleep = &t->asleep;
	if (size > sizeof(*words))
		size = sizeof(*words);
	barrier_var(size);
	if (size > sizeof(*words) || bpf_probe_read_kernel(words, size, (void *)sp))
		return 0;
	/* Linux puts a random gap before the outermost frame, which all system calls share. */
	c.depth = c.stack->e.kernel_frames - 1;
	bpf_loop(size / sizeof(__u64), find_frame, &c, 0);
	if (t->asleep.frames < c.depth && t->asleep.frames < ASLEEP_FRAMES)
		t->asleep.frames = 0;
	t->asleep.sequence = sequence;
	t->asleep.syscall = t->wait.syscall;
	return 0;
}
