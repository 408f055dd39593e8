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

/* Laid out as CPython's GIL and a thread state, so that waits can be played exactly. */
struct {
	long interval;
	void *last_holder;
	char rest[208 - 16];
} gil;
struct {
	unsigned long thread_id;
} tstate;
volatile int collecting;
struct {
	long collections, collected, uncollectable;
} generation_stats[3];

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t contended = PTHREAD_MUTEX_INITIALIZER;
static char lock_file[64]; /* another open file of the one that main() has locked */
static pid_t child;

static void say(long number)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	printf("%ld\n", number);
	fflush(stdout);
	pthread_mutex_unlock(&lock);
}

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void spin(long us)
{
	for (long until = now_us() + us; now_us() < until;)
		;
}

static void futex_wait(int at, long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	syscall(SYS_futex, (char *)&gil + at, FUTEX_WAIT_PRIVATE, 0, ms ? &t : NULL, NULL, 0);
}

/* Two ends of a TCP connection over loopback, with full buffers if asked. */
static void tcp_pair(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	bind(listener, (void *)&address, len);
	listen(listener, 1);
	getsockname(listener, (void *)&address, &len);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	connect(ends[0], (void *)&address, len);
	ends[1] = accept(listener, NULL, NULL);
	close(listener);
}

/* ---- roles ---- */

static void do_spin(void) { for (;;) spin(1000000); }
static void do_sleep(void) { for (;;) sleep(1000); }
static void do_pause(void) { for (;;) pause(); }
static void do_lock(void) { pthread_mutex_lock(&held); }
static void do_select_sleep(void) { struct timeval t = { .tv_sec = 1000 }; select(0, NULL, NULL, NULL, &t); }
static void do_poll_sleep(void) { poll(NULL, 0, 1000000); }
static void do_gil_wait(void) { futex_wait(32 + 40, 0); }
static void do_gil_mutex(void) { futex_wait(80, 0); }
static void do_before_gil(void) { futex_wait(28, 0); }
static void do_after_gil(void) { futex_wait(208, 0); }

static void do_flock(void)
{
	flock(open(lock_file, O_RDWR), LOCK_EX);
}

static void do_file_lock(void)
{
	struct flock whole = { .l_type = F_WRLCK };

	fcntl(open(lock_file, O_RDWR), F_OFD_SETLKW, &whole);
}

static void do_net_read(void)
{
	int ends[2];
	char byte;

	tcp_pair(ends);
	recv(ends[0], &byte, 1, 0);
}

static void do_net_write(void)
{
	static char zeros[1 << 20];
	int ends[2];

	tcp_pair(ends);
	for (;;)
		send(ends[0], zeros, sizeof(zeros), 0);
}

static void do_unix_read(void)
{
	int ends[2];
	char byte;

	socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
	read(ends[0], &byte, 1);
}

static void do_poll_one(void)
{
	int ends[2];

	tcp_pair(ends);
	poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, -1);
}

static void do_poll_two(void)
{
	struct pollfd fds[2] = { { .events = POLLIN }, { .events = POLLIN } };
	int ends[2];

	tcp_pair(ends);
	fds[0].fd = ends[0];
	fds[1].fd = ends[1];
	poll(fds, 2, -1);
}

static void do_epoll(void)
{
	struct epoll_event event;

	epoll_wait(epoll_create1(0), &event, 1, -1);
}

static void do_accept(void)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	listen(listener, 1);
	accept(listener, NULL, NULL);
}

static void do_pipe(void)
{
	int ends[2];
	char byte;

	pipe(ends);
	read(ends[0], &byte, 1);
}

static void do_eventfd(void)
{
	uint64_t count;

	read(eventfd(0, 0), &count, sizeof(count));
}

static void do_child(void)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	waitpid(pid, NULL, 0);
}

/* A little of everything, thousands of times a second. */
static void do_mix(void)
{
	int ends[2];
	char byte = 0;

	pipe(ends);
	for (;;) {
		spin(60);
		pthread_mutex_lock(&contended);
		spin(30);
		pthread_mutex_unlock(&contended);
		usleep(50);
		write(ends[1], &byte, 1);
		read(ends[0], &byte, 1);
		sched_yield();
	}
}

static void do_brief(void)
{
	usleep(20000);
	spin(5000);
}

/* Names itself as the GIL's holder, and computes. */
static void do_hold(void)
{
	tstate.thread_id = pthread_self();
	gil.last_holder = &tstate;
	do_sleep();
}

/* One wait for the GIL, as take_gil() does it: ten slices, then work. */
static void do_gil_slices(void)
{
	usleep(50000);
	for (int i = 0; i < 10; i++)
		futex_wait(32 + 40, 5);
	spin(2000);
	sleep(1000);
}

__attribute__((noinline)) void collect(void)
{
	collecting = 1;
	spin(30000);
	generation_stats[2].collections++;
	generation_stats[2].collected += 17;
	collecting = 0;
}

/* Two collections, the second while a sibling waits for the GIL. */
static void do_collect(void)
{
	collect();
	usleep(100000);
	collect();
	sleep(1000);
}

static void do_wait_for_collector(void)
{
	for (;;)
		futex_wait(32 + 40, 5);
}

/* Seven tenths of its time in one function and three in another: both do the same, so many times. */
#define STEPS 10000

#define TURN(steps, x) \
	for (long i = 0; i < (steps); i++) { \
		(x) = (x) * 6364136223846793005ul + 1442695040888963407ul; \
		__asm__ volatile("" : "+r"(x)); \
	}

__attribute__((noinline)) unsigned long burn_long(unsigned long x, long times)
{
	TURN(7 * times * STEPS, x);
	return x;
}

__attribute__((noinline)) unsigned long burn_short(unsigned long x, long times)
{
	TURN(3 * times * STEPS, x);
	return x;
}

static void do_burn(void)
{
	/* Never in step with a clock. */
	for (unsigned long x = gettid();;) {
		long times = 1 + (x >> 60);

		x = burn_short(burn_long(x, times), times);
	}
}

static void do_many_short(void)
{
	for (int i = 0; i < 400; i++) {
		usleep(3000);
		poll(&(struct pollfd){ .fd = -1 }, 1, 2);
	}
}

static void do_some_long(void)
{
	for (int i = 0; i < 20; i++)
		usleep(25000);
}

/* A call tree that is known: dig() calls itself until it is so deep. */
__attribute__((noinline)) void dig(int depth)
{
	if (depth > 1)
		dig(depth - 1);
	else
		usleep(12000);
	__asm__ volatile(""); /* no tail call */
}

static void dig_for_long(int depth)
{
	for (;;)
		dig(depth);
}

static void do_dig_5(void) { dig_for_long(5); }
static void do_dig_40(void) { dig_for_long(40); }
static void do_dig_120(void) { dig_for_long(120); }

static pthread_mutex_t handed_over = PTHREAD_MUTEX_INITIALIZER;

static void do_wait_for_lock(void)
{
	usleep(10000);
	pthread_mutex_lock(&handed_over);
	pthread_mutex_unlock(&handed_over);
}

static void do_release_lock(void)
{
	pthread_mutex_lock(&handed_over);
	usleep(60000);
	pthread_mutex_unlock(&handed_over);
	sleep(1000);
}

/* Two functions that differ by one number: the same instruction sleeps at the same stack pointer, called by
 * the one or the other. */
__attribute__((noinline)) static void nap(void)
{
	usleep(12000);
	__asm__ volatile("");
}

__attribute__((noinline)) void left(void)
{
	nap();
	__asm__ volatile("" : : "r"(1));
}

__attribute__((noinline)) void right(void)
{
	nap();
	__asm__ volatile("" : : "r"(2));
}

static void do_twins(void)
{
	for (int i = 0;; i++)
		(i / 3 % 2 ? right : left)();
}

static const struct role {
	const char *name;
	void (*play)(void);
} roles[] = {
	{ "spin", do_spin }, { "sleep", do_sleep }, { "pause", do_pause }, { "lock", do_lock },
	{ "select-sleep", do_select_sleep }, { "poll-sleep", do_poll_sleep },
	{ "gil-wait", do_gil_wait }, { "gil-mutex", do_gil_mutex }, { "before-gil", do_before_gil },
	{ "after-gil", do_after_gil }, { "flock", do_flock }, { "file-lock", do_file_lock },
	{ "net-read", do_net_read }, { "net-write", do_net_write }, { "unix-read", do_unix_read },
	{ "poll-one", do_poll_one }, { "poll-two", do_poll_two }, { "epoll", do_epoll },
	{ "accept", do_accept }, { "pipe", do_pipe }, { "eventfd", do_eventfd },
	{ "child", do_child }, { "mix", do_mix }, { "brief", do_brief }, { "hold", do_hold },
	{ "gil-slices", do_gil_slices }, { "collect", do_collect },
	{ "wait-for-collector", do_wait_for_collector }, { "many-short", do_many_short },
	{ "some-long", do_some_long }, { "wait-for-lock", do_wait_for_lock },
	{ "release-lock", do_release_lock }, { "dig-5", do_dig_5 }, { "dig-40", do_dig_40 },
	{ "dig-120", do_dig_120 }, { "burn", do_burn }, { "twins", do_twins },
};

static void *play(void *role)
{
	say(gettid());
	((const struct role *)role)->play();
	return NULL;
}

static void *exec_again(void *unused)
{
	if (unused)
		say(gettid());
	execl("/proc/self/exe", "workload", NULL);
	return NULL;
}

/* ---- a server ---- */

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/* In one buffer from TCP, in three from a Unix socket, until there is an empty line. */
static int read_request(int connection)
{
	char request[8192 + 1] = "";
	socklen_t len = sizeof(int);
	size_t has = 0;
	int family;

	getsockopt(connection, SOL_SOCKET, SO_DOMAIN, &family, &len);
	while (has + 16 < sizeof(request)) {
		char *to = request + has;
		size_t room = sizeof(request) - 1 - has;
		struct iovec parts[] = { { to, 7 }, { to + 7, 1 }, { to + 8, room - 8 } };
		long n = family == AF_UNIX ? readv(connection, parts, 3) :
					     read(connection, to, room);

		if (n <= 0)
			return 0;
		has += n;
		if (strstr(request, "\r\n\r\n"))
			return 1;
	}
	return 0;
}

/* Leaves connections in the queue for 40 ms, lets each request wait 20 ms for a thread, and takes
 * 30 ms to answer. */
static void *serve(void *arg)
{
	int listener = (long)arg;

	for (;;) {
		poll(&(struct pollfd){ .fd = listener, .events = POLLIN }, 1, -1);
		usleep(40000);
		int connection = accept(listener, NULL, NULL);

		usleep(20000);
		while (read_request(connection)) {
			usleep(30000);
			write(connection, answer, sizeof(answer) - 1);
		}
		close(connection);
	}
	return NULL;
}

static void start(void *(*body)(void *), void *arg)
{
	pthread_t thread;

	pthread_create(&thread, NULL, body, arg);
	pthread_detach(thread);
}

static void start_server(int listener, int backlog)
{
	listen(listener, backlog);
	start(serve, (void *)(long)listener);
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
