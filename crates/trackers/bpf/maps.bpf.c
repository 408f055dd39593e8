// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
#define UNDERSPAN_DEFINE_MAPS
#include "maps.h"
#include "tcp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
