/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Threads wait in the same places again and again: a worker for its next request, a connection for its
 * answer. If a thread is at the same instruction as at its last sample, with the same stack pointer, and all
 * words that the walk followed then are what they were, it would find the same frames: they are not looked
 * for again, nor sent.
 *
 * Python's frames are elsewhere in memory. They are walked each time, and compared folded into a number.
 */
#ifndef UNDERSPAN_AGAIN_BPF_H
#define UNDERSPAN_AGAIN_BPF_H

#include "native.bpf.h"

/* Those who read of event loops only have not read what a thread told before it was one. */
struct again_key {
	__u32 tid;
	__u16 moment;
	__u8 place;
	__u8 loop;
};

STACKS struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct again_key);
	__type(value, struct stack_again);
} stacks_again SEC(".maps");

/* What is remembered at a place is replaced by what comes to it next. */
static __always_inline __u8 place_of(const struct pt_regs *regs)
{
	return ((regs->ip * GOLDEN_64) ^ regs->sp) * GOLDEN_64 >> 32 & (STACK_PLACES - 1);
}

static __always_inline struct again_key again_key(const struct stack_scratch *s)
{
	return (struct again_key){
		.tid = s->e.h.tid, .moment = s->e.moment, .place = s->e.place, .loop = s->e.loop
	};
}

struct again_context {
	const struct stack_again *before;
	const struct unwind_memory *memory;
	__u32 same;
};

static long same_word(__u32 index, struct again_context *c)
{
	__u64 slot;

	if (index >= AGAIN_FOLLOWED)
		return 1;
	slot = c->before->slot[index] % AGAIN_WORDS;
	if (c->memory->words[slot] != c->before->value[index])
		return 1;
	c->same = index + 1;
	return 0;
}

/* Would the current thread's native frames be those that were found before? */
static __always_inline bool native_again(const struct stack_again *before, struct unwind_memory *memory,
					 const struct pt_regs *regs, __u32 generation)
{
	struct again_context c = { .before = before, .memory = memory };
	__u64 words = before->words;

	if (before->ip != regs->ip || before->sp != regs->sp || before->generation != generation ||
	    (before->needs_bp && before->bp != regs->bp))
		return false;
	barrier_var(words);
	if (words > AGAIN_WORDS ||
	    bpf_probe_read_user(memory->words, words * sizeof(__u64), (void *)before->sp))
		return false;
	bpf_loop(before->followed, same_word, &c, 0);
	return c.same == before->followed;
}

static __always_inline bool is_whole(__u8 end)
{
	return end == STACK_COMPLETE || end == STACK_ABSENT;
}

/*
 * The frames in `s` have been sent, and user space knows them as the last of their place. If they are not to
 * be referred to, what was there before must not be either: user space has it no more.
 */
static __always_inline void remember_stack(const struct stack_scratch *s, struct unwind_memory *memory)
{
	struct again_key key = again_key(s);
	struct stack_again *now = &memory->now;

	if (s->e.native_end != STACK_COMPLETE || !is_whole(s->e.python_end) || !now->generation ||
	    now->followed > AGAIN_FOLLOWED) {
		bpf_map_delete_elem(&stacks_again, &key);
		return;
	}
	now->time = s->e.h.time;
	now->python = s->python.hash;
	now->python_end = s->e.python_end;
	bpf_map_update_elem(&stacks_again, &key, now, BPF_ANY);
}

#endif
