/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks the native frames of a thread, by unwind tables and, where there are none, frame pointers. See
 * native.h for how tables are laid out.
 *
 * Loops over frames are bpf_loop(): verifiers before Linux 6.4 take no other long loop.
 */
#ifndef UNDERSPAN_NATIVE_BPF_H
#define UNDERSPAN_NATIVE_BPF_H

#include "scratch.bpf.h"
#include "native.h"

/* By tgid. Inherited on fork, deleted on exec and exit. */
STACKS struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNWIND_PROCESSES);
	__type(key, __u32);
	__type(value, struct unwind_process);
} unwind_processes SEC(".maps");

STACKS struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNWIND_MAPPINGS);
	__type(key, __u32);
	__type(value, struct unwind_mapping);
} unwind_mappings SEC(".maps");

struct unwind_shard {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNWIND_SHARD);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(union unwind_entry)); /* clang forgets types that only this names */
};

STACKS struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, UNWIND_SHARDS);
	__type(key, __u32);
	__array(values, struct unwind_shard);
} unwind_shards SEC(".maps");

/* Processes of which an address was met that is in no known mapping; and how many pages of code they had mapped
 * when that was last. User space looks ten times a second, and takes the entry out when it has read the mappings
 * again: soon if that number is new, since a library may have been loaded. */
STACKS struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* tgid */
	__type(value, __u64);
} unwind_stale SEC(".maps");

/* A forked process has its parent's mappings. Before it is watched: user space must not find it watched
 * and unknown. */
static __always_inline void unwind_forked(__u32 parent, __u32 child)
{
	struct unwind_process *p = bpf_map_lookup_elem(&unwind_processes, &parent);

	if (p) {
		struct unwind_process copy = *p;

		bpf_map_update_elem(&unwind_processes, &child, &copy, BPF_ANY);
	}
}

/* It runs another program, or none. */
static __always_inline void unwind_forget(__u32 tgid)
{
	bpf_map_delete_elem(&unwind_processes, &tgid);
}

/* By moment, as the scratch of a walk, which has no room for it. */
STACKS struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STACK_MOMENTS);
	__type(key, __u32);
	__type(value, struct unwind_memory);
} unwind_memory SEC(".maps");

/* Whose stack is walked: the current thread's; or another one's that sleeps, by a program that may sleep
 * itself and says so before it includes this. */
#ifdef UNDERSPAN_WALKS_OTHERS
#define read_thread(task, to, size, from) bpf_copy_from_user_task(to, size, (void *)(from), task, 0)
#else
#define read_thread(task, to, size, from) bpf_probe_read_user(to, size, (void *)(from))
#endif

struct native_context {
	struct stack_scratch *s;
	struct task_struct *task;
	struct pt_regs *regs;
	struct unwind_memory *memory;
};

/* Rather than a reason to end. */
#define GO_ON (-1)

/* (sqrt(5) - 1) / 2, of 2^64: spreads addresses over a table. */
#define GOLDEN_64 0x9e3779b97f4a7c15ULL

static __always_inline void unwind_is_stale(__u32 tgid, struct task_struct *task)
{
	__u64 *known = bpf_map_lookup_elem(&unwind_stale, &tgid);
	__u64 code = BPF_CORE_READ(task, mm, exec_vm);

	if (!known)
		bpf_map_update_elem(&unwind_stale, &tgid, &code, BPF_NOEXIST);
	else if (*known != code)
		*known = code;
}

/* A step of a binary search over at most 2 * (step) of what is left. */
#define DESCEND(step)                                                  \
	if ((step) < count) {                                          \
		__u32 at = first + (step);                             \
		struct unwind_mapping *m = bpf_map_lookup_elem(&unwind_mappings, &at); \
		if (m && m->start <= address) {                        \
			first = at;                                    \
			count -= (step);                               \
		} else {                                               \
			count = (step);                                \
		}                                                      \
	}

/* Finds the mapping that an address is in: the last that begins at or before it. */
static __noinline bool native_mapping(struct native_walk *w, __u64 address)
{
	__u32 first = w->first, count = w->count;
	struct unwind_mapping *m;

	DESCEND(2048)
	DESCEND(1024)
	DESCEND(512)
	DESCEND(256)
	DESCEND(128)
	DESCEND(64)
	DESCEND(32)
	DESCEND(16)
	DESCEND(8)
	DESCEND(4)
	DESCEND(2)
	DESCEND(1)
	m = w->count ? bpf_map_lookup_elem(&unwind_mappings, &first) : NULL;
	if (!m || address - m->start >= m->end - m->start)
		return false;
	w->start = m->start;
	w->size = m->end - m->start;
	w->base = m->base;
	w->blocks = m->blocks;
	w->span = m->span;
	return true;
}
#undef DESCEND

static __always_inline union unwind_entry *unwind_entry(__u32 at)
{
	__u32 shard = at / UNWIND_SHARD, slot = at % UNWIND_SHARD;
	void *entries = bpf_map_lookup_elem(&unwind_shards, &shard);

	return entries ? bpf_map_lookup_elem(entries, &slot) : NULL;
}

#define DESCEND(step)                                                  \
	if ((step) < count) {                                          \
		__u32 slot = (first + (step)) % UNWIND_SHARD;          \
		union unwind_entry *e = bpf_map_lookup_elem(entries, &slot); \
		if (e && e->row.pc <= pc) {                            \
			first += (step);                               \
			count -= (step);                               \
		} else {                                               \
			count = (step);                                \
		}                                                      \
	}

/* Finds the rule of an address: the last row of its block that begins at or before it. */
static __noinline bool native_row(struct native_walk *w, __u64 address, struct unwind_rule *rule)
{
	__u64 into = address - w->base;
	union unwind_entry *entry;
	__u32 pc = into, first, count, shard, slot;
	void *entries;

	if (into >= w->span)
		return false;
	entry = unwind_entry(w->blocks + pc / UNWIND_BLOCK);
	if (!entry)
		return false;
	first = entry->block.first;
	count = entry->block.rows;
	/* User space has seen to it that a block's rows are in one shard. */
	shard = first / UNWIND_SHARD;
	entries = bpf_map_lookup_elem(&unwind_shards, &shard);
	if (!entries)
		return false;
	DESCEND(256)
	DESCEND(128)
	DESCEND(64)
	DESCEND(32)
	DESCEND(16)
	DESCEND(8)
	DESCEND(4)
	DESCEND(2)
	DESCEND(1)
	slot = first % UNWIND_SHARD;
	entry = bpf_map_lookup_elem(entries, &slot);
	if (!entry)
		return false;
	*rule = entry->row.rule;
	return true;
}
#undef DESCEND

/* How to leave the function that an address is in. GO_ON, or why nobody knows. */
static __always_inline int native_rule(struct native_walk *w, struct unwind_memory *memory, __u64 address,
				       struct unwind_rule *rule)
{
	struct unwind_found *found = &memory->found[address * GOLDEN_64 >> (64 - UNWIND_FOUND_BITS)];

	if (found->address == address && found->generation == w->generation) {
		*rule = found->rule;
		return GO_ON;
	}
	if (address - w->start >= w->size && !native_mapping(w, address))
		return STACK_NO_MAPPING;
	if (w->blocks == UNWIND_NO_TABLE)
		return STACK_NO_TABLE;
	if (!w->blocks || !native_row(w, address, rule))
		rule->cfa = UNWIND_GAP;
	found->address = address;
	found->generation = w->generation;
	found->rule = *rule;
	return GO_ON;
}

/* A user register by its DWARF number. Each is read by itself: an offset that the compiler computes
 * is refused by the verifier. */
static __always_inline __u64 user_register(struct pt_regs *regs, __u32 number)
{
	__u64 value;

#define REGISTER(n, name)                      \
	if (number == n) {                     \
		value = regs->name;            \
		barrier_var(value);            \
		return value;                  \
	}
	REGISTER(0, ax)
	REGISTER(1, dx)
	REGISTER(2, cx)
	REGISTER(3, bx)
	REGISTER(4, si)
	REGISTER(5, di)
	REGISTER(8, r8)
	REGISTER(9, r9)
	REGISTER(10, r10)
	REGISTER(11, r11)
	REGISTER(12, r12)
	REGISTER(13, r13)
	REGISTER(14, r14)
	REGISTER(15, r15)
#undef REGISTER
	return 0;
}

/* Reading the process's memory costs the same for 8 bytes as for 512. */
static __noinline bool read_window(struct native_walk *w, struct task_struct *task, __u64 address)
{
	w->window = address;
	if (!read_thread(task, w->stack, sizeof(w->stack), address))
		return true;
	/* The stack may end within. */
	w->window = 0;
	return !read_thread(task, w->stack, sizeof(w->stack[0]), address);
}

/* A word of the stack. Those of one frame are asked for in the order of their addresses. */
static __always_inline bool stack_word(const struct native_context *c, __u64 *word, __u64 address)
{
	struct native_walk *w = &c->s->native;
	__u64 into = address - w->window;

	if (into >= sizeof(w->stack) || into % sizeof(__u64)) {
		if (!read_window(w, c->task, address))
			return false;
		into = 0;
	}
	into /= sizeof(__u64);
	barrier_var(into);
	if (into >= UNWIND_WINDOW)
		return false;
	*word = w->stack[into];
	return true;
}

/* stack_again.followed: more than can be remembered. */
#define NOT_AGAIN (AGAIN_FOLLOWED + 1)

/* This word of the stack led to the next frame. */
static __always_inline void follow(struct stack_again *now, __u64 at, __u64 value)
{
	__u64 slot = (at - now->sp) / sizeof(__u64), index = now->followed;

	barrier_var(index);
	if (index >= AGAIN_FOLLOWED || slot >= AGAIN_WORDS) {
		now->followed = NOT_AGAIN;
		return;
	}
	now->value[index] = value;
	now->slot[index] = slot;
	now->followed = index + 1;
	if (now->words <= slot)
		now->words = slot + 1;
}

/* So did rbp, whose value was `bp`. */
static __always_inline void follow_bp(struct stack_again *now, const struct native_walk *w, __u64 bp)
{
	if (w->bp_at)
		follow(now, w->bp_at, bp);
	else
		now->needs_bp = 1;
}

/* The interrupted registers, as the kernel put them on the stack: rbp, rbx, rdx, rax, rcx, rsp, rip. */
#define SIGCONTEXT_RBP 120

static __always_inline int leave_signal(const struct native_context *c)
{
	struct stack_again *now = &c->memory->now;
	struct native_walk *w = &c->s->native;
	__u64 saved[7];

	if (read_thread(c->task, saved, sizeof(saved), w->sp + SIGCONTEXT_RBP))
		return STACK_UNREADABLE;
	w->bp = saved[0];
	w->bp_known = 1;
	w->sp = saved[5];
	w->pc = saved[6];
	w->exact = 1;
	now->followed = NOT_AGAIN;
	return GO_ON;
}

/* mov $15,%rax; and the first byte of: syscall. C libraries without unwind tables have it too. */
#define RT_SIGRETURN 0x0f0000000fc0c748ULL

/* rbp points to the caller's rbp, and above it lies the return address. */
static __always_inline int leave_by_frame_pointer(const struct native_context *c)
{
	struct stack_again *now = &c->memory->now;
	struct native_walk *w = &c->s->native;
	__u64 frame = w->bp;

	if (!frame)
		return STACK_COMPLETE; /* so the ABI marks the outermost frame */
	if (frame % 8 || !stack_word(c, &w->bp, frame) || !stack_word(c, &w->pc, frame + 8))
		return STACK_NO_TABLE;
	follow_bp(now, w, frame);
	follow(now, frame + 8, w->pc);
	w->bp_at = frame;
	w->sp = frame + 16;
	w->exact = 0;
	return GO_ON;
}

/* There is no rule: is this where a signal handler returns to, or is rbp a frame pointer? */
static __always_inline int leave_unknown(const struct native_context *c)
{
	struct native_walk *w = &c->s->native;
	__u64 code;

	if (!read_thread(c->task, &code, sizeof(code), w->pc) && code == RT_SIGRETURN)
		return leave_signal(c);
	if (!w->bp_known || (w->bp && w->bp < w->sp))
		return STACK_NO_TABLE;
	return leave_by_frame_pointer(c);
}

/* Fields of unwind_row.words where there are two. */
static __always_inline __s64 high_words(__u16 words)
{
	return ((__s16)words >> 4) * 8;
}

static __always_inline __u32 low_bits(__u16 words)
{
	return words & 15;
}

/* Out of one frame, into its caller's. */
static __always_inline int leave_frame(const struct native_context *c, struct unwind_rule rule, bool innermost)
{
	struct stack_again *now = &c->memory->now;
	struct native_walk *w = &c->s->native;
	__u64 cfa, at;

	switch (rule.cfa) {
	case UNWIND_RSP:
		cfa = w->sp + rule.words * 8;
		break;
	case UNWIND_RBP:
		if (!w->bp_known)
			return STACK_NO_RULE;
		cfa = w->bp + (__s16)rule.words * 8;
		follow_bp(now, w, w->bp);
		break;
	case UNWIND_AT_RSP:
		at = w->sp + high_words(rule.words);
		if (!stack_word(c, &cfa, at))
			return STACK_UNREADABLE;
		follow(now, at, cfa);
		cfa += low_bits(rule.words) * 8;
		break;
	case UNWIND_AT_RBP:
		if (!w->bp_known)
			return STACK_NO_RULE;
		at = w->bp + high_words(rule.words);
		if (!stack_word(c, &cfa, at))
			return STACK_UNREADABLE;
		follow_bp(now, w, w->bp);
		follow(now, at, cfa);
		cfa += low_bits(rule.words) * 8;
		break;
	case UNWIND_REGISTER:
		if (!innermost)
			return STACK_NO_RULE;
		cfa = user_register(c->regs, low_bits(rule.words)) + high_words(rule.words);
		now->followed = NOT_AGAIN;
		break;
	case UNWIND_IN_REGISTER:
		if (!innermost)
			return STACK_NO_RULE;
		w->pc = user_register(c->regs, low_bits(rule.words));
		w->sp += high_words(rule.words);
		w->exact = 0;
		now->followed = NOT_AGAIN;
		return GO_ON;
	case UNWIND_PLT:
		cfa = w->sp + ((w->pc & 15) >= rule.words ? 16 : 8);
		break;
	case UNWIND_FRAME_POINTER:
		return w->bp_known ? leave_by_frame_pointer(c) : STACK_NO_RULE;
	case UNWIND_END:
		return STACK_COMPLETE;
	case UNWIND_SIGNAL:
		return leave_signal(c);
	case UNWIND_GAP:
		return leave_unknown(c);
	default:
		return STACK_NO_RULE;
	}
	if (cfa <= w->sp)
		return STACK_INCONSISTENT;
	if (rule.rbp == UNWIND_RBP_AT_CFA) {
		w->bp_at = cfa + rule.rbp_words * 8;
		if (!stack_word(c, &w->bp, w->bp_at))
			return STACK_UNREADABLE;
		w->bp_known = 1;
	} else if (rule.rbp == UNWIND_RBP_AT_RBP && w->bp_known) {
		follow_bp(now, w, w->bp);
		w->bp_at = w->bp + rule.rbp_words * 8;
		if (!stack_word(c, &w->bp, w->bp_at))
			return STACK_UNREADABLE;
	} else if (rule.rbp != UNWIND_RBP_SAME) {
		w->bp_known = 0;
	}
	if (!stack_word(c, &w->pc, cfa - 8))
		return STACK_UNREADABLE;
	follow(now, cfa - 8, w->pc);
	w->sp = cfa;
	w->exact = 0;
	return GO_ON;
}

/* Calls in each other whose return is probed: collections hardly ever are. */
#define PROBED_RETURNS 8

/*
 * A function whose return is probed (gc/gc.bpf.c has one, and other tools may have more) returns to a page of
 * the kernel's, which is in no mapping with a table. Where it returns to in truth the kernel knows, by where
 * the return address lies.
 */
static __noinline bool native_probed_return(struct native_walk *w, struct task_struct *task)
{
	struct return_instance *call;

	if (!bpf_core_field_exists(task->utask))
		return false;
	call = BPF_CORE_READ(task, utask, return_instances);
	for (int i = 0; i < PROBED_RETURNS && call; i++) {
		if (BPF_CORE_READ(call, stack) == w->sp - sizeof(__u64)) {
			w->pc = BPF_CORE_READ(call, orig_ret_vaddr);
			return true;
		}
		call = BPF_CORE_READ(call, next);
	}
	return false;
}

/* One frame: recorded, and left. Returns 1 at the last. */
static long native_frame(__u32 index, struct native_context *c)
{
	struct stack_scratch *s = c->s;
	struct native_walk *w = &s->native;
	struct unwind_rule rule = {};
	__u64 pc = w->pc;
	int end;

	if (!pc) {
		w->end = STACK_COMPLETE;
		return 1;
	}
	if (!stack_push(s, pc)) {
		w->end = STACK_TOO_DEEP;
		return 1;
	}
	s->e.native_frames++;
	/* A return address may be the next function's first byte: the call is before it. */
	end = native_rule(w, c->memory, w->exact ? pc : pc - 1, &rule);
	if (end == STACK_NO_MAPPING) {
		if (!w->exact && native_probed_return(w, c->task)) {
			/* Other calls of the function leave the same on the stack. */
			c->memory->now.followed = NOT_AGAIN;
			s->e.native_frames--;
			s->used--;
			return 0;
		}
		unwind_is_stale(s->e.h.tgid, c->task);
	}
	if (end == GO_ON)
		end = leave_frame(c, rule, index == 0);
	if (end == GO_ON)
		return 0;
	w->end = end;
	return 1;
}

/*
 * In: `task` is whose stack is walked, `regs` are the registers with which it left user mode (all of them
 * are there, after a system call as after an interrupt). `s->e.h.tgid` is its process. Of the current thread
 * memory is read with preemption off and without page faults, by bpf_probe_read_user().
 *
 * Out: each frame's address by stack_push(), innermost first: regs->ip, then return addresses; how many
 * in s->e.native_frames, NATIVE_FRAMES at the most. Returns why it ended.
 */
static __always_inline enum stack_end walk_native(struct stack_scratch *s, struct task_struct *task,
						  struct pt_regs *regs)
{
	struct native_context c = { .s = s, .task = task, .regs = regs };
	struct native_walk *w = &s->native;
	struct unwind_process *p;
	__u32 tgid = s->e.h.tgid, moment = s->e.moment;

	c.memory = bpf_map_lookup_elem(&unwind_memory, &moment);
	if (!c.memory)
		return STACK_ENDS;
	p = bpf_map_lookup_elem(&unwind_processes, &tgid);
	s->e.native_frames = 0;
	w->first = p ? p->first : 0;
	w->count = p ? p->count : 0;
	w->generation = p ? p->generation : 0;
	w->start = 0;
	w->size = 0;
	w->window = 0;
	w->pc = regs->ip;
	w->sp = regs->sp;
	w->bp = regs->bp;
	w->bp_at = 0;
	w->bp_known = 1;
	w->exact = 1;
	w->end = STACK_TOO_DEEP;
	c.memory->now.ip = regs->ip;
	c.memory->now.sp = regs->sp;
	c.memory->now.bp = regs->bp;
	c.memory->now.generation = w->generation;
	c.memory->now.followed = 0;
	c.memory->now.words = 0;
	c.memory->now.needs_bp = 0;
	bpf_loop(NATIVE_FRAMES, native_frame, &c, 0);
	return w->end;
}

#endif
