// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Where the shared maps are defined: every other program declares them only. */
#define UNDERSPAN_DEFINE_MAPS
#include "maps.h"
#include "tcp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
