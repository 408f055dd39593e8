/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker of native frames is told by user space: unwind tables, and which mapping has which.
 * Compiles as BPF and as user code.
 */
#ifndef UNDERSPAN_NATIVE_H
#define UNDERSPAN_NATIVE_H

#include "stack.h"

#endif
