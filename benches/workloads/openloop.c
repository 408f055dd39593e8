/*
 * HTTP clients that send at fixed times, whether or not earlier answers have come (an open loop).
 *
 *   openloop PORT PATH RATE SECONDS      {n} in PATH becomes 0, 1, 2 …
 *
 * Each request has a connection of its own, and its latency counts from the moment it was due, so that a slow server
 * cannot hide its queue by slowing its clients. In C, since a client in Python would take as much CPU as the service.
 * Prints one JSON object; latencies are in nanoseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_NS 30000000000LL

struct request {
	long long due, latency; /* latency: -1 failed, 0 not answered yet */
	int fd;
	char head[13]; /* "HTTP/1.1 200" */
	int have;
};

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

/* Connecting to loopback completes or fails at once, and a request fits into an empty socket buffer. */
static int send_request(struct request *r, int port, const char *path, long number)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	const char *mark = strstr(path, "{n}");
	char head[512];
	int length;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (r->fd < 0 || connect(r->fd, (struct sockaddr *)&to, sizeof(to)))
		return -1;
	if (mark)
		length = snprintf(head, sizeof(head), "GET %.*s%ld%s", (int)(mark - path), path, number, mark + 3);
	else
		length = snprintf(head, sizeof(head), "GET %s", path);
	length += snprintf(head + length, sizeof(head) - length,
			   " HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n", port);
	return send(r->fd, head, length, MSG_NOSIGNAL) == length ? 0 : -1;
}

/* Reads what has come. Returns whether the request is over. */
static int read_answer(struct request *r)
{
	char buffer[16384];
	ssize_t got;

	while ((got = recv(r->fd, buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
		int want = (int)sizeof(r->head) - 1 - r->have;

		if (want > got)
			want = (int)got;
		memcpy(r->head + r->have, buffer, want);
		r->have += want;
	}
	if (got < 0 && errno == EAGAIN)
		return 0;
	r->latency = got == 0 && r->have == 12 && r->head[9] == '2' ? now() - r->due : -1;
	close(r->fd);
	return 1;
}

int main(int argc, char **argv)
{
	long count, sent = 0, over = 0, answered = 0;
	long long start, last = 0, *latencies;
	struct epoll_event events[64];
	struct request *all;
	double rate;
	int poll;

	if (argc != 5) {
		fprintf(stderr, "usage: openloop PORT PATH RATE SECONDS\n");
		return 2;
	}
	rate = atof(argv[3]);
	count = (long)(rate * atof(argv[4]));
	all = calloc(count, sizeof(*all));
	latencies = calloc(count, sizeof(*latencies));
	poll = epoll_create1(EPOLL_CLOEXEC);
	if (!all || !latencies || poll < 0 || count < 1) {
		perror("openloop");
		return 1;
	}
	start = now() + 1000000;
	for (long i = 0; i < count; i++)
		all[i].due = start + (long long)(i * 1e9 / rate);

	while (over < count && now() < all[count - 1].due + TIMEOUT_NS) {
		struct timespec wait = { .tv_sec = 1 };
		long long ahead;
		int ready;

		while (sent < count && all[sent].due <= now()) {
			struct request *r = &all[sent];
			struct epoll_event event = { .events = EPOLLIN, .data.ptr = r };

			if (send_request(r, atoi(argv[1]), argv[2], sent) ||
			    epoll_ctl(poll, EPOLL_CTL_ADD, r->fd, &event)) {
				r->latency = -1;
				over++;
				if (r->fd >= 0)
					close(r->fd);
			}
			sent++;
		}
		if (sent < count) {
			ahead = all[sent].due - now();
			wait.tv_sec = 0;
			wait.tv_nsec = ahead > 0 ? (ahead < 999999999 ? ahead : 999999999) : 0;
		}
		ready = epoll_pwait2(poll, events, 64, &wait, NULL);
		for (int i = 0; i < ready; i++)
			over += read_answer(events[i].data.ptr);
	}
	for (long i = 0; i < count; i++) {
		if (all[i].latency <= 0)
			continue;
		latencies[answered++] = all[i].latency;
		if (all[i].due + all[i].latency > last)
			last = all[i].due + all[i].latency;
	}
	qsort(latencies, answered, sizeof(*latencies), compare);
	printf("{\"sent\": %ld, \"answered\": %ld, \"seconds\": %.3f, \"p50\": %lld, \"p99\": %lld, \"max\": %lld}\n", count,
	       answered, (last - start) / 1e9, latencies[answered / 2], latencies[answered * 99 / 100],
	       latencies[answered ? answered - 1 : 0]);
	return 0;
}
