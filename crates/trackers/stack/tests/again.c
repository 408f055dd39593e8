/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sending stacks, and knowing them again, as user code: stack.bpf.c, stack.bpf.h and again.bpf.h as they are. What is
 * left out are the shared maps, errands, and the walkers, which have tests of their own: here the test says what a walk
 * finds.
 */
#define UNDERSPAN_USER
#define UNDERSPAN_MAPS_H
#define UNDERSPAN_ERRAND_BPF_H
#define UNDERSPAN_NATIVE_BPF_H
#define UNDERSPAN_DEFINE_STACKS
#include "../scratch.bpf.h"
#include "../python.bpf.h"
#include "../../bpf/thread.h"

#define GOLDEN_64 0x9e3779b97f4a7c15ULL /* as in native.bpf.h */

/* Where a thread stands, and what walks find there. As in again.rs. */
struct there {
	__u64 time;
	__u64 ip;
	__u64 sp;
	const __u64 *words; /* the stack from `sp` on: each is a return address */
	__u64 python;	    /* the code object of its only Python frame; 0: it has none */
	__u32 tid;
	__u32 count; /* of `words` */
	__u32 native_end;
	__u32 python_end;
	__u32 is_loop;
	__u32 is_full; /* the ring has no room */
};

struct pt_regs {
	__u64 ip, sp, bp;
};

struct task_struct;

#define TGID 5000
#define GENERATION 7

static _Thread_local struct {
	const struct there *there;
	struct pt_regs regs;
	__u8 *record;
	__u32 room;
	__u32 len;
} test;

STACKS struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct unwind_process);
} unwind_processes SEC(".maps");

STACKS struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct unwind_memory);
} unwind_memory SEC(".maps");

static struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
} lost;

static int events;

#define bpf_get_current_task_btf() ((struct task_struct *)NULL)
#define bpf_task_pt_regs(task) (&test.regs)
#define bpf_get_task_stack(task, to, size, flags) (0L)
#define bpf_ringbuf_query(ring, what) (0ULL)
#define bpf_ringbuf_reserve(ring, size, flags) ((void *)NULL)
#define bpf_ringbuf_submit(event, flags) ((void)(event), (void)(flags))

static long bpf_ringbuf_output(void *ring, const void *record, __u64 len, __u64 flags)
{
	if (test.there->is_full || len > test.room)
		return -1;
	memcpy(test.record, record, len);
	test.len = len;
	return 0;
}

static long read_stack(void *recording, void *to, __u32 len, __u64 from)
{
	const struct there *there = recording;
	__u64 into = from - there->sp;

	if (into + len > there->count * sizeof(__u64))
		return -14;
	memcpy(to, (const __u8 *)there->words + into, len);
	return 0;
}

static enum stack_end walk_native(struct stack_scratch *s, struct task_struct *task, struct pt_regs *regs)
{
	__u32 moment = s->e.moment;
	struct unwind_memory *memory = bpf_map_lookup_elem(&unwind_memory, &moment);
	const struct there *there = test.there;

	memset(&memory->now, 0, sizeof(memory->now));
	memory->now.ip = regs->ip;
	memory->now.sp = regs->sp;
	memory->now.generation = GENERATION;
	memory->now.followed = memory->now.words = there->count;
	stack_push(s, regs->ip);
	for (__u32 i = 0; i < there->count; i++) {
		memory->now.value[i] = there->words[i];
		memory->now.slot[i] = i;
		stack_push(s, there->words[i]);
	}
	s->e.native_frames = 1 + there->count;
	return there->native_end;
}

static enum stack_end walk_python(struct stack_scratch *s, struct task_struct *task)
{
	struct python_frame frame = { .code = test.there->python };

	if (frame.code) {
		stack_push_python(s, &frame);
		s->e.python_frames = 1;
		s->python.hash = fold(s->python.hash, frame.code);
	}
	return test.there->python_end;
}

#include "../stack.bpf.c"

/* Nothing has been told yet. */
void underspan_test_begin_stacks(void)
{
	struct unwind_process process = { .generation = GENERATION };
	__u32 tgid = TGID;

	user_forget();
	bpf_map_update_elem(&unwind_processes, &tgid, &process, BPF_ANY);
}

/* A thread that is back from a wait tells where it stands. Returns the length of its record; 0: it is lost. */
__u32 underspan_test_tell_stack(const struct there *there, __u8 *record, __u32 room)
{
	struct thread t = { .tgid = TGID, .tid = there->tid, .loop_kind = there->is_loop };

	user.read = read_stack;
	user.recording = (void *)there;
	test.there = there;
	test.regs = (struct pt_regs){ .ip = there->ip, .sp = there->sp };
	test.record = record;
	test.room = room;
	test.len = 0;
	take_stack(&t, STACK_AFTER_WAIT, there->time, there->time);
	return test.len;
}
