// Packets over veth: packets flood|stream|udp|tcp RECEIVER_NETNS SENDER_NETNS ADDRESS SECONDS
//
// flood: as many datagrams as one thread can send, and one that reads them. stream: the same of messages over
// TCP, each in a segment of its own. udp, tcp: one message to and fro as often as it goes. Prints one JSON
// object.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 32
#define BYTES 32
#define MOST 8000000

static atomic_bool stop;
static int receiver, sender;
static unsigned long sent, received, received_bytes;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static unsigned long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000UL + t.tv_nsec;
}

static int socket_in(const char *netns, int type)
{
	int file = open(netns, O_RDONLY | O_CLOEXEC), fd;

	if (file < 0 || setns(file, CLONE_NEWNET))
		die(netns);
	close(file);
	fd = socket(AF_INET, type, 0);
	if (fd < 0)
		die("socket");
	return fd;
}

static void connect_both(const char *const *argv, int type)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int one = 1;

	inet_pton(AF_INET, argv[4], &address.sin_addr);
	receiver = socket_in(argv[2], type);
	if (bind(receiver, (void *)&address, sizeof(address)) || getsockname(receiver, (void *)&address, &length))
		die("bind");
	if (type == SOCK_STREAM && listen(receiver, 1))
		die("listen");
	sender = socket_in(argv[3], type);
	if (connect(sender, (void *)&address, length))
		die("connect");
	if (type == SOCK_STREAM) {
		receiver = accept(receiver, NULL, NULL);
		setsockopt(receiver, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(sender, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	} else {
		length = sizeof(address);
		getsockname(sender, (void *)&address, &length);
		if (connect(receiver, (void *)&address, length))
			die("connect");
	}
}

static void messages(struct mmsghdr *all, struct iovec *parts, char *bytes)
{
	memset(all, 0, sizeof(*all) * BATCH);
	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){ bytes + i * BYTES, BYTES };
		all[i].msg_hdr.msg_iov = &parts[i];
		all[i].msg_hdr.msg_iovlen = 1;
	}
}

static void *flood(void *unused)
{
	struct mmsghdr all[BATCH];
	struct iovec parts[BATCH];
	char bytes[BATCH * BYTES] = {};

	messages(all, parts, bytes);
	while (!stop) {
		int count = sendmmsg(sender, all, BATCH, 0);

		if (count > 0)
			sent += count;
	}
	return unused;
}

static void *drain(void *unused)
{
	struct mmsghdr all[BATCH];
	struct iovec parts[BATCH];
	char bytes[BATCH * BYTES];

	messages(all, parts, bytes);
	while (!stop) {
		int count = recvmmsg(receiver, all, BATCH, MSG_WAITFORONE, NULL);

		if (count > 0)
			received += count;
	}
	return unused;
}

static void *stream(void *unused)
{
	char bytes[BYTES] = {};

	while (!stop)
		if (send(sender, bytes, sizeof(bytes), 0) == sizeof(bytes))
			sent++;
	return unused;
}

static void *drain_stream(void *unused)
{
	char bytes[BATCH * BYTES];

	while (!stop) {
		ssize_t length = recv(receiver, bytes, sizeof(bytes), 0);

		if (length > 0)
			received_bytes += length;
	}
	received = received_bytes / BYTES;
	return unused;
}

static void *echo(void *unused)
{
	char bytes[BYTES];
	ssize_t length;

	while ((length = recv(receiver, bytes, sizeof(bytes), 0)) > 0)
		if (send(receiver, bytes, length, 0) < 0)
			break;
	return unused;
}

static void one_way(double seconds, void *(*take)(void *), void *(*give)(void *))
{
	struct timeval limit = { .tv_usec = 100000 }; /* whoever waits for the other sees that it is over */
	unsigned long start = now();
	pthread_t threads[2];

	setsockopt(receiver, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(sender, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	pthread_create(&threads[0], NULL, take, NULL);
	pthread_create(&threads[1], NULL, give, NULL);
	usleep(seconds * 1e6);
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	seconds = (now() - start) / 1e9;
	printf("{\"sent\": %.0f, \"received\": %.0f}\n", sent / seconds, received / seconds);
}

static int by_size(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

	return (x > y) - (x < y);
}

static void ping(double seconds)
{
	unsigned *times = malloc(sizeof(*times) * MOST);
	unsigned long count = 0, start = now(), begin = start;
	char bytes[BYTES] = {};

	while (count < MOST && begin - start < seconds * 1e9) {
		unsigned long end;

		if (send(sender, bytes, sizeof(bytes), 0) < 0 || recv(sender, bytes, sizeof(bytes), 0) <= 0)
			die("ping");
		end = now();
		times[count++] = end - begin;
		begin = end;
	}
	qsort(times, count, sizeof(*times), by_size);
	printf("{\"rate\": %.0f, \"p50_ns\": %u, \"p99_ns\": %u}\n", count / ((begin - start) / 1e9),
	       times[count / 2], times[count * 99 / 100]);
}

int main(int argc, const char *const *argv)
{
	pthread_t thread;
	const char *way;
	double seconds;

	if (argc != 6)
		return 2;
	way = argv[1];
	seconds = atof(argv[5]);
	connect_both(argv, strcmp(way, "tcp") && strcmp(way, "stream") ? SOCK_DGRAM : SOCK_STREAM);
	if (getchar() == EOF)
		return 2;
	if (!strcmp(way, "flood")) {
		one_way(seconds, drain, flood);
	} else if (!strcmp(way, "stream")) {
		one_way(seconds, drain_stream, stream);
	} else {
		pthread_create(&thread, NULL, echo, NULL);
		ping(seconds);
	}
	return 0;
}
