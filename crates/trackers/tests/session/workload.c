/*
 * A process that does what its standard input says, a line at a time, so that tests know what each
 * of its threads is doing. Every line is answered with one line of numbers.
 *
 *	start ROLE	a thread that plays the role; its tid
 *	fork		a child process that pauses; its pid
 *	reap		waits for that child; its pid
 *	exec		starts itself again, in the first thread
 *	thread-exec	the same, in another thread; that thread's tid
 *	addresses	of the pretended GIL, of the collector's flag and of its counters
 *	unlock		lets go who plays lock or brief-lock; 0
 *	lock-address	of the mutex that wait-for-lock waits for
 *	serve		a server on loopback: waits, accepts, answers; its port
 *	serve-no-backlog	the same on a socket that was opened with listen(…, 0)
 *	serve-no-backlog-ipv6	the same over IPv6
 *	serve-unix PATH	the same on a Unix socket
 *
 * It ends at end of file.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t child;

static void say(long number)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	printf("%ld\n", number);
	fflush(stdout);
	pthread_mutex_unlock(&lock);
}

static void start(void *(*body)(void *), void *arg)
{
	pthread_t thread;

	pthread_create(&thread, NULL, body, arg);
	pthread_detach(thread);
}

#include "workload_roles.h"
#include "workload_server.h"

static void *exec_again(void *unused)
{
	if (unused)
		say(gettid());
	execl("/proc/self/exe", "workload", NULL);
	return NULL;
}

static void command(char *line)
{
	if (!strncmp(line, "start ", 6)) {
		for (unsigned int i = 0; i < sizeof(roles) / sizeof(*roles); i++)
			if (!strcmp(line + 6, roles[i].name))
				return start(play, (void *)&roles[i]);
	} else if (!strcmp(line, "fork")) {
		child = fork();
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		return say(child);
	} else if (!strcmp(line, "reap")) {
		return say(waitpid(child, NULL, 0));
	} else if (!strcmp(line, "exec")) {
		exec_again(NULL);
	} else if (!strcmp(line, "thread-exec")) {
		return start(exec_again, line);
	} else if (!strcmp(line, "addresses")) {
		say((long)&gil);
		say((long)&collecting);
		return say((long)generation_stats);
	} else if (!strcmp(line, "unlock")) {
		pthread_mutex_unlock(&held);
		return say(0);
	} else if (!strcmp(line, "lock-address")) {
		return say((long)&handed_over);
	} else if (!strcmp(line, "serve-no-backlog-ipv6")) {
		struct sockaddr_in6 address = { .sin6_family = AF_INET6,
						.sin6_addr = IN6ADDR_LOOPBACK_INIT };
		socklen_t len = sizeof(address);
		int listener = socket(AF_INET6, SOCK_STREAM, 0);

		bind(listener, (void *)&address, len);
		start_server(listener, 0);
		getsockname(listener, (void *)&address, &len);
		return say(ntohs(address.sin6_port));
	} else if (!strcmp(line, "serve") || !strcmp(line, "serve-no-backlog")) {
		struct sockaddr_in address = { .sin_family = AF_INET,
					       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t len = sizeof(address);
		int listener = socket(AF_INET, SOCK_STREAM, 0);

		bind(listener, (void *)&address, len);
		start_server(listener, strcmp(line, "serve") ? 0 : 16);
		getsockname(listener, (void *)&address, &len);
		return say(ntohs(address.sin_port));
	} else if (!strncmp(line, "serve-unix ", 11)) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };
		int listener = socket(AF_UNIX, SOCK_STREAM, 0);

		strncpy(address.sun_path, line + 11, sizeof(address.sun_path) - 1);
		bind(listener, (void *)&address, sizeof(address));
		start_server(listener, 16);
		return say(0);
	}
	fprintf(stderr, "workload: what is \"%s\"?\n", line);
	exit(2);
}

int main(void)
{
	struct flock whole = { .l_type = F_WRLCK };
	char line[256];
	int fd;

	signal(SIGPIPE, SIG_IGN);
	/* Nothing outlives the test. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fd = memfd_create("locked", 0);
	snprintf(lock_file, sizeof(lock_file), "/proc/self/fd/%d", fd);
	flock(fd, LOCK_EX);
	fcntl(fd, F_OFD_SETLK, &whole);
	pthread_mutex_lock(&held);
	say(getpid());
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		command(line);
	}
	return 0;
}
