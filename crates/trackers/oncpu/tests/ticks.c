/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The sampling program as user code, as it is. What is left out is what it has in common with others: maps, ledgers and
 * stacks. The machine has no PMU.
 */
#include "user.h"
#define UNDERSPAN_STACK_BPF_H
#define UNDERSPAN_CHARGE_H
#include "../../bpf/thread.h"
#include "../../stack/stack.h"

struct stack_scratch {
	struct stack_event e;
	__u64 words[KERNEL_FRAMES];
};

/* What the clock finds, and what is told of it. */
static _Thread_local struct {
	__u64 time;
	__u32 tid;
	__u64 weight;
	struct stack_scratch scratch;
} tick;

static struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct thread);
} threads;

#define bpf_ktime_get_ns() (tick.time)
#define bpf_get_current_pid_tgid() ((__u64)tick.tid << 32 | tick.tid)
#define bpf_get_smp_processor_id() 0
#define bpf_get_stack(ctx, to, size, flags) (0L)
#define on_cpu_state(thread) STATE_RUNNING
#define is_on_cpu(state) ((state) == STATE_RUNNING)

static long bpf_perf_event_read_value(void *map, __u64 cell, struct bpf_perf_event_value *value, __u32 size)
{
	return -2;
}

static struct stack_scratch *stack_begin(enum stack_moment moment, const struct thread *t, __u64 now)
{
	return &tick.scratch;
}

static void stack_kernel_taken(struct stack_scratch *s, long bytes)
{
}

static void stack_user(struct stack_scratch *s)
{
}

static bool stack_send(struct stack_scratch *s, enum event_kind kind, enum tracker_id tracker)
{
	tick.weight = s->e.weight;
	return true;
}

#include "../oncpu.bpf.c"

/* A CPU whose clock has not ticked yet, on a machine where one thread is watched. */
void underspan_test_begin_ticks(__u32 watched)
{
	struct thread t = { .tid = watched };

	user_forget();
	bpf_map_update_elem(&threads, &watched, &t, BPF_ANY);
}

/*
 * The clock ticks, and finds this thread, which has run since then by its ledger, or by which it waits still; 0: nobody.
 * Returns what the sample stands for; 0: there is none.
 */
__u64 underspan_test_tick(__u64 time, __u32 tid, __u64 since, bool waits, __u64 period)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct sample sample = { .period = period };

	if (t) {
		t->since = since;
		t->state = waits ? STATE_LOCK_WAIT : STATE_RUNNING;
	}
	tick.time = time;
	tick.tid = tid;
	tick.weight = 0;
	oncpu_sample(&sample);
	return tick.weight;
}
