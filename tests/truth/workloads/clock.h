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

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0 || sscanf(text, "%lld %lld", &ran, &delay) != 2) {
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

/* Claims that the thread's ledger holds, in `states` (a JSON list) together, its time off the CPU. */
static inline void claim_off_cpu(const char *label, const char *thread, const char *states, struct instant begin,
				 struct instant end, ns_t at_least)
{
	const char *path = getenv("TRUTH_CLAIMS");
	FILE *out = path ? fopen(path, "a") : stdout;
	ns_t wall = end.mono - begin.mono, cpu = end.cpu - begin.cpu, delay = end.delay - begin.delay;

	if (!out) {
		perror(path);
		exit(1);
	}
	flockfile(out);
	fprintf(out,
		"{\"kind\": \"cell\", \"label\": \"%s\", \"thread\": \"%s\", \"pid\": %d, \"tid\": %ld, \"start\": %lld, "
		"\"end\": %lld, \"states\": %s, \"ns\": %lld, \"at_least\": %lld, "
		"\"clocks\": {\"wall\": %lld, \"cpu\": %lld, \"delay\": %lld, \"blocked\": %lld}}\n",
		label, thread, getpid(), syscall(SYS_gettid), begin.unix_time, end.unix_time, states, wall - cpu, at_least,
		wall, cpu, delay, wall - cpu - delay);
	funlockfile(out);
	if (path)
		fclose(out);
}

#endif
