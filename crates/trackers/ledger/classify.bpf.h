/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Why did this thread leave the CPU? Read from the registers it entered the kernel with, so the cost
 * follows context switches and not system calls. x86-64 system call numbers.
 */
#ifndef UNDERSPAN_CLASSIFY_H
#define UNDERSPAN_CLASSIFY_H

#include "../bpf/charge.h"
#include "../bpf/read.h"
#include "../gil/gil.bpf.h"

#define POLLOUT 0x4
#define CLONE_VFORK 0x4000

/* asm/unistd_64.h */
enum syscall {
	SYS_read = 0, SYS_write = 1, SYS_poll = 7, SYS_pread64 = 17, SYS_pwrite64 = 18,
	SYS_readv = 19, SYS_writev = 20, SYS_select = 23, SYS_pause = 34, SYS_nanosleep = 35,
	SYS_sendfile = 40, SYS_connect = 42, SYS_accept = 43, SYS_sendto = 44, SYS_recvfrom = 45,
	SYS_sendmsg = 46, SYS_recvmsg = 47, SYS_clone = 56, SYS_vfork = 58, SYS_wait4 = 61,
	SYS_semop = 65, SYS_msgsnd = 69, SYS_msgrcv = 70, SYS_fcntl = 72, SYS_flock = 73,
	SYS_fsync = 74, SYS_fdatasync = 75, SYS_rt_sigtimedwait = 128, SYS_rt_sigsuspend = 130,
	SYS_sync = 162, SYS_futex = 202, SYS_io_getevents = 208, SYS_restart_syscall = 219,
	SYS_semtimedop = 220, SYS_clock_nanosleep = 230, SYS_epoll_wait = 232,
	SYS_mq_timedsend = 242, SYS_mq_timedreceive = 243, SYS_waitid = 247, SYS_pselect6 = 270,
	SYS_ppoll = 271, SYS_splice = 275, SYS_tee = 276, SYS_sync_file_range = 277,
	SYS_vmsplice = 278, SYS_epoll_pwait = 281, SYS_accept4 = 288, SYS_preadv = 295,
	SYS_pwritev = 296, SYS_recvmmsg = 299, SYS_syncfs = 306, SYS_sendmmsg = 307,
	SYS_preadv2 = 327, SYS_pwritev2 = 328, SYS_msync = 26, SYS_io_uring_enter = 426,
	SYS_open = 2, SYS_close = 3, SYS_stat = 4, SYS_fstat = 5, SYS_lstat = 6, SYS_mmap = 9,
	SYS_mprotect = 10, SYS_munmap = 11, SYS_brk = 12, SYS_mremap = 25, SYS_madvise = 28,
	SYS_execve = 59, SYS_exit = 60, SYS_truncate = 76, SYS_ftruncate = 77, SYS_getdents = 78,
	SYS_rename = 82, SYS_mkdir = 83, SYS_rmdir = 84, SYS_link = 86, SYS_unlink = 87,
	SYS_symlink = 88, SYS_readlink = 89, SYS_getdents64 = 217, SYS_exit_group = 231,
	SYS_openat = 257, SYS_mkdirat = 258, SYS_newfstatat = 262, SYS_unlinkat = 263,
	SYS_renameat = 264, SYS_fallocate = 285, SYS_renameat2 = 316, SYS_execveat = 322,
	SYS_copy_file_range = 326, SYS_clone3 = 435, SYS_epoll_pwait2 = 441, SYS_futex_waitv = 449, SYS_futex_wait = 455,
};

static __always_inline struct file *file_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table;

	if (!task->files)
		return NULL;
	table = task->files->fdt;
	if (fd >= table->max_fds)
		return NULL;
	return (struct file *)read_word((__u64)(table->fd + fd));
}

/* The socket behind an open file that is known to be one. */
static __always_inline struct sock *sock_of(struct file *file)
{
	struct socket *socket = READ(struct file, file, private_data);

	return socket ? READ(struct socket, socket, sk) : NULL;
}

/* Blocked in a call about one file: what it waits for follows from what the file is. */
static __always_inline __u8 classify_file(struct task_struct *task, struct wait *w, bool writing)
{
	struct file *file = file_of(task, w->fd);
	struct inode *inode;
	unsigned int type;
	struct sock *sk;

	if (!file)
		return STATE_OTHER;
	inode = READ(struct file, file, f_inode);
	type = READ(struct inode, inode, i_mode) & S_IFMT;
	switch (type) {
	case S_IFSOCK:
		sk = sock_of(file);
		w->sock = (__u64)sk;
		if (!sk)
			return STATE_OTHER;
		switch (READ(struct sock, sk, __sk_common.skc_state)) {
		case TCP_LISTEN:
			return STATE_POLL_WAIT;
		case TCP_SYN_SENT:
			return STATE_NET_CONNECT;
		}
		return writing ? STATE_NET_WRITE : STATE_NET_READ;
	case S_IFREG:
	case S_IFDIR:
	case S_IFBLK:
		return STATE_DISK_IO;
	default: /* pipes, terminals, eventfd and its like (which have no type) */
		return STATE_PIPE_IPC;
	}
}

/* poll() on one socket is how libraries wait for an answer with a time limit: a socket wait. */
static __always_inline __u8 classify_poll(struct task_struct *task, struct wait *w,
					  __u64 fds, __u64 count, bool current)
{
	struct { __s32 fd; __s16 events, revents; } one;
	__u8 state;

	if (count == 0)
		return STATE_SLEEP;
	if (count > 1 || !current || bpf_probe_read_user(&one, sizeof(one), (void *)fds) || one.fd < 0)
		return STATE_POLL_WAIT;
	w->fd = one.fd;
	state = classify_file(task, w, one.events & POLLOUT);
	return state == STATE_NET_READ || state == STATE_NET_WRITE || state == STATE_NET_CONNECT ?
		state : STATE_POLL_WAIT;
}

static __always_inline __u8 classify_futex(struct thread *t, __u64 now, bool current)
{
	if (!is_gil_futex(t, t->wait.futex, now))
		return STATE_LOCK_WAIT;
	if (!current) { /* taken up in its middle: charged, but no row tells of it */
		t->gc_before = collection_time(t->tgid, now, NULL);
		return STATE_GIL_WAIT;
	}
	t->wait.gil = 1;
	gil_sleep_begin(t, now);
	return STATE_GIL_WAIT;
}

/* A call that makes a process waits for it only if it is a vfork. */
static __always_inline __u8 classify_clone(bool vfork)
{
	return vfork ? STATE_CHILD_WAIT : STATE_LOCK_WAIT;
}

/* Asleep without I/O in a call that is not made to wait: on one of the kernel's locks, which a
 * sibling holds (memory map), or on the file system (journal). */
static __always_inline __u8 classify_uninterruptible(long nr)
{
	switch (nr) {
	case SYS_mmap:
	case SYS_mprotect:
	case SYS_munmap:
	case SYS_brk:
	case SYS_mremap:
	case SYS_madvise:
	case SYS_exit:
	case SYS_exit_group:
		return STATE_LOCK_WAIT;
	case SYS_open:
	case SYS_close:
	case SYS_stat:
	case SYS_fstat:
	case SYS_lstat:
	case SYS_execve:
	case SYS_execveat:
	case SYS_truncate:
	case SYS_ftruncate:
	case SYS_getdents:
	case SYS_getdents64:
	case SYS_rename:
	case SYS_renameat:
	case SYS_renameat2:
	case SYS_mkdir:
	case SYS_mkdirat:
	case SYS_rmdir:
	case SYS_link:
	case SYS_unlink:
	case SYS_unlinkat:
	case SYS_symlink:
	case SYS_readlink:
	case SYS_openat:
	case SYS_newfstatat:
	case SYS_fallocate:
	case SYS_copy_file_range:
		return STATE_DISK_IO;
	}
	return STATE_OTHER;
}

/*
 * The state of a thread that blocks (it is neither preempted nor yielding). Fills t->wait.
 * `current`: it is the one running, so that its memory can be read.
 */
static __always_inline __u8 classify(struct thread *t, struct task_struct *task,
				     unsigned int task_state, __u64 now, bool current)
{
	struct wait *w = &t->wait;
	struct pt_regs *regs;
	__u64 flags = 0;
	long nr;

	if (task_state & TASK_HELD || task->flags & PF_IO_WORKER)
		return STATE_OTHER;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	nr = (long)regs->orig_ax;
	if (nr < 0)
		return STATE_PAGE_FAULT;
	w->syscall = nr;
	switch (nr) {
	case SYS_futex:
	case SYS_futex_wait:
		w->futex = regs->di;
		w->futex_op = regs->si;
		return classify_futex(t, now, current);
	case SYS_futex_waitv:
	case SYS_flock:
		return STATE_LOCK_WAIT;
	case SYS_nanosleep:
	case SYS_clock_nanosleep:
	case SYS_pause:
	case SYS_rt_sigtimedwait:
	case SYS_rt_sigsuspend:
	case SYS_restart_syscall:
		return STATE_SLEEP;
	case SYS_poll:
	case SYS_ppoll:
		return classify_poll(task, w, regs->di, regs->si, current);
	case SYS_select:
	case SYS_pselect6:
		return regs->di ? STATE_POLL_WAIT : STATE_SLEEP;
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
	case SYS_epoll_pwait2:
	case SYS_accept:
	case SYS_accept4:
	case SYS_io_getevents:
	case SYS_io_uring_enter:
		return STATE_POLL_WAIT;
	case SYS_wait4:
	case SYS_waitid:
	case SYS_vfork:
		return STATE_CHILD_WAIT;
	case SYS_clone:
		return classify_clone(regs->di & CLONE_VFORK);
	case SYS_clone3: /* struct clone_args begins with its flags */
		if (current)
			bpf_probe_read_user(&flags, sizeof(flags), (void *)regs->di);
		return classify_clone(flags & CLONE_VFORK);
	case SYS_semop:
	case SYS_semtimedop:
	case SYS_msgsnd:
	case SYS_msgrcv:
	case SYS_mq_timedsend:
	case SYS_mq_timedreceive:
		return STATE_PIPE_IPC;
	}
	if (BPF_CORE_READ_BITFIELD(task, in_iowait))
		return STATE_DISK_IO;
	w->fd = regs->di;
	switch (nr) {
	case SYS_read:
	case SYS_readv:
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_recvmmsg:
	case SYS_pread64:
	case SYS_preadv:
	case SYS_preadv2:
	case SYS_splice:
	case SYS_tee:
		return classify_file(task, w, false);
	case SYS_write:
	case SYS_writev:
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
	case SYS_sendfile:
	case SYS_pwrite64:
	case SYS_pwritev:
	case SYS_pwritev2:
	case SYS_vmsplice:
		return classify_file(task, w, true);
	case SYS_connect: {
		__u8 state = classify_file(task, w, true);

		return state == STATE_NET_WRITE ? STATE_NET_CONNECT : state;
	}
	case SYS_fsync:
	case SYS_fdatasync:
	case SYS_sync_file_range:
	case SYS_syncfs:
		return STATE_DISK_IO;
	}
	w->fd = -1;
	switch (nr) {
	case SYS_sync:
	case SYS_msync:
		return STATE_DISK_IO;
	case SYS_fcntl: /* of its commands only those that take a file lock block */
		return STATE_LOCK_WAIT;
	}
	return task_state & TASK_UNINTERRUPTIBLE ? classify_uninterruptible(nr) : STATE_OTHER;
}

#endif
