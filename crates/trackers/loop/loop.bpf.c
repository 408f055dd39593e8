// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Event loops: a thread that asks for events again and again. What lies between being given some and
 * asking for more is an iteration; one that takes long keeps everybody else waiting.
 *
 * That a thread waits for events is seen at the context switch. A busy loop does not wait: it is
 * given events at once, and nothing in the kernel that could be traced cheaply tells of the call. So
 * the C library's functions are probed, in watched processes only, at an instruction that costs
 * half a microsecond (agent/src/loops.rs).
 */
#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include "../ledger/classify.bpf.h"
#define UNDERSPAN_DEFINE_LOOPS
#include "loop.bpf.h"

/* A thread that has asked this often does so for a living. */
#define LOOP_ITERATIONS 16
/* Fewer descriptors are a wait for an answer, not a loop. */
#define LOOP_DESCRIPTORS 3
/* Of where it slept before that long, nanoseconds asleep, half is forgotten. */
#define LOOP_LATELY 60000000000ULL

/* A running thread's ledger as of `now`, without writing to it: only the scheduler's programs may.
 * If the thread was preempted meanwhile, what was read does not sum. */
static __always_inline bool read_ledger(const struct thread *t, __u64 *ns, __u64 now)
{
	__u64 since = *(volatile __u64 *)&t->since, sum = 0;

	__builtin_memcpy(ns, t->ns, STATES * sizeof(*ns));
	if (now > since)
		add_time(ns, t->state, now - since);
	for (int i = 0; i < STATES; i++)
		sum += ns[i];
	return since == *(volatile __u64 *)&t->since && sum == now - t->born;
}

static __always_inline void emit_iteration(struct thread *t, struct loop *l, const __u64 *ns, __u64 now)
{
	struct loop_event *e = reserve(TRACKER_LOOP, sizeof(*e));

	if (!e)
		return;
	fill_header(&e->h, EVENT_LOOP, t, l->since);
	e->duration = now - l->since;
	for (int i = 0; i < STATES; i++)
		e->ns[i] = ns[i] - l->ns[i];
	e->fd = l->fd;
	e->kind = l->kind;
	__builtin_memset(e->_pad, 0, sizeof(e->_pad));
	submit(e);
}

/* The thread asks about something else: should it sleep there, that is within the iteration. */
static __always_inline int asks_otherwise(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct loop *l = bpf_map_lookup_elem(&loops, &tid);

	if (l)
		l->asked = 0;
	return 0;
}

/* Without anything to do, a loop waits for events. A thread that sleeps more elsewhere, and not in the midst of
 * a request, only waits for answers that way: for what to do next it waits there. */
static __always_inline bool is_loop(struct loop *l)
{
	if (l->asleep + l->elsewhere > LOOP_LATELY) {
		l->asleep /= 2;
		l->elsewhere /= 2;
	}
	return l->iterations >= LOOP_ITERATIONS && l->asleep >= l->elsewhere;
}

/* A function of its own for the room that it takes on the stack, of which asks_for_events() has little to spare on
 * Linux 6.1. */
static __noinline long add_loop(__u32 tid, __u32 kind, __s32 fd)
{
	struct loop new = { .fd = fd, .kind = kind };

	return bpf_map_update_elem(&loops, &tid, &new, BPF_NOEXIST);
}

static __always_inline int asks_for_events(enum loop_kind kind, __s32 fd)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct loop *l;
	__u64 ns[STATES], now;

	if (!t)
		return 0;
	l = bpf_map_lookup_elem(&loops, &tid);
	if (!l) {
		add_loop(tid, kind, fd);
		l = bpf_map_lookup_elem(&loops, &tid);
		if (!l)
			return 0;
		t->loop_kind = kind + 1;
	}
	if (l->kind != kind || l->fd != fd) {
		/* Something within an iteration. Unless the loop is no more, and this is the next. */
		l->asked = 0;
		if (++l->strangers < LOOP_ITERATIONS)
			return 0;
		l->kind = kind;
		l->fd = fd;
		l->iterations = 0;
		l->since = 0;
		l->asleep = 0;
		l->elsewhere = 0;
		t->loop_kind = kind + 1;
	}
	l->strangers = 0;
	l->asked = 1;
	now = bpf_ktime_get_ns();
	if (!is_on_cpu(t->state)) /* the one write: rare, and over before a preemption would meet it */
		arrive_untold(now);
	if (!read_ledger(t, ns, now)) {
		now = bpf_ktime_get_ns();
		if (!read_ledger(t, ns, now)) {
			count_lost(TRACKER_LOOP, LOST_TORN);
			l->since = 0;
			return 0;
		}
	}
	if (is_loop(l) && l->since && now - l->since >= config.loop_threshold_ns)
		emit_iteration(t, l, ns, now);
	l->iterations++;
	l->since = now;
	__builtin_memcpy(l->ns, ns, sizeof(l->ns));
	return 0;
}

SEC("uprobe")
int loop_epoll(struct pt_regs *ctx)
{
	return asks_for_events(LOOP_EPOLL, PT_REGS_PARM1(ctx));
}

/* Libraries make an epoll instance to wait for one answer, and close it. The next has the same number, and
 * is no loop for that. It is closed by now: its place in the table is empty. */
SEC("fentry/ep_eventpoll_release")
int BPF_PROG(loop_epoll_closed)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = task->pid;
	struct loop *l = bpf_map_lookup_elem(&loops, &tid);

	if (l && l->kind == LOOP_EPOLL && !file_of(task, l->fd)) {
		l->iterations = 0;
		l->since = 0;
	}
	return 0;
}

SEC("uprobe")
int loop_poll(struct pt_regs *ctx)
{
	return PT_REGS_PARM2(ctx) < LOOP_DESCRIPTORS ? asks_otherwise() : asks_for_events(LOOP_POLL, -1);
}

/* The descriptors asked for are bits. */
static __always_inline __u32 asked_for(const void *set, __u32 highest)
{
	__u64 words[16] = {};
	__u32 count = 0;

	if (!set || bpf_probe_read_user(words, sizeof(words), set))
		return 0;
	for (__u32 i = 0; i < 16 && i * 64 < highest; i++) {
		__u64 word = words[i];

		if (highest < (i + 1) * 64)
			word &= (1ULL << (highest - i * 64)) - 1;
		count += __builtin_popcountll(word);
	}
	return count;
}

SEC("uprobe")
int loop_select(struct pt_regs *ctx)
{
	__u32 highest = PT_REGS_PARM1(ctx);
	__u32 count = asked_for((void *)PT_REGS_PARM2(ctx), highest) +
		      asked_for((void *)PT_REGS_PARM3(ctx), highest);

	return count < LOOP_DESCRIPTORS ? asks_otherwise() : asks_for_events(LOOP_SELECT, -1);
}
