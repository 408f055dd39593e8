/*
 * Threads wait at the ends of known call trees. Compiled without frame pointers and without debug
 * information: only unwind tables tell who called whom.
 */
#include "stackclaim.h"
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#define PAUSE_NS 12000000 /* longer than the period: each wait is a sample */
#define ROUNDS 125
#define HERE __asm__ volatile("") /* else a call at the end would be a jump */
#define NOINLINE __attribute__((noinline, noclone))

struct waiter {
	const char *label;
	const char *state;
	const char *leaf;
	int depth;
	void (*wait)(struct waiter *);
	ns_t blocked;
	sem_t fed;
	int pipe[2];
	pthread_t thread, feeder;
};

static void pause_for(long ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	nanosleep(&t, NULL);
}

NOINLINE void leaf_sleep(struct waiter *w)
{
	pause_for(PAUSE_NS);
	HERE;
}

NOINLINE void leaf_lock(struct waiter *w)
{
	sem_wait(&w->fed);
	HERE;
}

NOINLINE void leaf_pipe(struct waiter *w)
{
	char byte;

	if (read(w->pipe[0], &byte, 1) != 1)
		exit(1);
	HERE;
}

NOINLINE void leaf_disk(struct waiter *w)
{
	if (fsync(w->pipe[0]))
		exit(1);
	HERE;
}

/* A frame of a size that only the table knows. */
NOINLINE void dig(struct waiter *w, int depth)
{
	volatile char frame[64 + 16 * (depth % 4)];

	frame[0] = depth;
	if (depth > 1)
		dig(w, depth - 1);
	else
		w->wait(w);
	frame[0] = 0;
	HERE;
}

NOINLINE void outermost(struct waiter *w)
{
	struct instant before = now(), after;

	dig(w, w->depth);
	after = now();
	w->blocked += blocked(&before, &after);
}

#define CHUNK (8 << 20)

/* Waits for the disk: most of these are shorter than the period, so it takes more of them. */
static void write_and_sync(struct waiter *w)
{
	char path[] = "stacks_c.XXXXXX", *chunk = malloc(CHUNK);

	w->pipe[0] = mkstemp(path);
	if (w->pipe[0] < 0 || !chunk || unlink(path))
		exit(1);
	memset(chunk, 'x', CHUNK);
	while (w->blocked < 2500000000) {
		if (pwrite(w->pipe[0], chunk, CHUNK, 0) != CHUNK)
			exit(1);
		outermost(w);
	}
	free(chunk);
}

static void *live(void *argument)
{
	struct waiter *w = argument;
	struct phase p;

	begin(&p);
	if (w->wait == leaf_disk)
		write_and_sync(w);
	else
		for (int i = 0; i < ROUNDS; i++)
			outermost(w);
	end(&p);
	claim_stack(&p, w->label, "stacks_c", w->state, w->blocked, "outermost", w->depth, w->leaf);
	return NULL;
}

static void *feed(void *argument)
{
	struct waiter *w = argument;

	for (int i = 0; i < ROUNDS; i++) {
		pause_for(PAUSE_NS);
		if (w->wait == leaf_lock)
			sem_post(&w->fed);
		else if (write(w->pipe[1], "", 1) != 1)
			exit(1);
	}
	return NULL;
}

static int is_fed(const struct waiter *w)
{
	return w->wait == leaf_lock || w->wait == leaf_pipe;
}

int main(void)
{
	struct waiter waiters[] = {
		{ "sleep at depth 5", "sleep", "leaf_sleep", 5, leaf_sleep },
		{ "sleep at depth 40", "sleep", "leaf_sleep", 40, leaf_sleep },
		{ "sleep at depth 120", "sleep", "leaf_sleep", 120, leaf_sleep },
		{ "deep recursion, 400", "sleep", "leaf_sleep", 400, leaf_sleep },
		{ "lock", "lock_wait", "leaf_lock", 10, leaf_lock },
		{ "disk", "disk_io", "leaf_disk", 10, leaf_disk },
		{ "pipe", "pipe_ipc", "leaf_pipe", 10, leaf_pipe },
	};
	const int count = sizeof(waiters) / sizeof(waiters[0]);

	/* Until then the agent may not have read this program's tables. */
	for (int i = 0; i < 100; i++)
		leaf_sleep(&waiters[0]);
	for (int i = 0; i < count; i++) {
		struct waiter *w = &waiters[i];

		sem_init(&w->fed, 0, 0);
		if (pipe(w->pipe) || pthread_create(&w->thread, NULL, live, w))
			return 1;
		if (is_fed(w) && pthread_create(&w->feeder, NULL, feed, w))
			return 1;
	}
	for (int i = 0; i < count; i++) {
		pthread_join(waiters[i].thread, NULL);
		if (is_fed(&waiters[i]))
			pthread_join(waiters[i].feeder, NULL);
	}
	return 0;
}
