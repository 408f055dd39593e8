/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stands in for the kernel where programs, or parts of them, are compiled as user code for their tests: memory is
 * read through a function that the test gives, and maps are lists. What a program needs besides, its test has.
 */
#ifndef UNDERSPAN_USER_H
#define UNDERSPAN_USER_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>

#include "../../bpf/types.h"

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier_var(var) ((void)0)
#define SEC(name)

/* Copies `len` bytes from the recorded process; not 0: they are not there. */
typedef long (*user_read)(void *recording, void *to, __u32 len, __u64 from);

static _Thread_local struct {
	user_read read;
	void *recording;
} user;

static inline long bpf_probe_read_user(void *to, __u32 len, const void *from)
{
	return user.read(user.recording, to, len, (__u64)from);
}

static inline long bpf_loop(__u32 times, void *callback, void *context, __u64 flags)
{
	long (*step)(__u32, void *) = callback;
	__u32 done = 0;

	(void)flags;
	while (done < times)
		if (step(done++, context))
			break;
	return done;
}

/* A map tells its type and sizes as it does libbpf: nothing is at these addresses. */
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

#define USER_KEY 16

struct user_entry {
	struct user_entry *next;
	const void *map;
	unsigned char key[USER_KEY];
	__u64 value[];
};

static _Thread_local struct user_entry *user_entries;

/* All maps of this test are empty. */
static inline void user_forget(void)
{
	while (user_entries) {
		struct user_entry *first = user_entries;

		user_entries = first->next;
		free(first);
	}
}

/* Where the pointer to an entry is, or would be. */
static inline struct user_entry **user_find(const void *map, const void *key, size_t key_size)
{
	struct user_entry **at = &user_entries;

	while (*at && ((*at)->map != map || memcmp((*at)->key, key, key_size)))
		at = &(*at)->next;
	return at;
}

static inline void *user_add(const void *map, const void *key, size_t key_size, size_t value_size)
{
	struct user_entry *entry = key_size <= USER_KEY ? calloc(1, sizeof(*entry) + value_size) : NULL;

	if (!entry)
		abort();
	entry->map = map;
	memcpy(entry->key, key, key_size);
	entry->next = user_entries;
	user_entries = entry;
	return entry->value;
}

static inline void *user_lookup(const void *map, bool is_array, const void *key, size_t key_size,
				size_t value_size)
{
	struct user_entry *entry = *user_find(map, key, key_size);

	if (entry)
		return entry->value;
	/* Of an array all entries are there. */
	return is_array ? user_add(map, key, key_size, value_size) : NULL;
}

static inline long user_update(const void *map, const void *key, size_t key_size, const void *value,
			       size_t value_size)
{
	struct user_entry *entry = *user_find(map, key, key_size);

	memcpy(entry ? entry->value : user_add(map, key, key_size, value_size), value, value_size);
	return 0;
}

static inline long user_delete(const void *map, const void *key, size_t key_size)
{
	struct user_entry **at = user_find(map, key, key_size), *entry = *at;

	if (!entry)
		return -1;
	*at = entry->next;
	free(entry);
	return 0;
}

#define USER_TYPE(map) (sizeof(*(map)->type) / sizeof(int))
#define USER_IS_ARRAY(map) \
	(USER_TYPE(map) == BPF_MAP_TYPE_ARRAY || USER_TYPE(map) == BPF_MAP_TYPE_PERCPU_ARRAY)
#define bpf_map_lookup_elem(map, at) \
	user_lookup(map, USER_IS_ARRAY(map), at, sizeof(*(map)->key), sizeof(*(map)->value))
#define bpf_map_update_elem(map, at, to, flags) \
	user_update(map, at, sizeof(*(map)->key), to, sizeof(*(map)->value))
#define bpf_map_delete_elem(map, at) user_delete(map, at, sizeof(*(map)->key))

#endif
