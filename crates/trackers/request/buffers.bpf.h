/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a thread reads or writes, in its own memory: the buffers of the system call in progress.
 */
#ifndef UNDERSPAN_BUFFERS_H
#define UNDERSPAN_BUFFERS_H

#include "../ledger/classify.bpf.h"
#include "request.h"

/* A read or write in progress: the user's buffers, from the system call's registers. */
#define BUFFERS 4

struct user_buffers {
	struct { __u64 base, len; } at[BUFFERS]; /* struct iovec */
};

static __always_inline void user_buffers(struct user_buffers *b, __u32 bytes)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 second = regs->si, iov = 0, count = regs->dx;

	barrier_var(second); /* loaded once: a register holds one kind of pointer */
	switch (regs->orig_ax) {
	case SYS_read:
	case SYS_recvfrom:
	case SYS_write:
	case SYS_sendto:
		b->at[0].base = second;
		b->at[0].len = bytes;
		return;
	case SYS_readv:
	case SYS_writev:
		iov = second;
		break;
	case SYS_recvmsg:
	case SYS_sendmsg: /* struct msghdr: name, namelen (padded), iov, iovlen */
		bpf_probe_read_user(&iov, sizeof(iov), (void *)(second + 16));
		bpf_probe_read_user(&count, sizeof(count), (void *)(second + 24));
		break;
	}
	if (!iov)
		return;
	for (int i = 0; i < BUFFERS && i < count; i++)
		bpf_probe_read_user(&b->at[i], sizeof(b->at[i]), (void *)(iov + i * 16));
}

/* Copies the first bytes of a request to `head`, which has room for twice REQUEST_HEAD: the verifier
 * bounds offset and length one by one. Returns how many. */
static __always_inline __u32 copy_head(__u8 *head, const struct user_buffers *b, __u32 bytes)
{
	__u32 copied = 0, n;

	for (int i = 0; i < BUFFERS; i++) {
		n = bytes - copied;
		if (n > b->at[i].len)
			n = b->at[i].len;
		if (n > REQUEST_HEAD)
			n = REQUEST_HEAD;
		/* Or the compiler derives bounds that the verifier does not see. */
		barrier_var(n);
		barrier_var(copied);
		if (!n || n > REQUEST_HEAD || copied >= REQUEST_HEAD)
			break;
		if (bpf_probe_read_user(head + copied, n, (void *)b->at[i].base))
			break;
		copied += n;
	}
	return copied < REQUEST_HEAD ? copied : REQUEST_HEAD;
}

#endif
