/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Reading through pointers that the verifier knows only as numbers. Since Linux 6.2 it can be told
 * their type: then a read is a plain load, which yields 0 where there is nothing, and costs a tenth
 * of bpf_probe_read_kernel(). Nobody checks that the type is true.
 */
#ifndef UNDERSPAN_READ_H
#define UNDERSPAN_READ_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

extern void *bpf_rdonly_cast(const void *pointer, __u32 type) __ksym __weak;

#define as_type(type, pointer) \
	((type *)bpf_rdonly_cast((const void *)(pointer), bpf_core_type_id_kernel(type)))

/* pointer->field */
#define READ(type, pointer, field)                              \
	(bpf_rdonly_cast ? as_type(type, pointer)->field :      \
			   BPF_CORE_READ((type *)(pointer), field))

/* The eight bytes at an address. */
static __always_inline __u64 read_word(__u64 address)
{
	__u64 word = 0;

	if (bpf_rdonly_cast)
		return as_type(struct rb_node, address)->__rb_parent_color;
	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

#endif
