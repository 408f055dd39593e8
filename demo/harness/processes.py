"""Starts processes, and sees to it that none is left when the demo ends."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Every process of a run inherits this variable, so that a stray one can be recognised.
MARK = "UNDERSPAN_DEMO"


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


class Process:
    """One program that runs until it is stopped. Its output goes to a log file."""

    def __init__(self, name: str, popen: subprocess.Popen, log: Path, stop_signal: signal.Signals) -> None:
        self.name = name
        self.log = log
        self._popen = popen
        self._stop_signal = stop_signal

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready` until it holds. Fails when the time is up or the process has ended."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self._popen.poll() is not None:
                raise DemoError(f"{self.name} ended with status {self._popen.returncode}; {self._log_excerpt()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{self.name} was not ready after {seconds:.0f} s; {self._log_excerpt()}")
            time.sleep(0.05)

    def stop(self, grace: float = 30) -> None:
        """End it and what it started: first by asking, then by force."""
        if self._popen.poll() is None:
            self._popen.send_signal(self._stop_signal)
            try:
                self._popen.wait(grace)
            except subprocess.TimeoutExpired:
                print(f"  {self.name} did not end within {grace:.0f} s: killed")
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the whole group is gone, as it should be
        self._popen.wait()

    def _log_excerpt(self) -> str:
        return f"the end of {self.log}:\n{self.tail()}"


class Processes:
    """All processes of one run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._mark = str(logs)
        self._running: list[Process] = []

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> Process:
        """Start a program in a session of its own, so that Ctrl-C reaches the demo alone."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [str(word) for word in argv],
                env=self.environment(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **_as_user(user),
            )
        process = Process(name, popen, log, stop_signal)
        self._running.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        timeout: float = 60,
    ) -> str:
        """Run a program to its end and return what it printed. Fails if it fails."""
        words = [str(word) for word in argv]
        try:
            done = subprocess.run(
                words,
                env=self.environment(env),
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=timeout,
                **_as_user(user),
            )
        except subprocess.TimeoutExpired:
            raise DemoError(f"`{' '.join(words)}` did not end within {timeout:.0f} s") from None
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip()
            raise DemoError(f"`{' '.join(words)}` failed with status {done.returncode}:\n{output}")
        return done.stdout

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of every process of this run."""
        return {**os.environ, MARK: self._mark, **(extra or {})}

    def stop(self, process: Process) -> None:
        """Stop one process now rather than at the end."""
        process.stop()
        self._running.remove(process)

    def stop_all(self) -> None:
        """Stop what still runs, the latest first."""
        while self._running:
            self._running.pop().stop()

    def leftovers(self) -> list[str]:
        """Processes of this run that are still alive: none, if all went well."""
        found = []
        mark = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"{folder.name} {command.strip()}")
            except OSError:
                continue  # ended meanwhile, or somebody else's
        return found


def _as_user(user: str | None) -> dict:
    """What Popen needs to become that user, with the user's own group and no other."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
