/*
 * Pairs of threads that serve requests: one of each takes a request when it is due, and hands it to and fro between
 * itself and its partner; whoever has it works on it for a while. Each handoff is a context switch.
 *
 * handoffs.py loads this as a library and gives every side a thread of its own, with Python frames below.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STEPS 5		/* a request goes to the partner and back so often */
#define WORDS 512	/* what a thread works on: 4 KiB */

struct side {
	int events;		/* eventfd, or -1: the futex */
	atomic_int ready;
	unsigned long data[WORDS];
};

struct pair {
	struct side side[2];
	long work;		/* passes over the data for each handoff */
	double rate;		/* requests a second, 0: as many as it can */
	double seconds;
	unsigned long seed;	/* of the times when requests are due */
	long capacity, requests;
	unsigned int *latency;	/* nanoseconds, from when it was due; only with a rate */
	atomic_int over;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
	struct timespec t = { .tv_sec = (time_t)when, .tv_nsec = (long)((when - (time_t)when) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void wake(struct side *s)
{
	unsigned long one = 1;

	if (s->events >= 0) {
		if (write(s->events, &one, sizeof(one)) != sizeof(one))
			abort();
		return;
	}
	atomic_store(&s->ready, 1);
	syscall(SYS_futex, &s->ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void await(struct side *s)
{
	unsigned long count;

	if (s->events >= 0) {
		while (read(s->events, &count, sizeof(count)) != sizeof(count))
			if (errno != EINTR)
				abort();
		return;
	}
	while (!atomic_exchange(&s->ready, 0))
		syscall(SYS_futex, &s->ready, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void work(struct side *s, long passes)
{
	unsigned long x = s->data[0];

	for (long i = 0; i < passes * 64; i++) {
		x = x * 6364136223846793005UL + s->data[x >> 55];
		s->data[i % WORDS] ^= x;
	}
}

/* -ln(u) for u in (0, 1], without libm: the times between requests are those of many independent clients. */
static double exponential(unsigned long *seed)
{
	double u, y, z, sum = 0;
	int halvings = 0;

	*seed = *seed * 6364136223846793005UL + 1442695040888963407UL;
	for (u = ((*seed >> 11) + 1) / 9007199254740992.0; u < 0.5; u *= 2)
		halvings++;
	y = (1 - u) / (1 + u); /* -ln(u) = 2 artanh(y) */
	z = y;
	for (int k = 1; k < 30; k += 2, z *= y * y)
		sum += z / k;
	return 2 * sum + halvings * 0.6931471805599453;
}

struct pair *pair_new(int eventfds, long work, double rate, double seconds, unsigned long seed)
{
	struct pair *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->work = work;
	p->rate = rate;
	p->seconds = seconds;
	p->seed = seed;
	p->capacity = (long)(rate * seconds * 2) + 1000;
	p->latency = malloc(p->capacity * sizeof(*p->latency));
	for (int i = 0; i < 2; i++) {
		p->side[i].events = eventfds ? eventfd(0, EFD_CLOEXEC) : -1;
		for (int word = 0; word < WORDS; word++)
			p->side[i].data[word] = (seed + word) * 0x9e3779b97f4a7c15UL;
		if (eventfds && p->side[i].events < 0)
			return NULL;
	}
	return p->latency ? p : NULL;
}

void pair_free(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		if (p->side[i].events >= 0)
			close(p->side[i].events);
	free(p->latency);
	free(p);
}

static void serve(struct pair *p)
{
	for (int i = 0; i < STEPS; i++) {
		work(&p->side[0], p->work);
		wake(&p->side[1]);
		await(&p->side[0]);
	}
}

/* The side that has the clock. Requests that are due before the end are served, however late. */
void pair_lead(struct pair *p)
{
	double due = now(), end = due + p->seconds;

	prctl(PR_SET_TIMERSLACK, 1);
	while (!p->rate && now() < end) {
		serve(p);
		p->requests++;
	}
	while (p->rate && (due += exponential(&p->seed) / p->rate) < end && p->requests < p->capacity) {
		if (now() < due)
			sleep_until(due);
		serve(p);
		p->latency[p->requests++] = (unsigned int)((now() - due) * 1e9);
	}
	atomic_store(&p->over, 1);
	wake(&p->side[1]);
}

void pair_follow(struct pair *p)
{
	for (;;) {
		await(&p->side[1]);
		if (atomic_load(&p->over))
			return;
		work(&p->side[1], p->work);
		wake(&p->side[0]);
	}
}

long pair_requests(const struct pair *p)
{
	return p->requests;
}

const unsigned int *pair_latency(const struct pair *p)
{
	return p->latency;
}
