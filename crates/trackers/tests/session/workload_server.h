/*
 * The workload as a server, whose phases take a known time. Included once.
 */
static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

enum asked { NOTHING, A_PAGE, A_QUICK_ONE };

/* In one buffer from TCP, in three from a Unix socket, until there is an empty line. */
static enum asked read_request(int connection)
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
			return NOTHING;
		has += n;
		if (strstr(request, "\r\n\r\n"))
			return strstr(request, "/quick") ? A_QUICK_ONE : A_PAGE;
	}
	return NOTHING;
}

/* Leaves connections in the queue for 40 ms, lets each request wait 20 ms for a thread, and takes
 * 30 ms to answer, or 2 ms of waiting for something else. */
static void *serve(void *arg)
{
	int listener = (long)arg;
	enum asked asked;

	for (;;) {
		poll(&(struct pollfd){ .fd = listener, .events = POLLIN }, 1, -1);
		usleep(40000);
		int connection = accept(listener, NULL, NULL);

		usleep(20000);
		while ((asked = read_request(connection))) {
			if (asked == A_QUICK_ONE)
				poll(&(struct pollfd){ .fd = -1 }, 1, 2);
			else
				usleep(30000);
			write(connection, answer, sizeof(answer) - 1);
		}
		close(connection);
	}
	return NULL;
}

static void start_server(int listener, int backlog)
{
	listen(listener, backlog);
	start(serve, (void *)(long)listener);
}
