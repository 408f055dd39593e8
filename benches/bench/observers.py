"""Who watches: nobody, Underspan, or bpftrace with the published probes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import machine

WORKLOADS = machine.ROOT / "benches" / "workloads"
START_LIMIT_S = 60
STOP_LIMIT_S = 60
SETTLE_LIMIT_S = 20
# CPU seconds in a second.
SETTLED = 0.1


class BenchError(Exception):
    """A measurement cannot be made; the message says why."""


class Observer:
    """A program that watches from `with` until the block's end. Its output goes to a log file."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._argv = argv
        self._log = log
        self.pid = 0

    def __enter__(self):
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + START_LIMIT_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise BenchError(f"`{' '.join(self._argv[:2])} …` does not watch: {self.said()[-800:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_exception) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def is_ready(self) -> bool:
        raise NotImplementedError


class Nobody:
    """Nothing watches."""

    def __enter__(self):
        return self

    def __exit__(self, *_exception) -> None:
        pass


class Store(Observer):
    """The embedded store on a data folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._data = folder / "underspan"
        argv = [sys.executable, "-m", "underspan.store", "--data", str(self._data), "--port", "0"]
        super().__init__(argv, folder / "store.log")

    def is_ready(self) -> bool:
        return bool(self.said().strip())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Meanwhile it uses no CPU, and takes no rows."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def command(self, subcommand: str, *words: str) -> list[str]:
        """What to type to ask it."""
        program = os.environ.get("UNDERSPAN", str(machine.ROOT / ".cache/venv/bin/underspan"))
        return [program, subcommand, "--data", str(self._data), *words]

    def rows(self, query: str) -> list[dict]:
        """The rows of a query."""
        answer = subprocess.run(self.command("sql", "--json", query), capture_output=True, text=True, timeout=600)
        if answer.returncode:
            raise BenchError(f"`underspan sql` failed: {answer.stderr.strip()}")
        return [json.loads(line) for line in answer.stdout.splitlines()]


class Agent(Observer):
    """`underspan agent`, writing to a store that is up."""

    def __init__(self, store: Store, *options: str) -> None:
        self.store = store
        super().__init__(store.command("agent", *options), store.folder / "agent.log")

    def is_ready(self) -> bool:
        return "watching" in self.said()


class Underspan:
    """All of it on this machine: the embedded store, and the agent."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.store = Store(folder)
        self.agent = Agent(self.store, *options)

    def __enter__(self) -> Underspan:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.store)
            stack.enter_context(self.agent)
            self._end = stack.pop_all().close
        return self

    def __exit__(self, *_exception) -> None:
        self._end()

    def settle(self) -> None:
        """Wait until it has looked around: at every process, at their binaries' unwind tables."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        used = SETTLED
        while used >= SETTLED and time.monotonic() < deadline:
            before = [machine.process_cpu_s(pid) for pid in (self.agent.pid, self.store.pid)]
            time.sleep(1)
            used = sum(machine.process_cpu_s(pid) for pid in (self.agent.pid, self.store.pid)) - sum(before)


class Bpftrace(Observer):
    """bpftrace with a script."""

    def __init__(self, folder: Path, script: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "script.bt"
        path.write_text(script)
        super().__init__(["bpftrace", str(path)], folder / "bpftrace.log")

    def __enter__(self):
        super().__enter__()
        time.sleep(2)  # it says "Attaching" before it does; ten probes take less than one second
        return self

    def is_ready(self) -> bool:
        return "Attaching" in self.said()


class Published(Bpftrace):
    """The probes that articles and tools publish, on one process."""

    def __init__(self, folder: Path, pid: int) -> None:
        text = (WORKLOADS / "published.bt").read_text()
        super().__init__(folder, text.replace("@lib@", str(machine.python_library())).replace("@pid@", str(pid)))


class Offcputime(Observer):
    """bcc's offcputime, the build of it that needs neither kernel headers nor kprobes (package libbpf-tools)."""

    def __init__(self, folder: Path, pid: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(["offcputime", "-p", str(pid)], folder / "offcputime.log")

    def is_ready(self) -> bool:
        """It says nothing until it ends, but its program is attached through a link."""
        return any("link_type" in text_of(file) for file in Path(f"/proc/{self.pid}/fdinfo").glob("*"))


def text_of(descriptor: Path) -> str:
    """What the kernel says of a descriptor: nothing, if it was closed meanwhile."""
    try:
        return descriptor.read_text()
    except OSError:
        return ""


class PySpy(Observer):
    """py-spy, a hundred stacks a second of every thread, waiting ones included."""

    def __init__(self, folder: Path, pid: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        program = Path(sys.executable).parent / "py-spy"
        if not program.exists():
            raise BenchError("py-spy is missing: run `pip install -r benches/requirements.txt`")
        argv = [str(program), "record", "--pid", str(pid), "--rate", "100", "--idle", "--duration", "3600"]
        super().__init__([*argv, "--format", "raw", "--output", str(folder / "py-spy.raw")], folder / "py-spy.log")

    def is_ready(self) -> bool:
        return "Sampling process" in self.said()


@contextlib.contextmanager
def bystander() -> Iterator[str]:
    """A process to watch that does nothing. Yields its pid."""
    somebody = subprocess.Popen(["sleep", "600"])
    try:
        yield str(somebody.pid)
    finally:
        somebody.kill()
        somebody.wait()
