// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Samples: on each CPU a clock ticks, and if a watched thread is running there, its stack is taken. A
 * thread that is blocked is on no CPU, so it has none.
 *
 * The clock ticks in a hard interrupt, so it never sees a ledger half written: those who write one
 * have interrupts off.
 */
#include "../stack/stack.bpf.h"
#include "../bpf/charge.h"
#include "oncpu.h"

#define CPUS 4096

/* The program's argument, as linux/bpf_perf_event.h has it. It is an interface: its layout does not
 * change, and words are read from it as words. */
struct sample {
	__u64 registers[21]; /* of asm/ptrace.h */
	__u64 period;
	__u64 address;
};

#define REGISTER_CS 17

/* The counters' events, COUNTERS cells for each CPU; empty where there is no PMU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, CPUS * COUNTERS);
	__type(key, __u32);
	__type(value, __u32);
} counters SEC(".maps");

/* What a CPU's clock and counters said at its last tick. */
struct last_tick {
	__u64 time; /* up to which its periods are counted; 0: there was none */
	struct bpf_perf_event_value counters[COUNTERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct last_tick);
} last_ticks SEC(".maps");

/*
 * How much was counted since the last tick. The processor may have too few counters for everybody:
 * then the kernel takes turns, and what was not counted is taken to be like the rest.
 */
static __always_inline __u64 counted(struct last_tick *last, enum counter which)
{
	struct bpf_perf_event_value now, *before = &last->counters[which];
	__u32 cell = bpf_get_smp_processor_id() * COUNTERS + which;
	__u64 count, enabled, running;
	bool first;

	if (bpf_perf_event_read_value(&counters, cell, &now, sizeof(now))) {
		__builtin_memset(before, 0, sizeof(*before));
		return COUNTER_UNKNOWN;
	}
	first = !before->enabled;
	count = now.counter - before->counter;
	enabled = now.enabled - before->enabled;
	running = now.running - before->running;
	*before = now;
	if (first || !running)
		return COUNTER_UNKNOWN;
	return running < enabled ? count * enabled / running : count;
}

/*
 * Whole periods since the last tick: a hypervisor may have held some back, and a CPU that sleeps is not always given
 * its own. The clock goes on in its own time: of two ticks of which the first is late by more than half a period the
 * second stands for none, as the first has all. A tick is never early, and all may be late from now on: that is followed
 * slowly, or half of them would stand for two and half for none.
 */
static __always_inline __u64 periods_since(struct last_tick *last, __u64 now, __u64 period)
{
	__u64 from = last->time ? last->time : now - period;
	__u64 periods = period ? (now - from + period / 2) / period : 1;

	last->time = from + periods * period;
	if (now < last->time)
		last->time = now;
	else
		last->time += (now - last->time) / 8;
	return periods;
}

/* Of so many periods, up to `end`, the thread that the clock found has the last, and those before in which it ran. */
static __always_inline __u64 of_thread(const struct thread *t, __u64 periods, __u64 end, __u64 period)
{
	__u64 ran = end - t->since;

	if (periods < 2)
		return periods;
	if (!is_on_cpu(t->state) || (__s64)ran < 0)
		return 1; /* it is not known when it came, or it came just now */
	return periods <= ran / period ? periods : ran / period + 1;
}

/* Where in the kernel the clock found it. Nowhere, if it was in user mode. */
static __always_inline void interrupted_in(struct stack_scratch *s, struct sample *ctx)
{
	if (ctx->registers[REGISTER_CS] & 3)
		return;
	stack_kernel_taken(s, bpf_get_stack(ctx, s->words, KERNEL_FRAMES * sizeof(__u64), 0));
}

SEC("perf_event")
int oncpu_sample(struct sample *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid(), zero = 0;
	struct last_tick *last = bpf_map_lookup_elem(&last_ticks, &zero);
	struct stack_scratch *s;
	struct thread *t;
	__u64 instructions = COUNTER_UNKNOWN, cache_misses = COUNTER_UNKNOWN;
	__u64 branch_misses = COUNTER_UNKNOWN, cycles, periods, now;

	if (!last)
		return 0;
	/* Whoever runs: the next tick wants to know what was counted since this one. */
	now = bpf_ktime_get_ns();
	periods = periods_since(last, now, ctx->period);
	if (!periods)
		return 0;
	cycles = counted(last, COUNTER_CYCLES);
	/* The leader of the group: without it there is none of them. */
	if (last->counters[COUNTER_CYCLES].enabled) {
		instructions = counted(last, COUNTER_INSTRUCTIONS);
		cache_misses = counted(last, COUNTER_CACHE_MISSES);
		branch_misses = counted(last, COUNTER_BRANCH_MISSES);
	}

	t = tid ? bpf_map_lookup_elem(&threads, &tid) : NULL;
	if (!t)
		return 0;
	s = stack_begin(STACK_ON_CPU, t, now);
	if (!s)
		return 0;
	s->e.weight = of_thread(t, periods, last->time, ctx->period) * ctx->period;
	s->e.cycles = cycles;
	s->e.instructions = instructions;
	s->e.cache_misses = cache_misses;
	s->e.branch_misses = branch_misses;
	s->e.state = on_cpu_state(t);
	interrupted_in(s, ctx);
	stack_user(s);
	stack_send(s, EVENT_ON_CPU, TRACKER_ONCPU);
	return 0;
}
