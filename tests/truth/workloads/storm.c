/*
 * Two threads wake each other 20,000 times. Every wait is far below the threshold of a wait row, so
 * that only the ledger can tell what they add up to; and the threads move between CPUs as the
 * scheduler likes.
 *
 * The kernel's own accounts are off by some microseconds at each switch. So what is claimed is the
 * time off the CPU, blocked or in a run queue, as an interval: from what the kernel says, to all the
 * time inside of sem_wait().
 */
#include "clock.h"
#include <pthread.h>
#include <semaphore.h>

#define ROUNDS 20000

struct player {
	const char *name;
	sem_t *mine, *theirs;
	ns_t created;
	pthread_t thread;
	ns_t waiting; /* inside of sem_wait() */
	struct phase phase;
};

static void *volley(void *argument)
{
	struct player *p = argument;

	pthread_setname_np(pthread_self(), p->name);
	begin(&p->phase);
	for (int i = 0; i < ROUNDS; i++) {
		ns_t before = read_clock(CLOCK_MONOTONIC);

		sem_wait(p->mine);
		p->waiting += read_clock(CLOCK_MONOTONIC) - before;
		sem_post(p->theirs);
	}
	end(&p->phase);
	return NULL;
}

int main(void)
{
	sem_t ping, pong;
	struct player players[] = {
		{ .name = "left", .mine = &ping, .theirs = &pong },
		{ .name = "right", .mine = &pong, .theirs = &ping },
	};

	sem_init(&ping, 0, 1);
	sem_init(&pong, 0, 0);
	for (int i = 0; i < 2; i++) {
		players[i].created = read_clock(CLOCK_MONOTONIC);
		if (pthread_create(&players[i].thread, NULL, volley, &players[i])) {
			perror("pthread_create");
			return 1;
		}
	}
	for (int i = 0; i < 2; i++) {
		struct player *p = &players[i];

		pthread_join(p->thread, NULL);
		claim_off_cpu(&p->phase, "20,000 short waits", p->name, "[\"lock_wait\", \"runnable\"]",
			      p->waiting, read_clock(CLOCK_MONOTONIC) - p->created, 20000000);
	}
	return 0;
}
