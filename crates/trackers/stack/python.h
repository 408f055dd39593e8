/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker of Python frames is told by user space: where this interpreter keeps what.
 * Compiles as BPF and as user code.
 */
#ifndef UNDERSPAN_PYTHON_H
#define UNDERSPAN_PYTHON_H

#include "stack.h"

/* How frames tell where the native evaluator was entered. */
enum python_frames {
	PYTHON_NOT_READ,     /* all of the layout is 0: the frames cannot be read */
	PYTHON_EVERY_FRAME,  /* 3.8 to 3.10: frame objects, each evaluated by a call of its own */
	PYTHON_ENTRY_FLAG,   /* 3.11: a flag in the frame */
	PYTHON_SHIM_FRAMES,  /* from 3.12: a frame without Python code lies below each entry */
};

/* python_frame.flags */
#define PYTHON_STARTING 1 /* no instruction has been executed yet: arguments are being put in place */

/* An instruction that could not be placed in its code object. */
#define PYTHON_LASTI_UNKNOWN ((1u << 28) - 1)

/*
 * Where things are in one process. Of a frame and of a code object one part is read at once;
 * offsets of fields in them are counted from where that part begins.
 */
struct python_layout {
	__u64 interpreters; /* address of _PyRuntime.interpreters.head */
	__u64 main;	    /* the main interpreter: the last of that list */
	__u64 code_type;    /* address of PyCode_Type */
	__u32 interp_next;
	__u32 interp_threads;
	__u16 tstate_next;
	__u16 tstate_thread_id;
	__u16 tstate_frame; /* the innermost frame, or the cframe that has it */
	__u16 code_start;   /* the first instruction, in a code object; 0: frames hold an index */
	__u8 frames;	    /* enum python_frames */
	__u8 has_cframe;
	__u8 cframe_frame;
	__u8 lasti_unit; /* bytes that an index stands for */
	__u8 frame_from; /* the part of a frame that is read */
	__u8 frame_len;
	__u8 frame_previous;
	__u8 frame_code;
	__u8 frame_instr; /* address or index of the instruction */
	__u8 frame_entry; /* the flag, or the owner */
	__u8 frame_tags[2]; /* two words that are the same for each run of a function */
	__u8 code_from;	  /* the part of a code object that is read */
	__u8 code_len;
	__u8 code_ob_type;
	__u8 code_firstlineno;
	__u8 code_filename;
	__u8 code_name;
	__u8 code_linetable;
	__u8 _pad[5];
};

/*
 * A read of user memory costs some 80 ns, however long it is. From 3.11 on, frames of calls from Python
 * to Python lie one behind the other: a window of their memory is read at once. A frame that is
 * elsewhere (a shim, a generator's, 3.8 to 3.10's objects) is read by itself, in front of the window.
 */
#define PYTHON_PART 256
#define PYTHON_WINDOW 1024
/* Offsets into these are cut to a power of two, so that the verifier sees that they are in bounds. */
#define PYTHON_FRAME_BYTES 2048

/* What is remembered of code objects, from one walk to the next on this CPU, for this long. */
#define PYTHON_CODE_BITS 9
#define PYTHON_CODES (1 << PYTHON_CODE_BITS)
#define PYTHON_CODE_NS 250000000

struct python_code {
	__u64 code; /* 0: CPython's own glue, which is read each time */
	__u64 as_of;
	__u32 tag; /* of the process and the function that ran it: another may come to its address */
	__u32 check;
};

/* A walk that is under way. */
struct python_walk {
	__u64 pthread;	   /* pthread_self() of the thread whose frames are wanted */
	__u64 interpreter; /* to be searched next, 0: that was the last */
	__u64 tstate;	   /* to be looked at next, 0: that was the interpreter's last */
	__u64 found;	   /* the thread's own */
	__u64 frame;	   /* to be recorded next, 0: still searching */
	__u64 last;	   /* recorded last */
	__u64 hash;	   /* all that were recorded, folded into a number */
	__u64 window;	   /* where the window begins, and */
	__u32 window_len;
	__u8 alone;	   /* there is one interpreter, so a thread has one thread state */
	__u8 end;	   /* enum stack_end */
	__u8 _pad[2];
	__u8 frames[PYTHON_FRAME_BYTES + PYTHON_PART + 8];
	__u8 code_part[PYTHON_PART + 8];
	struct python_code codes[PYTHON_CODES];
};

#endif
