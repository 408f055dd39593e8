/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What records about TCP connections have in common.
 */
#ifndef UNDERSPAN_TCP_RECORD_H
#define UNDERSPAN_TCP_RECORD_H

#include "event.h"

/* The two ends of a connection. IPv4 addresses fill the first four bytes; ports are the host's. */
struct tcp_ends {
	__u8 peer[16];
	__u8 local[16];
	__u16 peer_port;
	__u16 local_port;
	__u16 family;
	__u16 _pad;
};

#endif
