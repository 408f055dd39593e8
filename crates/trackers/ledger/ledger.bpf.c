// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The ledger: on every context switch of a watched thread, the time since the last one is charged to
 * the state that ends. A wait is split where the thread is woken.
 *
 * Who writes a thread's ledger is ordered by the scheduler itself: its own CPU while it leaves, runs or
 * enters, the waker (under the thread's pi_lock) while it is blocked, and nobody else. So whether it is
 * blocked must not be taken from the ledger alone, where the kernel may not have told that it came.
 */
#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include "../bpf/interrupt.h"
#include <bpf/bpf_endian.h>
#include "../loop/loop.bpf.h"
#include "classify.bpf.h"
#include "ledger.h"

/*
 * The thread is ready. If its cgroup's quota is used up it cannot run all the same: then it is
 * throttled. Which of the two it was, and for how long, is settled when it runs (settle_ready).
 */
static __always_inline __u8 ready_state(struct thread *t, struct task_struct *task)
{
	struct cfs_rq *queue = NULL;

	if (!bpf_core_field_exists(queue->throttle_count))
		return STATE_RUNNABLE;
	queue = task->se.cfs_rq;
	if (!queue)
		return STATE_RUNNABLE;
	if (bpf_core_field_exists(queue->throttled_clock_self_time)) {
		t->wait.queue = (__u64)queue;
		t->wait.throttled = queue->throttled_clock_self_time;
	}
	return queue->throttle_count > 0 ? STATE_THROTTLED : STATE_RUNNABLE;
}

/*
 * The thread runs again. How long its queue was held back meanwhile is known exactly where the
 * kernel keeps count and the thread has not changed CPUs; else the state it began in has it all.
 */
static __always_inline void settle_ready(struct thread *t, struct task_struct *task, __u64 now)
{
	struct cfs_rq *queue = task->se.cfs_rq;
	__u64 elapsed = now - t->since, throttled;

	if (is_blocked(t->state) || !queue || t->wait.queue != (__u64)queue ||
	    (__s64)elapsed <= 0 || !bpf_core_field_exists(queue->throttled_clock_self_time))
		return;
	throttled = queue->throttled_clock_self_time - t->wait.throttled;
	if (throttled > elapsed)
		throttled = elapsed;
	t->ns[STATE_THROTTLED] += throttled;
	t->ns[STATE_RUNNABLE] += elapsed - throttled;
	t->since = now;
	if (!is_blocked(t->wait.state))
		t->wait.state = throttled * 2 > elapsed ? STATE_THROTTLED : STATE_RUNNABLE;
}

static __always_inline void begin_wait(struct thread *t, __u64 now)
{
	struct wait *w = &t->wait;

	w->start = now;
	w->woken = 0;
	w->futex = 0;
	w->queue = 0;
	w->sock = 0;
	w->holder = 0;
	w->syscall = -1;
	w->fd = -1;
	w->waker_tgid = 0;
	w->waker_tid = 0;
	w->gil = 0;
	w->early = 0;
}

/* A wake-up this short before the thread left the CPU may have been for the sleep it began. */
#define EARLY_NS 100000

/* It was woken on its way off the CPU: it leaves ready, and nobody will wake it again. Should
 * somebody do so, the wake-up was for an earlier sleep that it then had no need of. */
static __always_inline __u8 woken_early(struct thread *t, struct task_struct *task)
{
	struct wait *w = &t->wait;

	w->early = 1;
	w->woken = w->start;
	w->waker_tgid = t->early_tgid;
	w->waker_tid = t->early_tid;
	w->waker_comm[0] = 0;
	return ready_state(t, task);
}

/*
 * Who has had this CPU. A wait for it may end behind somebody who ran for a moment only: to blame is
 * whoever last ran for long.
 */
#define LONG_RUN_NS 500000

struct long_run {
	__u64 ended;
	__u32 tgid;
	__u32 tid;
	char comm[COMM_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct long_run);
} long_runs SEC(".maps");

static __always_inline __u64 ran_for(struct task_struct *task)
{
	return task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
}

static __always_inline void note_long_run(struct task_struct *task)
{
	__u32 zero = 0;
	struct long_run *run = bpf_map_lookup_elem(&long_runs, &zero);

	if (!run)
		return;
	run->ended = bpf_ktime_get_ns();
	run->tgid = task->tgid;
	run->tid = task->pid;
	bpf_probe_read_kernel(run->comm, COMM_LEN, &task->comm);
}

static __always_inline void fill_instead(struct wait_event *e, struct task_struct *last,
					 __u64 ready, __u64 now)
{
	__u32 zero = 0;
	struct long_run *run = bpf_map_lookup_elem(&long_runs, &zero);

	if (run && run->ended > ready && (!last->pid || ran_for(last) * 10 < now - ready)) {
		e->instead_tgid = run->tgid;
		e->instead_tid = run->tid;
		__builtin_memcpy(e->instead_comm, run->comm, COMM_LEN);
		return;
	}
	e->instead_tgid = last->tgid;
	e->instead_tid = last->pid;
	bpf_probe_read_kernel(e->instead_comm, COMM_LEN, &last->comm);
}

/* A connection that is over has this still. */
struct inet_sock___ended {
	__be16 inet_sport;
} __attribute__((preserve_access_index));

static __always_inline void fill_ends_of_wait(struct wait_event *e, struct sock *sk)
{
	struct sock_common *c = &sk->__sk_common;
	__u16 family = sk ? BPF_CORE_READ(c, skc_family) : 0;

	if (family == AF_INET6) {
		bpf_core_read(e->peer, 16, &c->skc_v6_daddr);
		bpf_core_read(e->local, 16, &c->skc_v6_rcv_saddr);
	} else if (family == AF_INET) {
		bpf_core_read(e->peer, 4, &c->skc_daddr);
		bpf_core_read(e->local, 4, &c->skc_rcv_saddr);
	}
	e->family = family;
	if (family == AF_INET || family == AF_INET6) {
		e->peer_port = bpf_ntohs(BPF_CORE_READ(c, skc_dport));
		e->local_port = BPF_CORE_READ(c, skc_num);
		/* If the wait ended with the connection, its port is free again. */
		if (!e->local_port)
			e->local_port = bpf_ntohs(
				BPF_CORE_READ((struct inet_sock___ended *)sk, inet_sport));
	}
}

/*
 * The thread's wait is over, and long enough for a row. `displaced`: the current thread is the one that had
 * the CPU until now; else nobody knows who had.
 *
 * This and others are global functions: they are verified once, and not on every way that leads to them.
 */
int emit_wait(struct thread *t, __u32 displaced, __u64 now)
{
	struct wait_event *e;
	struct wait *w;

	if (!t)
		return 0;
	w = &t->wait;
	e = reserve(TRACKER_LEDGER, sizeof(*e));
	if (!e)
		return 0;
	__builtin_memset(e, 0, sizeof(*e));
	fill_header(&e->h, EVENT_WAIT, t, w->start);
	e->duration = now - w->start;
	if (w->woken)
		e->runnable = now - w->woken;
	else if (!is_blocked(w->state))
		e->runnable = e->duration;
	e->futex = w->futex;
	e->syscall = w->syscall;
	e->fd = w->fd;
	e->waker_tgid = w->waker_tgid;
	e->waker_tid = w->waker_tid;
	__builtin_memcpy(e->waker_comm, w->waker_comm, COMM_LEN);
	if (displaced)
		fill_instead(e, bpf_get_current_task_btf(), w->woken ? w->woken : w->start, now);
	e->state = w->state;
	fill_ends_of_wait(e, (struct sock *)w->sock);
	submit(e);
	return 0;
}

static __always_inline void end_wait(struct thread *t, struct task_struct *task, bool displaced, __u64 now)
{
	struct wait *w = &t->wait;

	w->ready = t->state == STATE_THROTTLED ? STATE_THROTTLED : STATE_RUNNABLE;
	settle_ready(t, task, now);
	settle(t, now);
	t->state = on_cpu_state(t);
	if (w->gil)
		gil_sleep_end(t, now);
	else if (w->start && now - w->start >= config.wait_threshold_ns)
		emit_wait(t, displaced, now);
	if (t->loop_kind && waits_for_work(w->state))
		loop_wait_ended(t, now);
}

static __always_inline void enter_cpu(struct thread *t, struct task_struct *task, __u64 now)
{
	end_wait(t, task, true, now);
	if (config.off_cpu_period_ns && t->wait.start)
		off_cpu_end(t, task, now);
}

/*
 * Kernels may keep the switches away from some tasks to themselves. For how long the thread has run since
 * is in the scheduler's own accounts: exactly when it leaves its CPU, else up to the last tick. Who had the
 * CPU before is not known, and its stack is another by now: the wait gets its row, and its sample says that
 * the stack was missed.
 */
int arrive_untold(__u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	__u64 ran = ran_for(task);

	if (!t || is_on_cpu(t->state))
		return 0;
	now = ran < now - t->since ? now - ran : t->since;
	count_lost(TRACKER_LEDGER, LOST_UNTOLD);
	end_wait(t, task, false, now);
	if (config.off_cpu_period_ns && t->wait.start)
		off_cpu_untold(t, now);
	return 0;
}

static __always_inline void leave_cpu(struct thread *t, struct task_struct *task, bool preempt,
				      unsigned int task_state, __u64 now)
{
	__u8 state;

	if (!is_on_cpu(t->state))
		arrive_untold(now);
	settle(t, now);
	begin_wait(t, now);
	/* The first thread gets its after it was added; the others are born with it. */
	if (t->pthread != task->thread.fsbase)
		learn_pthread(t, task);
	if (!preempt && task_state != TASK_RUNNING) {
		state = classify(t, task, task_state, now, true);
		if (!t->wait.gil)
			gil_wait_flush(t);
	} else {
		state = ready_state(t, task);
	}
	t->wait.state = state;
	t->ran_before = task->se.prev_sum_exec_runtime;
	if (is_blocked(state) && now - t->early_wake < EARLY_NS)
		state = woken_early(t, task);
	t->early_wake = 0;
	t->state = state;
}

static __always_inline struct thread *watched(__u32 tid)
{
	return tid ? bpf_map_lookup_elem(&threads, &tid) : NULL; /* 0: the idle task */
}

SEC("tp_btf/sched_switch")
int BPF_PROG(ledger_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	struct thread *leaves = watched(prev->pid), *enters = watched(next->pid);
	__u64 now;

	if (prev->pid && ran_for(prev) >= LONG_RUN_NS)
		note_long_run(prev);
	if (!leaves) {
		barrier_var(enters); /* or clang tests both at once, which the verifier refuses */
		if (!enters)
			return 0; /* most switches of a host; they need no clock */
	}
	now = bpf_ktime_get_ns();
	if (leaves)
		leave_cpu(leaves, prev, preempt, prev_state, now);
	if (enters)
		enter_cpu(enters, next, now);
	return 0;
}

/* Who wakes, unless it is an interrupt: then it has no name. */
static __always_inline void current_waker(__u32 *tgid, __u32 *tid)
{
	struct task_struct *task = bpf_get_current_task_btf();
	bool nobody = in_interrupt(task);

	*tgid = nobody ? 0 : task->tgid;
	*tid = nobody ? 0 : task->pid;
}

/*
 * Off the CPU by its ledger, and in truth on one: nobody told that it came, or its state would be another.
 * While it is on its way off the CPU for good, it has not been on one since it left.
 */
static __always_inline bool runs_untold(const struct thread *t, struct task_struct *task)
{
	return task->on_cpu && task->se.prev_sum_exec_runtime != t->ran_before;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(ledger_waking, struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	struct wait *w;
	__u64 now;

	if (!t)
		return 0;
	w = &t->wait;
	now = bpf_ktime_get_ns();
	if (is_on_cpu(t->state) || runs_untold(t, task)) {
		/* It is about to sleep, and has not left its CPU: leave_cpu() decides. */
		t->early_wake = now;
		current_waker(&t->early_tgid, &t->early_tid);
		return 0;
	}
	if (w->early && !is_blocked(t->state)) {
		/* That wake-up was for another sleep: all this time it was blocked. */
		w->early = 0;
		t->state = w->state;
	}
	if (!is_blocked(t->state))
		return 0;
	settle(t, now);
	w->woken = now;
	t->state = ready_state(t, task);
	current_waker(&w->waker_tgid, &w->waker_tid);
	/* The name is for a row; most waits get none. */
	if (w->waker_tid && now - w->start >= config.wait_threshold_ns)
		bpf_get_current_comm(w->waker_comm, COMM_LEN);
	else
		w->waker_comm[0] = 0;
	if (config.off_cpu_period_ns && w->waker_tid)
		tell_waker(t, now);
	return 0;
}
