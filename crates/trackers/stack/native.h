/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker of native frames is told by user space: unwind tables, and which mapping has which.
 * Compiles as BPF and as user code.
 *
 *	process ─▶ its mappings, sorted ─▶ the table's blocks ─▶ rows, sorted ─▶ the rule
 *
 * Blocks and rows are entries of one large array, made of shards that come and go: entry n is entry
 * n % UNWIND_SHARD of shard n / UNWIND_SHARD. A table is its blocks, one for every UNWIND_BLOCK bytes
 * of code, then its rows.
 */
#ifndef UNDERSPAN_NATIVE_H
#define UNDERSPAN_NATIVE_H

#include "stack.h"

#define UNWIND_SHARD (1 << 16)	  /* entries, of 8 bytes */
#define UNWIND_SHARDS 256	  /* at the most: 128 MiB */
#define UNWIND_BLOCK 512	  /* bytes of code */
#define UNWIND_MAPPINGS (1 << 16) /* of all processes together */
#define UNWIND_PROCESSES 4096
#define UNWIND_PROCESS_MAPPINGS 4096 /* of one process */
#define UNWIND_WINDOW 64	     /* words of the stack that are read at once */
#define UNWIND_NO_TABLE 0xffffffff    /* unwind_mapping.blocks: there is one, and no room for it */

/* How the CFA is found: the stack pointer before the call. `w`: words of 8 bytes. */
enum unwind_cfa {
	UNWIND_GAP,	    /* no function is known here */
	UNWIND_RSP,	    /* rsp + w */
	UNWIND_RBP,	    /* rbp + w */
	UNWIND_AT_RSP,	    /* the word at rsp + w, plus add */
	UNWIND_AT_RBP,	    /* the word at rbp + w, plus add */
	UNWIND_REGISTER,    /* a register of the innermost frame, + w */
	UNWIND_IN_REGISTER, /* rsp + w, and the return address is in a register of the innermost frame */
	UNWIND_PLT,	    /* rsp + 8, or + 16 from this byte of a 16-byte entry on */
	UNWIND_FRAME_POINTER, /* rbp + 16, on whatever stack that is */
	UNWIND_END,	    /* the outermost function of a thread */
	UNWIND_SIGNAL,	    /* what a signal handler returns to */
	UNWIND_UNSUPPORTED, /* only a DWARF expression could tell */
};

/* Where the caller's rbp is. */
enum unwind_rbp {
	UNWIND_RBP_SAME,
	UNWIND_RBP_AT_CFA, /* at the CFA + w */
	UNWIND_RBP_AT_RBP, /* at rbp + w */
	UNWIND_RBP_UNKNOWN,
};

/* How to leave a function. Its return address is at the CFA - 8. */
struct unwind_rule {
	__u8 cfa : 5; /* enum unwind_cfa */
	__u8 rbp : 3; /* enum unwind_rbp */
	__s8 rbp_words;
	__u16 words; /* RSP: unsigned. RBP: signed. PLT: the byte. Others: 12 bits signed, shifted left by
			4, over 4 bits for `add` in words or the register's DWARF number */
};

/* What holds from `pc` on. */
struct unwind_row {
	__u32 pc; /* bytes from the table's first */
	struct unwind_rule rule;
};

/* Which rows to search for an address in a block: from the one that holds at its first byte. */
struct unwind_block {
	__u32 first; /* entry */
	__u32 rows;
};

union unwind_entry {
	struct unwind_row row;
	struct unwind_block block;
};

/* An executable mapping. */
struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 base;   /* where the table's first byte of code is */
	__u32 blocks; /* first entry of the table. 0: there is none, frame pointers are followed */
	__u32 span;   /* bytes of code that the table speaks of */
};

/* Where a process's mappings are. Forked processes share them. */
struct unwind_process {
	__u32 first;
	__u32 count;
	__u32 generation; /* of this list: no other one has had the same number. Not 0 */
};

/*
 * Rules that were found, from one walk to the next on this CPU. To search for one takes a dozen steps
 * through tables that are seldom in a cache, and programs wait in the same places again and again.
 */
#define UNWIND_FOUND_BITS 10
#define UNWIND_FOUND (1 << UNWIND_FOUND_BITS)

struct unwind_found {
	__u64 address;
	__u32 generation; /* of the mappings in which it was found */
	struct unwind_rule rule;
};

/*
 * What a whole walk followed of the stack, in its order: return addresses, and what frames were found by
 * besides. So many words at the most, that many above the stack pointer (again.bpf.h).
 */
#define AGAIN_FOLLOWED 96
#define AGAIN_WORDS 1024

struct stack_again {
	__u64 time; /* of the record that has the frames */
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u64 python;	  /* Python's frames folded into a number */
	__u32 generation; /* of the mappings */
	__u16 followed;	  /* more than AGAIN_FOLLOWED: not all of it can be remembered */
	__u16 words;	  /* up to the uppermost */
	__u8 python_end;  /* enum stack_end */
	__u8 needs_bp;	  /* what was in rbp matters */
	__u8 _pad[6];
	__u64 value[AGAIN_FOLLOWED];
	__u16 slot[AGAIN_FOLLOWED]; /* in which word above the stack pointer it was */
};

/* What a walk remembers, and its workspace. */
struct unwind_memory {
	struct unwind_found found[UNWIND_FOUND];
	struct stack_again now; /* the present walk */
	__u64 words[AGAIN_WORDS];
};

/* The walk so far. In the scratch: verifiers remember nothing of what is there, which is good. */
struct native_walk {
	__u64 pc;
	__u64 sp;
	__u64 bp;
	__u64 start; /* the mapping that the last frame was in */
	__u64 size;
	__u64 base;
	__u32 blocks;
	__u32 span;
	__u32 first; /* the process's mappings */
	__u32 count;
	__u32 generation;
	__u32 _pad2;
	__u64 bp_at;  /* where `bp` was read, 0: it is the register still */
	__u64 window; /* address of the part of the stack that is in `stack` */
	__u64 stack[UNWIND_WINDOW];
	__u8 exact;   /* pc is not a return address */
	__u8 bp_known;
	__u8 end;     /* enum stack_end */
	__u8 _pad[5];
};

#endif
