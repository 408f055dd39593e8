"""The consumer: how it is run, what it says of itself, and what Underspan says of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from harness.processes import DemoError, Processes
from harness.profiles import go, seconds_in_profile, shares_in_folded
from harness.progress import step
from harness.stack import DEMO, free_port, start_postgres
from harness.underspan import Underspan

RUN, READ, DECODE = "main.(*consumer).run", "main.clocked.Read", "main.(*consumer).decode"


@dataclass(frozen=True)
class Account:
    """What one side says of a run: shares from 0 to 1."""

    decoding: float  # of the CPU profile
    waiting: float  # of its goroutine's time: in reads of the connection to the broker


@dataclass(frozen=True)
class Scene:
    """One run of the consumer."""

    own: Account
    seen: Account
    profiled: float  # decoding, by Go's own profiler
    records_per_second: float
    since: str
    until: str

    @property
    def span(self) -> str:
        return f"{self.since}..{self.until}"


class Consumption:
    """A broker with a topic, and the consumer that reads it."""

    def __init__(self, folder: Path, processes: Processes, underspan: Underspan) -> None:
        self._folder = folder
        self._processes = processes
        self._underspan = underspan
        self._program = folder / "consumer"
        self._port = free_port()
        self._topic = f"host=127.0.0.1 port={self._port} user=shop dbname=postgres sslmode=disable"

    def prepare(self) -> None:
        """Build the consumer, fill its topic."""
        with step("building the consumer"):
            build = [go(), "build", "-o", self._program, "."]
            self._processes.run(build, cwd=DEMO / "consumer", env={"CGO_ENABLED": "0"}, timeout=300)
        with step("starting PostgreSQL and filling the topic"):
            start_postgres(self._folder, self._processes, self._port)
            self._processes.run([self._program, "fill"], env={"TOPIC": self._topic}, timeout=120)

    def play(self, name: str, batch: int, seconds: float) -> Scene:
        """Run the consumer for a while and ask what was seen of it."""
        profile = self._folder / f"{name}.pb.gz"
        with step(f"{name}: {batch} record{'s' if batch > 1 else ''} a poll"):
            env = {"TOPIC": self._topic, "BATCH": str(batch), "PROFILE": str(profile)}
            consumer = self._processes.start(name, [self._program], env=env)
            time.sleep(2)  # it is found, and warm
            since = now()
            time.sleep(seconds)
            until = now()
            self._processes.stop(consumer)
            self._await_names(consumer.pid)
        try:
            own = json.loads(consumer.tail(1))
        except ValueError:
            raise DemoError(f"{name} said: {consumer.tail()}") from None
        decoding, whole = seconds_in_profile(self._processes, profile, DECODE, "cpu")
        return Scene(
            own=Account(own["decoding"], own["reading"]),
            profiled=decoding / whole if whole else 0.0,
            seen=self._seen(name, since, until),
            records_per_second=own["records_per_second"],
            since=since,
            until=until,
        )

    def _seen(self, name: str, since: str, until: str) -> Account:
        within = ["--process", "consumer", "--since", since, "--until", until]
        profile = self._folder / f"{name}-seen.pb.gz"
        self._underspan.ask("flame", "--kind", "cpu", *within, "-o", str(profile))
        wall = ["--kind", "goroutine", "--thread", RUN, *within, "--format", "folded"]
        part, whole = seconds_in_profile(self._processes, profile, DECODE, "cpu")
        if not whole:
            raise DemoError(f"no CPU time of the consumer was seen; see {self._folder}/logs")
        return Account(part / whole, sum(shares_in_folded(self._underspan.ask("flame", *wall), READ)))

    def difference(self, before: Scene, after: Scene) -> list[float]:
        """The share of the wait on both sides of a difference graph."""
        wanted = ["--kind", "goroutine", "--thread", RUN, "--per", "share", "--format", "folded"]
        return shares_in_folded(
            self._underspan.ask("flame", *wanted, "--before", before.span, "--after", after.span), READ
        )

    def pictures(self, before: Scene, after: Scene, folder: Path) -> list[Path]:
        """The CPU, its goroutines, and the difference that batching makes."""
        folder.mkdir(parents=True, exist_ok=True)
        within = ["--since", before.since, "--until", before.until]
        goroutines = ["--kind", "goroutine", "--by", "thread"]
        wanted = {
            "cpu.svg": ["--kind", "cpu", *within],
            "wall.svg": [*goroutines, *within],
            "difference.svg": [*goroutines, "--before", before.span, "--after", after.span],
        }
        for name, options in wanted.items():
            self._underspan.ask("flame", *options, "-o", str(folder / name))
        return [folder / name for name in wanted]

    def _await_names(self, pid: int) -> None:
        """Stacks are named by a thread that yields to everybody: what was seen may have no names yet."""
        stacks = f"SELECT stack_id FROM goroutine WHERE ns_pid = {pid} UNION ALL SELECT stack_id FROM on_cpu"
        query = (
            f"SELECT uniqExact(stack_id) AS n FROM ({stacks} WHERE ns_pid = {pid}) "
            "WHERE stack_id != 0 AND stack_id NOT IN (SELECT stack_id FROM stacks)"
        )
        deadline = time.monotonic() + 60
        # The last rows are on their way: on a busy machine for a while.
        of_pid = f"WHERE ns_pid = {pid}"
        count = f"SELECT (SELECT count() FROM goroutine {of_pid}) + count() AS n FROM on_cpu {of_pid}"
        rows, seen = "", None
        while rows != seen and time.monotonic() < deadline:
            time.sleep(3)
            rows, seen = seen, self._underspan.rows(count)[0]["n"]
        while int(self._underspan.rows(query)[0]["n"]):
            if time.monotonic() > deadline:
                raise DemoError("stacks have no names after 60 s")
            time.sleep(0.5)


def now() -> str:
    """The time in UTC, as `--since` takes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
