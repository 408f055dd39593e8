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
/* No server that is known writes more at once. */
#define MOST_BUFFERS 64

struct user_buffer { /* struct iovec */
	__u64 base, len;
};

struct user_buffers {
	struct user_buffer at[BUFFERS];
	__u64 all; /* where all of them are told, if there are more */
	__u64 count;
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
	b->all = iov;
	b->count = count;
	for (int i = 0; i < BUFFERS && i < count; i++)
		bpf_probe_read_user(&b->at[i], sizeof(b->at[i]), (void *)(iov + i * 16));
}

/* Where the last of `bytes` are that were written, and how many of them are in the same buffer; none, if not all
 * that should be written was. */
static __always_inline struct user_buffer last_of(const struct user_buffers *b, __u64 bytes)
{
	struct user_buffer last = {}, more;

	for (int i = 0; i < BUFFERS; i++) {
		if (b->at[i].len)
			last = b->at[i];
		bytes -= b->at[i].len;
	}
	for (int i = BUFFERS; i < MOST_BUFFERS && i < b->count; i++) {
		if (bpf_probe_read_user(&more, sizeof(more), (void *)(b->all + i * 16)))
			break;
		if (more.len)
			last = more;
		bytes -= more.len;
	}
	if (bytes)
		last.len = 0;
	return last;
}

/* Chunked answers end with a chunk of no bytes. What comes before it ends with a line, if it is in
 * the same buffer: a zero at the end of some text is not taken for it. */
#define LAST_CHUNK "\r\n0\r\n\r\n"
#define LAST_CHUNK_LEN 7
#define LAST_CHUNK_ALONE 5

static __always_inline bool ends_last_chunk(const struct user_buffers *b, __u32 bytes)
{
	const char wanted[] = LAST_CHUNK;
	char found[LAST_CHUNK_LEN + 1] = LAST_CHUNK;
	struct user_buffer last = last_of(b, bytes);
	__u64 end = last.base + last.len;

	if (last.len == LAST_CHUNK_ALONE) {
		if (bpf_probe_read_user(found + 2, LAST_CHUNK_ALONE, (void *)(end - LAST_CHUNK_ALONE)))
			return false;
	} else if (last.len < LAST_CHUNK_LEN ||
		   bpf_probe_read_user(found, LAST_CHUNK_LEN, (void *)(end - LAST_CHUNK_LEN))) {
		return false;
	}
	for (int i = 0; i < LAST_CHUNK_LEN; i++)
		if (found[i] != wanted[i])
			return false;
	return true;
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
