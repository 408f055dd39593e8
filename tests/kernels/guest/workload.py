"""What is watched: threads that wait in known ways, and write down when. One JSON object a line.

It begins when a line arrives on standard input, and ends after all cases.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time

SPIN = ["python3", "-I", "-S", "-c", "while True: pass"]
OUT = threading.Lock()


def tell(case, start, end, **more):
    row = {"case": case, "tid": threading.get_native_id(), "start": start, "end": end, **more}
    with OUT:
        os.write(1, json.dumps(row).encode() + b"\n")


def timed(case, action, **more):
    start = time.time_ns()
    action()
    tell(case, start, time.time_ns(), **more)


def in_thread(name, action, *args):
    thread = threading.Thread(target=action, args=args, name=name)
    thread.start()
    return thread


def sleeps():
    timed("sleep", lambda: time.sleep(0.2))


def polls():
    poll = select.poll()
    reader, _writer = os.pipe()
    poll.register(reader, select.POLLIN)
    timed("poll", lambda: poll.poll(200))


def locks():
    lock, held = threading.Lock(), threading.Event()

    def hold():
        with lock:
            held.set()
            time.sleep(0.2)

    holder = in_thread("holder", hold)
    held.wait()
    timed("lock", lock.acquire, waker=holder.native_id)
    holder.join()


def pipes():
    reader, writer = os.pipe()

    def write():
        time.sleep(0.2)
        os.write(writer, b"x")

    thread = in_thread("writer", write)
    timed("pipe", lambda: os.read(reader, 1), waker=thread.native_id)
    thread.join()


def peers():
    """A peer that is slow to answer, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def answer():
            connection, _ = server.accept()
            with connection:
                time.sleep(0.2)
                connection.send(b"x")

        thread = in_thread("peer", answer)
        with socket.create_connection(address) as client:
            timed("peer", lambda: client.recv(1), peer=f"{address[0]}:{address[1]}")
        thread.join()


def children():
    child = os.posix_spawn(sys.executable, ["python3", "-I", "-S", "-c", ""], os.environ)
    timed("child", lambda: os.waitpid(child, 0))


def busy():
    """Short sleeps while both CPUs compute: the timer always interrupts somebody. Half of them are
    none: the other CPU's turn comes after the timer is set, and lasts until it fires."""
    spinners = [os.posix_spawn(sys.executable, SPIN, os.environ) for _ in range(2)]
    time.sleep(0.3)
    start = time.time_ns()
    for _ in range(60):
        time.sleep(0.003)
    tell("busy", start, time.time_ns())
    for spinner in spinners:
        os.kill(spinner, signal.SIGKILL)
        os.waitpid(spinner, 0)


def quota():
    """Needs the whole CPU, may have a fifth of it."""
    group = "/sys/fs/cgroup/quota"
    os.mkdir(group)
    with open(f"{group}/cpu.max", "w") as file:
        file.write("20000 100000")
    start = time.time_ns()
    child = os.fork()
    if child == 0:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        while time.time_ns() - start < 600_000_000:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    with open(f"{group}/cpu.stat") as file:
        stat = dict(line.split() for line in file)
    throttled, periods = int(stat["throttled_usec"]) * 1000, int(stat["nr_throttled"])
    tell("quota", start, time.time_ns(), child=child, throttled=throttled, periods=periods)


def gil():
    """A sibling computes in one long C call that keeps the GIL."""
    numbers = list(range(1_000_000))
    sibling = {}

    def compute():
        sibling["tid"] = threading.get_native_id()
        sum(numbers)

    begin = time.time_ns()
    in_thread("computes", compute).join()
    tell("gil", begin, time.time_ns(), holder=sibling["tid"])


def collects():
    ballast = [[] for _ in range(300_000)]
    timed("gc", gc.collect)
    del ballast


HEAD, BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok"


def answer(connection, write):
    fd = connection.fileno()
    if write == "sendfile":  # as servers do it for a download
        connection.send(HEAD)
        with open("/tmp/body", "wb") as file:
            file.write(BODY)
        with open("/tmp/body", "rb") as file:
            os.sendfile(fd, file.fileno(), 0, len(BODY))
        return
    {
        "send": lambda: connection.send(HEAD + BODY),
        "write": lambda: os.write(fd, HEAD + BODY),
        "sendmsg": lambda: connection.sendmsg([HEAD, BODY]),
        "writev": lambda: os.writev(fd, [HEAD, BODY]),
    }[write]()


def serve(connection, read, write, path, timing):
    """Reads a request, works for 100 ms and answers it."""
    fd = connection.fileno()
    timing["read_from"] = time.time_ns()
    {
        "recv": lambda: connection.recv(4096),
        "read": lambda: os.read(fd, 4096),
        "recvmsg": lambda: connection.recvmsg(4096),
        "readv": lambda: os.readv(fd, [bytearray(4096)]),
    }[read]()
    timing["read_to"] = time.time_ns()
    time.sleep(0.1)
    timing["sent_from"] = time.time_ns()
    answer(connection, write)
    timing["sent_to"] = time.time_ns()
    tell("request", 0, 0, path=path, **timing)


def ask(client, path, timing):
    timing["ask_from"] = time.time_ns()
    client.send(f"GET {path}?q=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    timing["ask_to"] = time.time_ns()


def requests():
    """One connection after another, each read and answered through other system calls."""
    families = [
        ("inet", socket.AF_INET, ("127.0.0.1", 0)),
        ("inet6", socket.AF_INET6, ("::1", 0)),
        ("unix", socket.AF_UNIX, "/tmp/socket"),
    ]
    calls = [
        ("recv", "send"),
        ("read", "write"),
        ("recvmsg", "sendmsg"),
        ("readv", "writev"),
        ("recv", "sendfile"),
    ]
    for family, number, address in families:
        with socket.create_server(address, family=number) as server:
            for read, write in calls:
                with socket.socket(number) as client:
                    connection(server, client, f"/{family}/{read}/{write}", read, write)


def connection(server, client, path, read, write):
    """The first request waits 30 ms to be accepted and 20 ms for a thread. The second, on the same
    connection, comes 30 ms after the first answer."""
    timing = {}
    client.connect(server.getsockname())
    ask(client, path, timing)
    time.sleep(0.03)
    timing["accept_from"] = time.time_ns()
    accepted, _ = server.accept()
    timing["accept_to"] = time.time_ns()
    again = {}

    def both():
        with accepted:
            serve(accepted, read, write, path, timing)
            serve(accepted, read, write, f"{path}/again", again)

    time.sleep(0.02)
    thread = in_thread("serves", both)
    wait_for_answer(client)
    time.sleep(0.03)
    ask(client, f"{path}/again", again)
    wait_for_answer(client)
    thread.join()


def wait_for_answer(client):
    got = b""
    while not got.endswith(BODY):
        got += client.recv(4096)


CASES = (
    sleeps,
    polls,
    locks,
    pipes,
    peers,
    children,
    busy,
    gil,
    collects,
    requests,
    quota,
)


def main():
    os.read(0, 16)
    for case in CASES:
        in_thread(case.__name__, case).join()
    tell("end", 0, 0)
    os.read(0, 16)


if __name__ == "__main__":
    main()
