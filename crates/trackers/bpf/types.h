/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Integer types and BPF constants: the kernel's user-space headers instead of vmlinux.h.
 */
#ifndef UNDERSPAN_TYPES_H
#define UNDERSPAN_TYPES_H

#ifdef __bpf__
#include <linux/bpf.h>
typedef int pid_t;
typedef _Bool bool;
enum { false, true };
#else
#include <linux/types.h>
#include <stdbool.h>
#endif

#endif
