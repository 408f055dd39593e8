// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which threads have a ledger: those of watched processes, from their first moment to their last.
 */
#include "../bpf/charge.h"
#include "../bpf/emit.h"
#include "../stack/native.bpf.h"
#include "classify.bpf.h"
#include "ledger.h"

static __always_inline void lifecycle(enum event_kind kind, struct task_struct *task,
				      __u32 parent, __u64 now, __u64 wakeup)
{
	struct lifecycle_event *e = reserve(TRACKER_LEDGER, sizeof(*e));

	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->h.kind = kind;
	e->h.tgid = task->tgid;
	e->h.tid = task->pid;
	e->h.time = now;
	bpf_probe_read_kernel(e->h.comm, COMM_LEN, &task->comm);
	e->parent_tgid = parent;
	bpf_ringbuf_submit(e, wakeup);
}

/* Tracepoints run with preemption off, the iterator does not: each has a template of its own. */
enum { BLANK_TRACEPOINT, BLANK_ITERATOR };

/* Gives a thread a ledger. */
static __always_inline struct thread *add_thread(struct task_struct *task, __u32 blank, __u8 state,
						 __u64 now)
{
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&blank_thread, &blank);

	if (!t)
		return NULL;
	t->since = now;
	t->born = now;
	t->tgid = task->tgid;
	t->tid = tid;
	t->state = state;
	t->pthread = 0;
	bpf_probe_read_kernel(t->comm, COMM_LEN, &task->comm);
	if (bpf_map_update_elem(&threads, &tid, t, BPF_NOEXIST)) {
		if (!bpf_map_lookup_elem(&threads, &tid))
			count_lost(TRACKER_LEDGER, LOST_MAP_FULL);
		return NULL;
	}
	t = bpf_map_lookup_elem(&threads, &tid);
	if (t)
		learn_pthread(t, task);
	return t;
}

/* Takes a thread's ledger away, and tells what it says. */
static __always_inline void end_thread(struct thread *t, __u64 now)
{
	struct thread_exit_event *e;
	struct pthread_key key = pthread_key(t);
	__u32 tid = t->tid, *owner;

	settle(t, now);
	gil_wait_flush(t);
	e = reserve(TRACKER_LEDGER, sizeof(*e));
	if (e) {
		fill_header(&e->h, EVENT_THREAD_EXIT, t, t->born);
		e->until = now;
		__builtin_memcpy(e->ns, t->ns, sizeof(e->ns));
		submit(e);
	}
	owner = bpf_map_lookup_elem(&pthreads, &key);
	if (owner && *owner == tid)
		bpf_map_delete_elem(&pthreads, &key);
	bpf_map_delete_elem(&threads, &tid);
}

/* A thread's name is read from the process while the thread lives, so user space is told of a new
 * one soon; but not more often than this. */
#define NAMES_EVERY_NS 5000000

__u64 woken_for_names = 0;

static __always_inline __u64 wake_for_names(__u64 now)
{
	if (now - woken_for_names < NAMES_EVERY_NS)
		return BPF_RB_NO_WAKEUP;
	woken_for_names = now;
	return BPF_RB_FORCE_WAKEUP;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(ledger_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 parent_tgid = parent->tgid, child_tgid = child->tgid;
	struct process *p = bpf_map_lookup_elem(&processes, &parent_tgid);
	__u64 now;

	if (!p)
		return 0;
	now = bpf_ktime_get_ns();
	/* A forked process has its parent's memory: what was found there holds here too. */
	if (child_tgid != parent_tgid) {
		struct process copy = *p;

		unwind_forked(parent_tgid, child_tgid);
		if (bpf_map_update_elem(&processes, &child_tgid, &copy, BPF_ANY)) {
			count_lost(TRACKER_LEDGER, LOST_MAP_FULL);
			return 0;
		}
		bpf_map_delete_elem(&collections, &child_tgid);
	}
	add_thread(child, BLANK_TRACEPOINT, STATE_RUNNABLE, now);
	lifecycle(child_tgid == parent_tgid ? EVENT_THREAD_START : EVENT_PROCESS_FORK, child,
		  parent_tgid, now, wake_for_names(now));
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(ledger_exec, struct task_struct *task, pid_t old_pid)
{
	struct process nothing = {};
	__u32 tgid = task->tgid, tid = task->pid;
	struct process *p = bpf_map_lookup_elem(&processes, &tgid);
	struct thread *t;

	if (!p && !config.discover)
		return 0;
	if (p) {
		/* Another program: nothing that was known of the old one's memory is true. */
		bpf_map_update_elem(&processes, &tgid, &nothing, BPF_ANY);
		unwind_forget(tgid);
		bpf_map_delete_elem(&collections, &tgid);
		if (old_pid != tid) {
			__u32 old = old_pid;
			__u64 now = bpf_ktime_get_ns();

			/* A thread other than the first called exec, and took the first's tid. */
			t = bpf_map_lookup_elem(&threads, &old);
			if (t)
				end_thread(t, now);
			add_thread(task, BLANK_TRACEPOINT, STATE_RUNNING, now);
		}
		t = bpf_map_lookup_elem(&threads, &tid);
		if (t) {
			bpf_probe_read_kernel(t->comm, COMM_LEN, &task->comm);
			__builtin_memset(&t->gil, 0, sizeof(t->gil));
			t->gil_place.as_of = 0;
			t->collecting = 0;
		}
	}
	lifecycle(EVENT_PROCESS_EXEC, task, 0, bpf_ktime_get_ns(), BPF_RB_FORCE_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(ledger_exit, struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	__u64 now;

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	if (!is_on_cpu(t->state)) /* it has not left its CPU since its last wait, and never will */
		arrive_untold(now);
	bpf_probe_read_kernel(t->comm, COMM_LEN, &task->comm);
	end_thread(t, now);
	return 0;
}

/* The last thread of a process is gone. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(ledger_free, struct task_struct *task)
{
	__u32 tid = task->pid, tgid = task->tgid;

	if (tid != tgid || !bpf_map_lookup_elem(&processes, &tgid))
		return 0;
	bpf_map_delete_elem(&processes, &tgid);
	unwind_forget(tgid);
	bpf_map_delete_elem(&collections, &tgid);
	lifecycle(EVENT_PROCESS_EXIT, task, 0, bpf_ktime_get_ns(), BPF_RB_NO_WAKEUP);
	return 0;
}

/*
 * Threads that were alive before their process was watched. Runs when user space asks, after it has
 * put the process into `processes`.
 */
SEC("iter/task")
int ledger_adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread *t;
	__u32 tgid;
	__u64 now;

	if (!task)
		return 0;
	tgid = task->tgid;
	if (!bpf_map_lookup_elem(&processes, &tgid) || task->flags & PF_EXITING)
		return 0;
	now = bpf_ktime_get_ns();
	t = add_thread(task, BLANK_ITERATOR, STATE_RUNNING, now);
	if (!t)
		return 0;
	/* From here on sched_switch keeps it. If the thread is off the CPU and has not moved since it
	 * was added, say what it waits for; its wait began at a time nobody knows, so it has no row. */
	if (!task->on_cpu && t->since == now) {
		__u32 task_state = task->__state;
		__u8 state = task_state ? classify(t, task, task_state, now, false) :
					  STATE_RUNNABLE;

		if (!task->on_cpu && t->since == now) {
			t->wait.state = state;
			t->state = state;
		}
	}
	return 0;
}
