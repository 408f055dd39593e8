/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types that Underspan reads, with only the fields that it reads. CO-RE relocates
 * every access against the running kernel's BTF, so neither order nor size matters here.
 */
#ifndef UNDERSPAN_KERNEL_H
#define UNDERSPAN_KERNEL_H

/* libbpf's headers then use the kernel's register names. */
#define __VMLINUX_H__

#include "types.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* x86-64 */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax; /* system call number, or -1 after an exception or interrupt */
	unsigned long ip, cs, flags, sp, ss;
};

struct thread_struct {
	unsigned long sp; /* in the kernel, of a thread that is not running */
	unsigned long fsbase;
};

struct inode {
	unsigned short i_mode;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct cfs_rq {
	struct rq *rq;
	int throttle_count;		/* CONFIG_CFS_BANDWIDTH */
	__u64 throttled_clock_self_time; /* since 6.6: time held back, with threads that want to run */
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 prev_sum_exec_runtime; /* when it last came on the CPU */
	struct cfs_rq *cfs_rq; /* CONFIG_FAIR_GROUP_SCHED */
};

/* A call whose return is probed. */
struct return_instance {
	unsigned long stack;	      /* where its return address lies */
	unsigned long orig_ret_vaddr; /* what that was */
	struct return_instance *next; /* further out */
};

struct uprobe_task {
	struct return_instance *return_instances; /* innermost first */
};

struct mm_struct {
	unsigned long exec_vm; /* pages of code that are mapped */
};

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	int on_rq;
	struct sched_entity se;
	unsigned in_iowait : 1;
	pid_t pid;
	pid_t tgid;
	char comm[16];
	struct files_struct *files;
	struct mm_struct *mm; /* NULL: a kernel thread, or one that ends */
	struct task_struct *group_leader;
	struct thread_struct thread;
	struct uprobe_task *utask; /* CONFIG_UPROBES */
	void *rseq; /* 0: the thread has not registered restartable sequences */
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	__u16 sk_type;
	__u8 sk_shutdown;
};

struct socket {
	struct sock *sk;
};

struct linux_binprm;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct trace_event_raw_sys_exit {
	long id;
	long ret;
};

struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};

/* Any structure of the kernel that begins with a word: to read one wherever it is. */
struct rb_node {
	unsigned long __rb_parent_color;
};

#pragma clang attribute pop

#define TASK_RUNNING 0
#define TASK_UNINTERRUPTIBLE 2
/* Stopped by a signal, a debugger or the freezer: nothing the thread did. */
#define TASK_HELD (0x4 | 0x8 | 0x8000)
#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1

enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_SYN_RECV = 3,
	TCP_CLOSE = 7,
	TCP_CLOSE_WAIT = 8,
	TCP_LISTEN = 10,
	TCP_CLOSING = 11,
};

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000

#endif
