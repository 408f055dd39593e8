/*
 * Two threads wake each other 20,000 times. Every wait is far below the threshold of a wait row, so that only
 * the ledger can tell what they add up to; and the threads move between CPUs as the scheduler likes.
 *
 * Where a wait ends and the run queue begins is a matter of a microsecond at each wake-up, so the sum of both
 * is claimed: it is exactly the time off the CPU.
 */
#include "clock.h"
#include <pthread.h>
#include <semaphore.h>

#define ROUNDS 20000

static sem_t ping, pong;

static void volley(const char *name, sem_t *mine, sem_t *yours)
{
	struct instant begin, end;

	pthread_setname_np(pthread_self(), name);
	begin = now();
	for (int i = 0; i < ROUNDS; i++) {
		sem_wait(mine);
		sem_post(yours);
	}
	end = now();
	claim_off_cpu("20,000 short waits", name, "[\"lock_wait\", \"runnable\"]", begin, end, 20000000);
}

static void *left(void *unused)
{
	volley("left", &ping, &pong);
	return unused;
}

static void *right(void *unused)
{
	volley("right", &pong, &ping);
	return unused;
}

int main(void)
{
	pthread_t threads[2];

	sem_init(&ping, 0, 1);
	sem_init(&pong, 0, 0);
	if (pthread_create(&threads[0], NULL, left, NULL) || pthread_create(&threads[1], NULL, right, NULL)) {
		perror("pthread_create");
		return 1;
	}
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	return 0;
}
