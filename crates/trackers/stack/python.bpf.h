/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks the Python frames of the current thread: from its pthread_self() to its PyThreadState, and
 * from there along the frames. Compiles as BPF and, with user.h in place of the kernel, as user code.
 */
#ifndef UNDERSPAN_PYTHON_BPF_H
#define UNDERSPAN_PYTHON_BPF_H

#include "scratch.bpf.h"
#include "python.h"

/* Thread states that are looked at before a thread is given up, and steps along its frames: from
 * 3.12 on there can be a shim to each. */
#define PYTHON_THREADS 4096
#define PYTHON_STEPS (PYTHON_THREADS + 2 * PYTHON_FRAMES + 64)

/* FRAME_OWNED_BY_CSTACK in 3.12 and 3.13; FRAME_OWNED_BY_INTERPRETER and _CSTACK in 3.14. */
#define PYTHON_SHIM_OWNER 3

/* struct python_frame's second word: `entry`. */
#define PYTHON_ENTRY_BIT (1ull << 60)

/* The state of a thread that keeps none is looked for among all others' again after this long. */
#define PYTHON_LOOK_AGAIN_NS 1000000000

struct python_context {
	struct stack_scratch *s;
	const struct python_layout *layout;
};

static __always_inline bool python_word(__u64 address, __u64 *word)
{
	return !bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

static __always_inline __u64 part_word(const __u8 *part, __u8 offset)
{
	return *(const __u64 *)(part + offset);
}

static __always_inline __u32 part_half(const __u8 *part, __u8 offset)
{
	return *(const __u32 *)(part + offset);
}

/* user space folds a code object's fields in the same way: Fields::check() in underspan-cpython. */
static __always_inline __u64 fold(__u64 hash, __u64 field)
{
	return (hash ^ field) * 0x9e3779b97f4a7c15ull;
}

static __always_inline long python_ends(struct python_walk *w, enum stack_end end)
{
	w->end = end;
	return 1;
}

/* The innermost frame of a thread state, 0 if it runs no Python code. */
static __always_inline bool innermost_frame(const struct python_layout *l, __u64 tstate, __u64 *frame)
{
	__u64 at;

	if (!python_word(tstate + l->tstate_frame, &at))
		return false;
	if (!l->has_cframe || !at) {
		*frame = at;
		return true;
	}
	return python_word(at + l->cframe_frame, frame);
}

/* One step in search of the thread's state: to the next thread, or the next interpreter. */
static __always_inline long python_find(const struct python_layout *l, struct stack_scratch *s)
{
	struct python_walk *w = &s->python;
	__u64 pthread, next, tstate = w->tstate, interpreter = w->interpreter;

	if (!tstate) {
		if (!interpreter)
			return python_ends(w, s->e.python_frames ? STACK_COMPLETE : STACK_ABSENT);
		if (!python_word(interpreter + l->interp_threads, &w->tstate) ||
		    !python_word(interpreter + l->interp_next, &w->interpreter))
			return python_ends(w, STACK_UNREADABLE);
		return 0;
	}
	if (!python_word(tstate + l->tstate_thread_id, &pthread) ||
	    !python_word(tstate + l->tstate_next, &next))
		return python_ends(w, STACK_UNREADABLE);
	w->tstate = next;
	if (pthread != w->pthread)
		return 0;
	w->found = tstate;
	if (!innermost_frame(l, tstate, &w->frame))
		return python_ends(w, STACK_UNREADABLE);
	/* A thread that runs a subinterpreter has a state in both, and frames in both: those of
	 * the newer interpreter, which comes first, are the inner ones. */
	if (!w->frame && w->alone)
		return python_ends(w, STACK_ABSENT);
	return 0;
}

/* Reads a code object into the place where it is remembered. */
static __always_inline bool read_code(const struct python_layout *l, struct python_walk *w,
				      struct python_code *known, __u64 code)
{
	__u64 filename, name, check, len = l->code_len;

	known->code = 0;
	barrier_var(len);
	if (len > PYTHON_PART ||
	    bpf_probe_read_user(w->code_part, len, (void *)(code + l->code_from))) {
		w->end = STACK_UNREADABLE;
		return false;
	}
	if (part_word(w->code_part, l->code_ob_type) != l->code_type) {
		w->end = STACK_INCONSISTENT;
		return false;
	}
	filename = part_word(w->code_part, l->code_filename);
	name = part_word(w->code_part, l->code_name);
	check = fold(fold(part_half(w->code_part, l->code_firstlineno), filename), name);
	known->check = fold(check, part_word(w->code_part, l->code_linetable)) >> 32;
	/* The frame that calls __init__() is named so by file and by function. */
	known->code = filename == name ? 0 : code;
	return true;
}

/* What is known of the code object that a frame runs. NULL: nothing; w->end tells why. */
static __always_inline struct python_code *python_code(const struct python_layout *l,
						       struct stack_scratch *s, const __u8 *part,
						       __u64 code)
{
	struct python_walk *w = &s->python;
	struct python_code *known = &w->codes[fold(0, code) >> (64 - PYTHON_CODE_BITS)];
	__u32 tag = fold(fold(s->e.h.tgid, part_word(part, l->frame_tags[0])),
			 part_word(part, l->frame_tags[1])) >> 32;

	if (known->code == code && known->tag == tag && s->e.h.time - known->as_of < PYTHON_CODE_NS)
		return known;
	if (!read_code(l, w, known, code))
		return NULL;
	known->tag = tag;
	known->as_of = s->e.h.time;
	return known;
}

static __always_inline void set_lasti(const struct python_layout *l, const __u8 *part,
				      struct python_frame *frame)
{
	__s64 lasti;

	if (l->code_start)
		lasti = part_word(part, l->frame_instr) - frame->code - l->code_start;
	else
		lasti = (__s64)(__s32)part_half(part, l->frame_instr) * l->lasti_unit;
	if (lasti < 0) {
		lasti = 0;
		frame->flags = PYTHON_STARTING;
	} else if (lasti > PYTHON_LASTI_UNKNOWN) {
		lasti = PYTHON_LASTI_UNKNOWN;
	}
	frame->lasti = lasti;
}

/* The evaluator was entered for the frame that was recorded last. */
static __always_inline void mark_entry(struct stack_scratch *s)
{
	__u64 at = (__u64)s->used - 1;

	barrier_var(at);
	if (at < STACK_WORDS && s->e.python_frames)
		s->words[at] |= PYTHON_ENTRY_BIT;
}

/* Where in w->frames the part is of the frame at an address; ~0: it cannot be read. */
static __always_inline __u64 read_frame(const struct python_layout *l, struct python_walk *w, __u64 address)
{
	__u64 from = address + l->frame_from, len = l->frame_len, start;

	if (from - w->window < w->window_len && from + len - w->window <= w->window_len)
		return PYTHON_PART + (from - w->window);
	if (l->frames == PYTHON_EVERY_FRAME || (w->last && w->last - address >= PYTHON_WINDOW)) {
		barrier_var(len);
		if (len > PYTHON_PART || bpf_probe_read_user(w->frames, len, (void *)from))
			return ~0ull;
		return 0;
	}
	/* Not over the page's beginning: what comes before may not be mapped. */
	start = from + len - PYTHON_WINDOW;
	if (start < (from & ~4095ull))
		start = from & ~4095ull;
	w->window = start;
	w->window_len = 0;
	len += from - start;
	barrier_var(len);
	if (len > PYTHON_WINDOW ||
	    bpf_probe_read_user(w->frames + PYTHON_PART, len, (void *)start))
		return ~0ull;
	w->window_len = len;
	return PYTHON_PART + (from - start);
}

/* One step along the frames. */
static __always_inline long python_frame(const struct python_layout *l, struct stack_scratch *s)
{
	struct python_walk *w = &s->python;
	struct python_frame frame = {};
	struct python_code *code;
	__u64 address = w->frame, at = read_frame(l, w, address), previous;
	const __u8 *part;
	__u8 entry;

	if (at == ~0ull)
		return python_ends(w, STACK_UNREADABLE);
	part = w->frames + (at & (PYTHON_FRAME_BYTES - 1));
	previous = part_word(part, l->frame_previous);
	entry = part[l->frame_entry];
	if (previous == address)
		return python_ends(w, STACK_INCONSISTENT);
	w->frame = previous;
	if (l->frames == PYTHON_SHIM_FRAMES && entry >= PYTHON_SHIM_OWNER) {
		mark_entry(s);
	} else {
		if (s->e.python_frames >= PYTHON_FRAMES)
			return python_ends(w, STACK_TOO_DEEP);
		w->last = address;
		/* 3.14 tags the pointer. */
		frame.code = part_word(part, l->frame_code) & ~7ull;
		code = python_code(l, s, part, frame.code);
		if (!code)
			return 1;
		frame.check = code->check;
		frame.entry = l->frames == PYTHON_EVERY_FRAME ||
			      (l->frames == PYTHON_ENTRY_FLAG && entry == 1);
		set_lasti(l, part, &frame);
		if (code->code) {
			if (!stack_push_python(s, &frame))
				return python_ends(w, STACK_TOO_DEEP);
			s->e.python_frames++;
			w->hash = fold(fold(w->hash, frame.code), ((__u64 *)&frame)[1]);
		}
	}
	if (previous)
		return 0;
	/* The outermost of this thread state. */
	w->last = 0;
	return w->alone ? python_ends(w, s->e.python_frames ? STACK_COMPLETE : STACK_ABSENT) : 0;
}

static long python_step(__u32 index, struct python_context *context)
{
	struct stack_scratch *s = context->s;

	return s->python.frame ? python_frame(context->layout, s) : python_find(context->layout, s);
}

/*
 * The frames of the thread whose pthread_self() is given, into `s`. `tstate` is where its thread state
 * was the last time, or 0. On return s->python.found is where it is, or 0.
 */
static __always_inline enum stack_end walk_python_frames(struct stack_scratch *s,
							 const struct python_layout *l,
							 __u64 pthread, __u64 tstate)
{
	struct python_context context = { .s = s, .layout = l };
	struct python_walk *w = &s->python;
	__u64 is_owned_by = 0;

	__builtin_memset(w, 0, __builtin_offsetof(struct python_walk, frames));
	w->pthread = pthread;
	if (!python_word(l->interpreters, &w->interpreter))
		return STACK_UNREADABLE;
	w->alone = w->interpreter == l->main;
	if (w->alone && tstate && python_word(tstate + l->tstate_thread_id, &is_owned_by) &&
	    is_owned_by == pthread) {
		w->found = tstate;
		if (!innermost_frame(l, tstate, &w->frame))
			return STACK_UNREADABLE;
		if (!w->frame)
			return STACK_ABSENT;
	}
	w->end = STACK_ENDS;
	bpf_loop(PYTHON_STEPS, python_step, &context, 0);
	if (w->end != STACK_ENDS)
		return w->end;
	return w->frame ? STACK_INCONSISTENT : STACK_NO_THREAD_STATE;
}

#ifndef UNDERSPAN_USER

/* Where a thread's state was found, or that there was none. */
struct python_state {
	__u64 tstate;
	__u64 as_of;
};

STACKS struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, struct python_state);
} python_states SEC(".maps");

/*
 * What pthread_getspecific() gives for the first keys: glibc keeps the values in struct pthread, each behind
 * a number, at the same place in all its releases for x86-64. CPython keeps the thread's state there.
 */
#define SPECIFICS_AT 0x310
#define SPECIFICS 32

struct specifics {
	struct python_walk *walk;
	__u64 pthread;
	__u64 thread_id; /* where in a thread state it says whose it is */
	__u64 found;
};

/* Is this value the thread's state? */
static long look_at_specific(__u32 index, struct specifics *c)
{
	__u64 value, whose;

	if (index >= SPECIFICS)
		return 1;
	value = *(__u64 *)&c->walk->frames[index * 16 + 8];
	if (!value || !python_word(value + c->thread_id, &whose) || whose != c->pthread)
		return 0;
	c->found = value;
	return 1;
}

/* The thread's state, without a look at those of all others, of which there may be thousands. 0: it has none
 * there. */
static __noinline __u64 own_state(struct python_walk *walk, __u64 pthread, __u64 thread_id)
{
	struct specifics c = { .walk = walk, .pthread = pthread, .thread_id = thread_id };

	if (bpf_probe_read_user(walk->frames, SPECIFICS * 16, (void *)(pthread + SPECIFICS_AT)))
		return 0;
	bpf_loop(SPECIFICS, look_at_specific, &c, 0);
	return c.found;
}

/*
 * In: `task` is the current thread, `s->e.h.tgid` its process. Preemption is off and page faults are
 * not taken: memory is read with bpf_probe_read_user(). The native frames are in `s` already.
 *
 * Out: each frame by stack_push_python(), innermost first; how many in s->e.python_frames,
 * PYTHON_FRAMES at the most. Returns why it ended; STACK_ABSENT if the thread runs no Python.
 */
static __always_inline enum stack_end walk_python(struct stack_scratch *s, struct task_struct *task)
{
	__u32 tgid = s->e.h.tgid, tid = s->e.h.tid;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	struct python_state *known, now = { .as_of = s->e.h.time };
	__u64 tstate = 0;
	enum stack_end end;

	if (!p || p->python.frames == PYTHON_NOT_READ)
		return STACK_ABSENT;
	known = bpf_map_lookup_elem(&python_states, &tid);
	if (known)
		tstate = known->tstate;
	if (!tstate)
		tstate = own_state(&s->python, task->thread.fsbase, p->python.tstate_thread_id);
	/* Not every thread of a Python process is one of Python's, and a new one is not yet. */
	if (!tstate && known && s->e.h.time - known->as_of < PYTHON_LOOK_AGAIN_NS)
		return STACK_ABSENT;
	end = walk_python_frames(s, &p->python, task->thread.fsbase, tstate);
	now.tstate = s->python.found;
	if (!known || now.tstate != known->tstate || !now.tstate)
		bpf_map_update_elem(&python_states, &tid, &now, BPF_ANY);
	return end;
}

#endif
#endif
