/*
 * Call trees whose every return address is known: at the end of each, glibc's backtrace() lists them,
 * and then the thread sleeps, again and again, so that a sample of it can be compared.
 *
 * trees ROLE [LIBRARY]: waits for a line on standard input, plays the role, says
 *
 *	TID ADDRESS ADDRESS ...
 *
 * of the sleeping thread (the first address is in the function that sleeps), sleeps SLEEPS times (MANY_SLEEPS in a
 * library), and says "done". A role in halves is played twice, telling first; then another line is waited for, it
 * says "again", and sleeps. With the variable ASLEEP it sleeps on instead, until it is killed.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLEEPS 100
/* Of which the first find the library missing. */
#define MANY_SLEEPS 500
#define NOINLINE __attribute__((noinline, noclone))

static volatile int sink;
static bool in_halves, told_half, in_vfork;
static int sleeps = SLEEPS;

/* Where every tree ends. */
NOINLINE void tell_and_sleep(void)
{
	static const struct timespec two_ms = { .tv_nsec = 2000000 };
	static void *list[2048];

	if (!told_half) {
		int count = backtrace(list, 2048);

		printf("%d", gettid());
		for (int i = 0; i < count; i++)
			printf(" %lx", (unsigned long)list[i]);
		puts("");
		fflush(stdout);
		told_half = in_halves;
		if (in_halves)
			return;
	}
	while (getenv("ASLEEP"))
		sleep(1000);
	for (int i = 0; i < sleeps; i++) {
		if (in_vfork && vfork())
			continue;
		nanosleep(&two_ms, NULL);
		if (in_vfork)
			_exit(0);
	}
	sink++;
}

/* A thread that exits may wait, and never goes back to tell its stack. */
static void stay(void)
{
	puts("done");
	fflush(stdout);
	for (;;)
		pause();
}

/* Frames of a size that only the stack pointer tells, and others that hang on rbp. */
NOINLINE int deep(int depth)
{
	char fixed[depth % 7 * 24 + 8];

	memset(fixed, depth, sizeof(fixed));
	if (depth % 3 == 0) {
		char *more = alloca(depth + 1);

		memset(more, depth, depth + 1);
		sink += more[depth / 2];
	}
	if (!depth)
		tell_and_sleep();
	else
		sink += deep(depth - 1);
	return fixed[0] + sink;
}

/* A frame aligned by the function itself: the caller's is found through a saved pointer. */
NOINLINE int realigned(int depth)
{
	_Alignas(64) volatile char buffer[192];
	char *more = alloca(depth * 8 + 1);

	memset(more, 1, depth * 8 + 1);
	buffer[depth] = more[depth];
	if (depth)
		sink += realigned(depth - 1);
	else
		tell_and_sleep();
	return buffer[depth] + more[0];
}

NOINLINE int large_frame(int depth)
{
	volatile char buffer[200000];

	buffer[depth] = 1;
	if (depth)
		sink += large_frame(depth - 1);
	else
		tell_and_sleep();
	return buffer[depth];
}

static int told;

NOINLINE int compare(const void *one, const void *other)
{
	if (!told++)
		deep(3);
	return *(const int *)one - *(const int *)other;
}

/* Through libc's own frames. */
NOINLINE void callback(void)
{
	int numbers[] = { 5, 3, 8, 1, 9, 2, 7 };

	qsort(numbers, 7, sizeof(int), compare);
	sink += numbers[3];
}

NOINLINE int last_of_chain(int n)
{
	deep(n);
	return sink;
}

/* Jumps: it has no frame by the time the other runs. */
NOINLINE int tail_call(int n)
{
	sink++;
	return last_of_chain(n + 1);
}

NOINLINE void tail_calls(void)
{
	sink += tail_call(2) + 1;
}

static void probed(void)
{
	char line[16];

	in_halves = true;
	for (volatile int half = 0; half < 2; half++) { /* one call of it, not two */
		tail_calls();
		if (!half && !fgets(line, sizeof(line), stdin))
			exit(1);
		if (!half)
			puts("again"), fflush(stdout);
	}
}

/* The call is the function's last instruction: the return address is the next function's. */
__attribute__((noinline, noclone, noreturn)) void never_returns(void)
{
	deep(4);
	puts("done");
	fflush(stdout);
	for (;;)
		pause();
}

NOINLINE void ends_in_a_call(void)
{
	sink++;
	never_returns();
}

static void handler(int signal)
{
	sink += signal;
	deep(5);
}

/* The handler interrupts an instruction that is no call. */
NOINLINE void in_signal(void)
{
	raise(SIGUSR1);
	sink++;
}

NOINLINE void in_signal_by_surprise(void)
{
	volatile unsigned long spin = 0;
	struct itimerspec soon = { .it_value.tv_nsec = 5000000 };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	timer_t timer;

	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &soon, NULL);
	while (!sink)
		spin++;
}

NOINLINE void *in_thread(void *unused)
{
	deep(7);
	stay();
	return unused;
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	if (flags & SA_ONSTACK) {
		static char other_stack[65536];
		stack_t stack = { .ss_sp = other_stack, .ss_size = sizeof(other_stack) };

		sigaltstack(&stack, NULL);
	}
	sigaction(SIGUSR1, &action, NULL);
}

NOINLINE void library(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW);
	void (*enter)(void (*)(void)) = handle ? (void (*)(void (*)(void)))dlsym(handle, "enter") : NULL;

	if (!enter)
		exit(2);
	sleeps = MANY_SLEEPS;
	enter(tell_and_sleep);
	sink++;
}

/* Returns to where no code ever was. */
static void *returns_nowhere(void *unused)
{
	__asm__ volatile("push $0x12340\n\tjmp sleep_for_ever");
	return unused;
}

__attribute__((used, noreturn)) void sleep_for_ever(void)
{
	static const struct timespec two_ms = { .tv_nsec = 2000000 };

	for (;;)
		nanosleep(&two_ms, NULL);
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";
	void *warm[4];
	char line[16];
	pthread_t thread;

	/* Its first call loads a library. */
	backtrace(warm, 4);
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	if (!strcmp(role, "deep"))
		deep(200);
	else if (!strcmp(role, "realigned"))
		realigned(12);
	else if (!strcmp(role, "large"))
		large_frame(6);
	else if (!strcmp(role, "callback"))
		callback();
	else if (!strcmp(role, "tail"))
		tail_calls();
	else if (!strcmp(role, "probed"))
		probed();
	else if (!strcmp(role, "vfork"))
		in_vfork = true, signal(SIGCHLD, SIG_IGN), deep(4);
	else if (!strcmp(role, "noreturn"))
		ends_in_a_call();
	else if (!strcmp(role, "signal"))
		handle(0), in_signal();
	else if (!strcmp(role, "surprise"))
		handle(0), in_signal_by_surprise();
	else if (!strcmp(role, "other-stack"))
		handle(SA_ONSTACK), in_signal();
	else if (!strcmp(role, "thread"))
		pthread_create(&thread, NULL, in_thread, NULL), pthread_join(thread, NULL);
	else if (!strcmp(role, "library"))
		library(argv[2]);
	else if (!strcmp(role, "nowhere"))
		pthread_create(&thread, NULL, returns_nowhere, NULL), sleep(4), library(argv[2]);
	else if (!strcmp(role, "fork") && fork() == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL), deep(6);
	else if (!strcmp(role, "fork"))
		wait(NULL);
	else
		return 2;
	stay();
}
