/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The ledger of one thread, and the wait it is in. User space reads these straight from the map:
 * `sum(ns) == since - born` tells it that what it copied was not torn.
 */
#ifndef UNDERSPAN_THREAD_H
#define UNDERSPAN_THREAD_H

#include "types.h"
#include "states.h"
#include "event.h"

/* The wait that a thread is in, or has just left. */
struct wait {
	__u64 start;	 /* left the CPU */
	__u64 woken;	 /* became ready, 0 while blocked */
	__u64 futex;	 /* address, for futex waits */
	__u64 queue;	 /* the kernel's struct cfs_rq that the thread was put on when it became ready */
	__u64 throttled; /* how long that queue had been held back by then */
	__u64 sock;	 /* the kernel's struct sock, while the thread is blocked on it */
	__s32 syscall;	 /* number, -1 if none was in progress */
	__s32 fd;
	__u32 futex_op;
	__u32 holder;	  /* of the GIL, when the sleep began; 0 if not known */
	__u32 waker_tgid; /* 0: an interrupt */
	__u32 waker_tid;
	__u8 state; /* what the thread was blocked on; outlives the wake-up */
	__u8 gil;   /* the futex is the GIL's */
	__u8 early; /* taken for woken before it had left the CPU; see ledger_waking() */
	__u8 ready; /* what it was between wake-up and CPU: runnable or throttled */
	char waker_comm[COMM_LEN];
};

/* A wait for the GIL: a loop of short sleeps, merged (gil/gil.bpf.h). */
struct gil_wait {
	__u64 start;	 /* 0: none */
	__u64 end;	 /* when its latest sleep ended on a CPU */
	__u64 gc_ns;	 /* overlap with a sibling's collection */
	__u64 runnable_ns;
	__u64 slept;	 /* off the CPU, altogether */
	__u64 sequence;	 /* of its sample, 0: none yet */
	__u64 asleep_as; /* the sample whose stack in the kernel is also this one's */
	__u64 holder_ns; /* how long the holder was seen holding it */
	__u64 holder_weight;
	__u32 holder;	 /* by weighted majority over the sleeps */
	__u32 slices;
	__u32 waker_tgid;
	__u32 waker_tid;
	__u32 gc_tid; /* who collected */
	__u32 _pad;
};

/* What the process says of its GIL, kept with the thread for a moment (is_gil_futex). */
struct gil_place {
	__u64 address; /* 0: there is none, or none that we can read */
	__u64 as_of;
	__u32 tstate_pthread_offset;
	__u32 _pad;
};

/* Nanoseconds that a sample stands for, of each of the states that its wait consists of. */
struct weights {
	__u64 state, gc, ready;
};

/* Short stretches of a state, strung together, and where on the string the next sample lies. */
struct stretches {
	__s32 carried; /* since the string's present period began */
	__s32 point;   /* in that period; 0: none chosen yet */
};

/* What of a thread's waiting becomes a sample (offcpu/sample.bpf.c). */
struct sampling {
	struct stretches of[STATES];
	struct stretches idle[STATES];
	struct weights weights; /* of the newest sample */
	__u64 sequence;		/* its number, 0: there was none */
	__u64 due;	/* of the oldest sample that has no stack in user mode yet, 0: all have */
};

/* What is compared of a sleeping thread's stack in the kernel: so many frames, innermost first, that lie
 * in so many words. */
#define ASLEEP_FRAMES 8
#define ASLEEP_WORDS 256

/* Where in the kernel the thread slept when it was last told (offcpu/asleep.bpf.h). */
struct asleep {
	__u64 sequence;		      /* of the sample that told */
	__u64 address[ASLEEP_FRAMES]; /* return addresses, */
	__u8 slot[ASLEEP_FRAMES];     /* and in which words above the stack pointer they stand */
	__s32 syscall;
	__u32 frames; /* that are remembered, 0: it has to be told again */
};

/*
 * What a switch needs comes first and together: a thread that is woken on another CPU takes these lines
 * along, and each costs as much as dozens of instructions.
 */
struct thread {
	__u64 since;	  /* up to here the ledger is settled */
	__u64 early_wake; /* when it was last woken while still on its CPU */
	__u64 pthread;	  /* pthread_self(): the thread's fs base */
	__u64 ran_before; /* its task's se.prev_sum_exec_runtime when it last left a CPU */
	__u32 tgid;
	__u32 tid;
	__u8 state;	     /* what time is charged to now */
	__u8 collecting;     /* it is collecting garbage */
	__u8 loop_kind;	     /* it asks for events: enum loop_kind + 1, 0: it does not */
	__u8 serves;	     /* it has accepted a connection, or read a request */
	__u32 open_requests; /* read, and nothing sent yet */
	struct wait wait;
	__u64 ns[STATES]; /* the ledger */
	struct sampling sampling;
	struct gil_place gil_place;
	struct gil_wait gil;
	__u64 born;	  /* where the ledger began */
	__u64 gc_before;  /* the process's collection time when the current GIL sleep began */
	struct asleep asleep;
	__u64 shared_at;  /* when it last read a request while another was open */
	__u32 early_tgid; /* who woke it then, 0: an interrupt */
	__u32 early_tid;
	char comm[COMM_LEN];
};

/* Collections of one process. Cumulative, so that an overlap is a difference. */
struct collections {
	__u64 total;   /* nanoseconds in finished collections */
	__u64 since;   /* when the current one began, 0 if none */
	__u64 started[3];   /* generation_stats[].collections when it began */
	__u64 collected[3]; /* generation_stats[].collected when it began */
	__u64 cpu_before;   /* the collecting thread's gc_run when it began */
	__s32 generation;   /* the probe's argument, -1 if none */
	__u32 tid;	    /* who collects, or collected last */
};

#endif
