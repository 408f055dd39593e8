/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A stack as BPF records it: addresses, no names. The fixed part is followed by, innermost first,
 *
 *	__u64 kernel[kernel_frames];
 *	__u64 native[native_frames];
 *	struct python_frame python[python_frames];
 *
 * and the record ends there: its length follows from the three counts.
 */
#ifndef UNDERSPAN_STACK_H
#define UNDERSPAN_STACK_H

#include "../bpf/event.h"

#define KERNEL_FRAMES 48
#define NATIVE_FRAMES 1024 /* CPython up to 3.10 has some three for each of Python's */
#define PYTHON_FRAMES 512

/* Why a walk ended: StackEnd in the model crate, in this order. */
enum stack_end {
	STACK_COMPLETE,
	STACK_ABSENT,
	STACK_TOO_DEEP,
	STACK_NO_MAPPING,
	STACK_NO_TABLE,
	STACK_NO_RULE,
	STACK_UNREADABLE,
	STACK_NO_THREAD_STATE,
	STACK_INCONSISTENT,
	STACK_MISSED,
	STACK_ENDS,
};

/* A thread may wait in several places by turns. */
#define STACK_PLACES 4

/* Whose stack, and taken when. */
enum stack_moment {
	STACK_AFTER_WAIT,   /* the thread's, on its way back to user mode after waits */
	STACK_OF_WAKER,	    /* the thread's, while it woke another */
	STACK_ON_CPU,	    /* the thread's, by the sampling clock */
	STACK_IN_ITERATION, /* the thread's, within a stalled iteration of its event loop */
	STACK_ASLEEP,	    /* the kernel's part of it, of a thread that is about to go on */
	STACK_ONGOING,	    /* of a thread that sleeps on; not Python's part */
	STACK_MOMENTS,
};

/* A Python frame. File, line and name are read by user space, from the code object. */
struct python_frame {
	__u64 code;  /* address of the code object */
	__u32 check; /* fields of the code object folded into a number: has it been replaced since? */
	__u32 lasti : 28; /* byte offset of the instruction in the bytecode */
	__u32 entry : 1;  /* the native evaluator was entered for this frame; those further in, up to
			     the next entry, share its native frame */
	__u32 flags : 3;
};

struct stack_event {
	struct event_header h; /* time: when the stack was taken */
	__u64 sequence;	       /* AFTER_WAIT: of the newest off_cpu_event that it belongs to.
				  OF_WAKER: (tid << 32 | low half of the sleeper's sequence) */
	__u64 oldest;	       /* AFTER_WAIT: of the oldest; all in between had their wait in the kernel too */
	__u64 lock;	       /* AFTER_WAIT: for a futex on the thread's own stack, the word before it */
	__u64 instructions;    /* ON_CPU: counters since the last sample on this CPU; */
	__u64 cycles;	       /* all of them ~0: there is no PMU */
	__u64 cache_misses;
	__u64 branch_misses;
	__u64 weight; /* ON_CPU: nanoseconds that the sample stands for */
	__u64 again;  /* AFTER_WAIT, OF_WAKER: the time of the last record of the same thread, moment, place
			 and `loop` that had frames. They are this one's, too. 0: they follow */
	__u16 kernel_frames;
	__u16 native_frames;
	__u16 python_frames;
	__u8 moment;	 /* enum stack_moment */
	__u8 state;	 /* the thread's, for ON_CPU: running or gc_run */
	__u8 kernel_end; /* enum stack_end, of each part */
	__u8 native_end;
	__u8 python_end;
	__u8 loop;	 /* the thread is an event loop */
	__u8 place;	 /* AFTER_WAIT, OF_WAKER: which of the STACK_PLACES that are remembered of the thread
			    and moment it stands in */
	__u8 _pad[3];
};

#endif
