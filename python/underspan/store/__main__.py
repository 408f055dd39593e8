"""``python -m underspan.store``: serves one data folder until told to stop."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path

from .folder import Folder, FolderInUse, ForeignFolder

# Exit statuses the supervisor tells apart.
FAILED, IN_USE, NO_PORT, MISSING = 1, 3, 4, 5
# How long requests in progress may take once the store is told to stop.
DRAIN_SECONDS = 30
# A tenth of a busy CPU: a watched service hardly feels it, and a query still ends in seconds.
NICE = 10
_MIB = 1 << 20


class CannotServe(Exception):
    """Why the store does not start, and the exit status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def main(arguments: list[str] | None = None) -> int:
    """Runs the store and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return serve(options)
    except CannotServe as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.status


def serve(options: argparse.Namespace) -> int:
    """Serves a folder until SIGTERM, SIGINT or, when supervised, the supervisor's end."""
    if options.supervised:
        _end_with_input()
    try:
        # Imported late, so that what is missing can be named.
        from .engine import Engine, EngineMissing
        from .server import StoreServer
    except ImportError as error:
        raise CannotServe(MISSING, f"{error}. Run: pip install 'underspan[store]'") from error
    from .errors import StoreError

    folder = _open(options.data)
    stop = threading.Event()
    try:
        engine = Engine(folder.data, options.memory_limit * _MIB, options.threads)
    except EngineMissing as error:
        raise CannotServe(MISSING, f"{error}. Run: pip install 'underspan[store]'") from error
    except StoreError as error:
        raise CannotServe(FAILED, f"chDB cannot open {folder.data}: {error}") from error
    try:
        server = StoreServer(
            ("127.0.0.1", options.port), engine, folder.token(), options.max_body * _MIB
        )
    except OSError as error:
        engine.close()
        if error.errno == errno.EADDRINUSE:
            text = f"port {options.port} is in use: stop what listens there, or choose another"
            # Who supervises has an option of its own, by another name.
            advice = "" if options.supervised else " (--port 0 takes any free one)"
            raise CannotServe(NO_PORT, text + advice) from error
        raise CannotServe(NO_PORT, f"cannot listen on port {options.port}: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if options.supervised:
        _finish_with_input()
        threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _yield_to_others()  # only now: somebody waits for the start
    url = f"http://127.0.0.1:{server.server_port}"
    folder.advertise(url)
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)
    stop.wait()
    return _finish(server, engine, folder)


def _yield_to_others() -> None:
    """The services that are watched run on the same CPUs, and come first.

    Where the kernel shares CPUs between sessions (`sched_autogroup_enabled`) niceness counts only
    inside one, and the session has its own; it is ours to set if we lead it.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) >= NICE:
        return
    for thread in os.listdir("/proc/self/task"):  # those to come inherit it
        # One may have ended, or a sandbox may forbid it: the store runs all the same.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), NICE)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICE))


def _open(path: Path) -> Folder:
    try:
        return Folder(path)
    except FolderInUse as error:
        raise CannotServe(IN_USE, str(error)) from error
    except ForeignFolder as error:
        raise CannotServe(FAILED, str(error)) from error
    except OSError as error:
        text = f"cannot use data folder {path}: {error.strerror}. Choose one you may write to"
        raise CannotServe(FAILED, text) from error


def _finish(server, engine, folder: Folder) -> int:
    """Answers what was accepted, writes everything out, and leaves."""
    folder.withdraw()
    drained = server.drain(DRAIN_SECONDS)
    server.shutdown()
    server.server_close()
    if not drained:
        text = f"requests still ran after {DRAIN_SECONDS} s and were cut off"
        print(f"error: {text}", file=sys.stderr, flush=True)
        return FAILED
    engine.close()
    return 0


def _end_with_input() -> None:
    """Until it serves, the end of standard input ends the process: there is nothing to finish.

    It is the kernel that does it: a thread would have to wait for the interpreter, which the engine
    holds while it is loaded, for as long as that takes.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    if poll.poll(0):  # it ended before that
        sys.exit(FAILED)


def _finish_with_input() -> None:
    """From now on the end of standard input is a request to stop."""
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) & ~os.O_ASYNC)


def _wait_for_end_of_input(stop: threading.Event) -> None:
    """The supervisor holds the other end of standard input. When it dies, for whatever reason, the
    input ends. (A death signal would come when the *thread* that started this process ends.)"""
    while os.read(0, 4096):
        pass
    stop.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m underspan.store",
        description="The embedded store: chDB behind ClickHouse's HTTP interface, on loopback.",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="data folder")
    parser.add_argument(
        "--port", type=_port, default=7078, help="port on 127.0.0.1; 0 takes any (default: 7078)"
    )
    parser.add_argument(
        "--memory-limit", type=int, default=2048, metavar="MIB", help="for queries (default: 2048)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of one query (default: 2)")
    parser.add_argument(
        "--max-body", type=int, default=256, metavar="MIB", help="of one request (default: 256)"
    )
    parser.add_argument("--supervised", action="store_true", help="stop when standard input ends")
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 65535")
    return port


if __name__ == "__main__":
    # Threads of clients still connected must not hold the exit up.
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
