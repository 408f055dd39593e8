"""Pipes, children and events: who waits, for how long, and who ends the wait."""

import os
import select
import signal
import socket
import time

from clock import Child, Phase, Thread, run

LATE_S = 0.35  # long enough for the writer to be known by name


def writes_late(write):
    def work():
        time.sleep(LATE_S)
        os.write(write, b"x")

    return Thread("writer", work)


def pipe():
    read, write = os.pipe()
    writer = writes_late(write)

    def wait():
        with Phase("reads an empty pipe") as phase:
            os.read(read, 1)
        phase.wait("pipe_ipc", at_least_ms=150, waker_tid=writer.native_id, waker_thread="writer")
        phase.cell("pipe_ipc", at_least_ms=150)

    run(Thread("waiter", wait), writer)


def full_pipe():
    read, write = os.pipe()

    def drain():
        time.sleep(LATE_S)
        while os.read(read, 1 << 16):
            pass

    def fill():
        with Phase("writes to a full pipe") as phase:
            os.write(write, b"x" * (1 << 18))
        os.close(write)
        phase.cell("pipe_ipc", at_least_ms=150)

    run(Thread("waiter", fill), Thread("reader", drain))


def child():
    process = Child(time.sleep, LATE_S)

    def wait():
        with Phase("waits for a child") as phase:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        phase.wait("child_wait", at_least_ms=100, waker_tid=process.pid)
        phase.cell("child_wait", at_least_ms=100)

    run(Thread("waiter", wait))
    process.result()


def event(label, ask):
    """`ask(fd)` returns a function that waits until the file is readable."""
    read, write = os.pipe()
    other, _ = socket.socketpair()
    writer = writes_late(write)
    wait_for = ask(read, other.fileno())

    def wait():
        with Phase(label) as phase:
            wait_for()
        phase.wait("poll_wait", at_least_ms=150, waker_tid=writer.native_id, waker_thread="writer")
        phase.cell("poll_wait", at_least_ms=150)

    run(Thread("waiter", wait), writer)


def with_epoll(*fds):
    epoll = select.epoll()
    for fd in fds:
        epoll.register(fd, select.EPOLLIN)
    return epoll.poll


def with_poll(*fds):
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll.poll


def with_select(*fds):
    return lambda: select.select(fds, [], [])


def epoll_timeout():
    epoll = select.epoll()

    def wait():
        with Phase("epoll until its timeout") as phase:
            epoll.poll(LATE_S)
        phase.wait("poll_wait", at_least_ms=200)
        phase.cell("poll_wait", at_least_ms=200)

    run(Thread("waiter", wait))


def accept():
    listener = socket.create_server(("127.0.0.1", 0))

    def connect():
        time.sleep(LATE_S)
        socket.create_connection(listener.getsockname()).close()

    def wait():
        with Phase("waits in accept") as phase:
            listener.accept()
        phase.wait("poll_wait", at_least_ms=150)
        phase.cell("poll_wait", at_least_ms=150)

    run(Thread("waiter", wait), Thread("client", connect))


def waits_for_a_signal():
    """Server masters do. It must not be `other`, says the claim about the thread's life."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    def wait():
        signal.sigtimedwait([signal.SIGUSR1], LATE_S)

    run(Thread("signalled", wait))


pipe()
full_pipe()
child()
event("epoll", with_epoll)
event("poll of two files", with_poll)
event("select of two files", with_select)
epoll_timeout()
accept()
waits_for_a_signal()
