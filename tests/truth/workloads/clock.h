/* What clock.py is for Python: the kernel's own accounts of a thread, and claims about them. */
#ifndef TRUTH_CLOCK_H
#define TRUTH_CLOCK_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef long long ns_t;

struct instant {
	ns_t unix_time, mono, cpu, delay;
};

/* A stretch of a thread's life. */
struct phase {
	long tid;
	struct instant begin, end;
};

static inline ns_t read_clock(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline ns_t run_queue_delay(void)
{
	char text[96] = "";
	ns_t ran, delay;
	int fd = open("/proc/thread-self/schedstat", O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0 ||
	    sscanf(text, "%lld %lld", &ran, &delay) != 2) {
		perror("/proc/thread-self/schedstat");
		exit(1);
	}
	close(fd);
	return delay;
}

static inline struct instant now(void)
{
	struct instant i;

	/* If the thread lost its CPU between two clocks, read them again. */
	do {
		i.delay = run_queue_delay();
		i.unix_time = read_clock(CLOCK_REALTIME);
		i.mono = read_clock(CLOCK_MONOTONIC);
		i.cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
	} while (run_queue_delay() != i.delay);
	return i;
}

static inline void begin(struct phase *p)
{
	p->tid = syscall(SYS_gettid);
	p->begin = now();
}

static inline void end(struct phase *p)
{
	p->end = now();
}

/*
 * Claims that the thread's ledger holds, in `states` (a JSON list) together, its time off the CPU:
 * from the kernel's account of it to the time it spent `waiting`. What the thread did in the rest of
 * its life, all of which `lived` long, may be in those states too.
 */
static inline void claim_off_cpu(const struct phase *p, const char *label, const char *thread,
				 const char *states, ns_t waiting, ns_t lived, ns_t at_least)
{
	const char *path = getenv("TRUTH_CLAIMS");
	FILE *out = path ? fopen(path, "a") : stdout;
	ns_t wall = p->end.mono - p->begin.mono, off = wall - (p->end.cpu - p->begin.cpu);

	if (!out) {
		perror(path);
		exit(1);
	}
	fprintf(out,
		"{\"kind\": \"cell\", \"label\": \"%s\", \"thread\": \"%s\", \"pid\": %d, \"tid\": %ld, "
		"\"start\": %lld, \"end\": %lld, \"states\": %s, \"ns\": %lld, \"ns_max\": %lld, "
		"\"at_least\": %lld}\n",
		label, thread, getpid(), p->tid, p->begin.unix_time, p->end.unix_time, states, off,
		(waiting > off ? waiting : off) + lived - wall, at_least);
	if (path)
		fclose(out);
}

#endif
