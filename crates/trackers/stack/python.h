/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker of Python frames is told by user space: where this interpreter keeps what.
 * Compiles as BPF and as user code.
 */
#ifndef UNDERSPAN_PYTHON_H
#define UNDERSPAN_PYTHON_H

#include "stack.h"

#endif
