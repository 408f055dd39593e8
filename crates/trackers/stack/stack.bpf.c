// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The stack of a thread that has waited, taken on its way back to user mode.
 */
#define UNDERSPAN_DEFINE_STACKS
#include "stack.bpf.h"
