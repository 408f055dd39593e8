/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The maps that trackers share, and the configuration. maps.bpf.c defines them; everyone else gets
 * declarations, and libbpf's static linker joins the objects into one.
 */
#ifndef UNDERSPAN_MAPS_H
#define UNDERSPAN_MAPS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "config.h"
#include "event.h"
#include "states.h"
#include "thread.h"

#ifdef UNDERSPAN_DEFINE_MAPS
#define SHARED
const volatile struct config config SEC(".rodata.config") = { .wait_threshold_ns = 1000000 };
#else
#define SHARED extern
extern const volatile struct config config SEC(".rodata.config");
#endif

/* What is known of each watched process; written by user space, inherited on fork. */
SHARED struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tgid */
	__type(value, struct process);
} processes SEC(".maps");

/* Collections per process; written by BPF only. */
SHARED struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* tgid */
	__type(value, struct collections);
} collections SEC(".maps");

/* Every watched thread and its ledger. */
SHARED struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, struct thread);
} threads SEC(".maps");

/* Which thread a pthread_self() is. A value is used again once its thread has ended. */
struct pthread_key {
	__u64 pthread;
	__u32 tgid;
	__u32 _pad;
};

SHARED struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pthread_key);
	__type(value, __u32); /* tid */
} pthreads SEC(".maps");

/* Zeroed threads to copy from: struct thread is too large for the BPF stack. */
SHARED struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct thread);
} blank_thread SEC(".maps");

SHARED struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

SHARED struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRACKERS * LOST_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

#endif
