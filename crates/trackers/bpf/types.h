/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Integer types and the few BPF constants for programs that do without vmlinux.h.
 */
#ifndef UNDERSPAN_TYPES_H
#define UNDERSPAN_TYPES_H

#ifdef __bpf__
typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef int pid_t;
typedef _Bool bool;
enum { false, true };
#else
#include <linux/types.h>
#include <stdbool.h>
#endif

#endif
