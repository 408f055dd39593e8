/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a stack is put together: as it is sent, so that only what is used of it need be copied.
 */
#ifndef UNDERSPAN_SCRATCH_BPF_H
#define UNDERSPAN_SCRATCH_BPF_H

#ifdef UNDERSPAN_USER
#include "user.h" /* the walkers' tests */
#else
#include "../bpf/maps.h"
#endif
#include "native.h"
#include "python.h"
#include "stack.h"

/* stack.bpf.c defines the maps of this folder; everyone else gets declarations. */
#ifdef UNDERSPAN_DEFINE_STACKS
#define STACKS
#else
#define STACKS extern
#endif

#define PYTHON_FRAME_WORDS (sizeof(struct python_frame) / sizeof(__u64))
#define STACK_WORDS (KERNEL_FRAMES + NATIVE_FRAMES + PYTHON_FRAMES * PYTHON_FRAME_WORDS)

struct stack_scratch {
	struct stack_event e;
	__u64 words[STACK_WORDS]; /* the frames, one part behind the other */
	__u32 used;		  /* of `words` */
	__u32 _pad;
	struct python_walk python;
	struct native_walk native;
};

/* Appends to the record. False: it is full. The bound is checked on the register that is the index. */
static __always_inline bool stack_push(struct stack_scratch *s, __u64 word)
{
	__u64 at = s->used;

	barrier_var(at);
	if (at >= STACK_WORDS)
		return false;
	s->words[at] = word;
	s->used = at + 1;
	return true;
}

static __always_inline bool stack_push_python(struct stack_scratch *s, const struct python_frame *frame)
{
	const __u64 *words = (const __u64 *)frame;

	return stack_push(s, words[0]) && stack_push(s, words[1]);
}

#endif
