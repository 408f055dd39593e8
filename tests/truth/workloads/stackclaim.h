/* Claims about where a thread waited, for programs in C. */
#ifndef TRUTH_STACKCLAIM_H
#define TRUTH_STACKCLAIM_H

#include "clock.h"

/* Time that a thread was blocked, by the kernel's account of it. */
static inline ns_t blocked(const struct instant *before, const struct instant *after)
{
	return after->mono - before->mono - (after->cpu - before->cpu) - (after->delay - before->delay);
}

/* Claims that the phase's time in `state` was spent below `outer` calls of dig(), in `leaf`. */
static inline void claim_stack(const struct phase *p, const char *label, const char *thread,
			       const char *state, ns_t ns, const char *outer, int depth,
			       const char *leaf)
{
	const char *path = getenv("TRUTH_CLAIMS");
	FILE *out = path ? fopen(path, "a") : stdout;

	if (!out) {
		perror(path);
		exit(1);
	}
	fprintf(out,
		"{\"kind\": \"stack\", \"label\": \"%s\", \"thread\": \"%s\", \"pid\": %d, \"tid\": %ld, "
		"\"start\": %lld, \"end\": %lld, \"states\": [\"%s\"], \"at_least\": 1000000000, "
		"\"trees\": [{\"ns\": %lld, \"functions\": [\"%s\"",
		label, thread, getpid(), p->tid, p->begin.unix_time, p->end.unix_time, state, ns, outer);
	for (int i = 0; i < depth; i++)
		fprintf(out, ", \"dig\"");
	fprintf(out, ", \"%s\"]}]}\n", leaf);
	if (path)
		fclose(out);
}

#endif
