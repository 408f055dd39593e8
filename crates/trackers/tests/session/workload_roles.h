/*
 * What a thread of the workload can do: each role is one way to spend time, and nothing else. Included once.
 */
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

/* The same, and goes on living until it is let go. */
static void do_brief_lock(void)
{
	do_brief();
	do_lock();
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

/* What of its time it was not asleep for, though it may have been in a system call that sleeps. */
static long awake_us(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	unsigned long ran = 0, waited = 0;

	fscanf(file, "%lu %lu", &ran, &waited);
	fclose(file);
	return (ran + waited) / 1000;
}

/* Both say at their end for how long they were in their calls, in microseconds, and for how long awake then. */
static void do_many_short(void)
{
	long awake = awake_us(), slept = 0, polled = 0;

	for (int i = 0; i < 400; i++) {
		long start = now_us(), woke;

		usleep(3000);
		woke = now_us();
		slept += woke - start;
		poll(&(struct pollfd){ .fd = -1 }, 1, 2);
		polled += now_us() - woke;
	}
	say(slept);
	say(polled);
	say(awake_us() - awake);
}

static void do_some_long(void)
{
	long awake = awake_us(), start = now_us();

	for (int i = 0; i < 20; i++)
		usleep(25000);
	say(now_us() - start);
	say(awake_us() - awake);
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

/* Glibc's own word, which says that it is held, and whether somebody waits for it. */
#define HELD(mutex) (*(volatile int *)&(mutex).__data.__lock)
#define WAITED_FOR 2

static void do_wait_for_lock(void)
{
	while (!HELD(handed_over))
		usleep(1000);
	pthread_mutex_lock(&handed_over);
	pthread_mutex_unlock(&handed_over);
}

static void do_release_lock(void)
{
	pthread_mutex_lock(&handed_over);
	while (HELD(handed_over) != WAITED_FOR)
		usleep(1000);
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
	{ "child", do_child }, { "mix", do_mix }, { "brief", do_brief },
	{ "brief-lock", do_brief_lock }, { "hold", do_hold },
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
