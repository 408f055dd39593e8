/*
 * A storm of context switches: pairs of threads pass a token to and fro, over a pipe or a futex.
 *
 *   switches pipe|futex PAIRS SECONDS [ROUNDS_PER_SECOND]
 *
 * A round is two handoffs. Without a rate each pair goes as fast as it can; with one, the pair makes the rounds of a
 * millisecond in one burst and sleeps until the next. Starts when a line comes in on standard input. Prints one JSON
 * object; `switches` is how often the kernel says the process's threads left the CPU.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct pair {
	pthread_t left, right;
	int there[2], back[2]; /* pipes */
	atomic_int turn;       /* futex: 0 left's, 1 right's */
	atomic_bool stop;
	long rounds;
};

static bool use_pipe;
static long rate; /* rounds a second of one pair, 0: as many as it can */
static double seconds;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
	struct timespec t = { .tv_sec = (time_t)when, .tv_nsec = (long)((when - (time_t)when) * 1e9) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void give(struct pair *p, int to)
{
	if (use_pipe) {
		if (write(to ? p->there[1] : p->back[1], "x", 1) != 1)
			fail("write");
		return;
	}
	atomic_store(&p->turn, to);
	syscall(SYS_futex, &p->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void take(struct pair *p, int me)
{
	char token;

	if (use_pipe) {
		if (read(me ? p->there[0] : p->back[0], &token, 1) != 1)
			fail("read");
		return;
	}
	while (atomic_load(&p->turn) != me)
		syscall(SYS_futex, &p->turn, FUTEX_WAIT_PRIVATE, !me, NULL, NULL, 0);
}

static void *left(void *arg)
{
	struct pair *p = arg;
	double start = now(), end = start + seconds;
	long burst = rate ? (rate + 999) / 1000 : 64;

	while (now() < end) {
		for (long i = 0; i < burst; i++) {
			give(p, 1);
			take(p, 0);
		}
		p->rounds += burst;
		if (rate)
			sleep_until(start + (double)p->rounds / rate);
	}
	atomic_store(&p->stop, true);
	give(p, 1);
	return NULL;
}

static void *right(void *arg)
{
	struct pair *p = arg;

	for (;;) {
		take(p, 1);
		if (atomic_load(&p->stop))
			return NULL;
		give(p, 0);
	}
}

int main(int argc, char **argv)
{
	int pairs = argc > 2 ? atoi(argv[2]) : 0;
	struct rusage before, after;
	struct pair *all;
	double start, wall;
	long rounds = 0;

	if (pairs < 1 || argc < 4) {
		fprintf(stderr, "usage: switches pipe|futex PAIRS SECONDS [ROUNDS_PER_SECOND]\n");
		return 2;
	}
	use_pipe = !strcmp(argv[1], "pipe");
	seconds = atof(argv[3]);
	rate = argc > 4 ? atol(argv[4]) / pairs : 0;
	all = calloc(pairs, sizeof(*all));
	if (!all)
		fail("calloc");
	if (getchar() == EOF)
		return 1;

	getrusage(RUSAGE_SELF, &before);
	start = now();
	for (struct pair *p = all; p < all + pairs; p++) {
		if (pipe(p->there) || pipe(p->back))
			fail("pipe");
		if (pthread_create(&p->left, NULL, left, p) || pthread_create(&p->right, NULL, right, p))
			fail("pthread_create");
	}
	for (struct pair *p = all; p < all + pairs; p++) {
		pthread_join(p->left, NULL);
		pthread_join(p->right, NULL);
		rounds += p->rounds;
	}
	wall = now() - start;
	getrusage(RUSAGE_SELF, &after);
	printf("{\"rounds\": %ld, \"seconds\": %.6f, \"switches\": %ld}\n", rounds, wall,
	       after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw);
	return 0;
}
