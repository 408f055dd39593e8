"""The `underspan` command, as the harness uses it."""

import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

RUN_TIME_LIMIT_S = 600
ASK_TIME_LIMIT_S = 60
START_TIME_LIMIT_S = 30
DELIVERIES = 10


class Unusable(Exception):
    """Truth cannot be tested here; the message says why and what to do."""


def preflight(binary):
    """Fails early where the kernel cannot be watched."""
    if os.geteuid() != 0:
        raise Unusable("truth tests load BPF programs: run them as root")
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        raise Unusable(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux), so BPF programs cannot be loaded: "
            "boot one with CONFIG_DEBUG_INFO_BTF=y"
        )
    if not os.path.isfile(binary):
        raise Unusable(f"{binary} is not there: run `make build`, or name it with --underspan")
    if shutil.which("cc") is None:
        raise Unusable("no C compiler (`cc`): some workloads are in C; install gcc or clang")


@contextlib.contextmanager
def embedded_store(folder):
    """One embedded store for all runs; every command finds it through its folder."""
    command = [sys.executable, "-m", "underspan.store", "--data", folder, "--port", "0"]
    store = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        if not store.stdout.readline():
            raise Unusable(
                f"the embedded store did not start with {sys.executable}: "
                "use the project's own Python (`make truth` does)"
            )
        yield
    finally:
        store.terminate()
        store.wait()
        store.stdout.close()


def spooled(data):
    """How many bytes wait in a data folder for the store."""
    return sum(each.stat().st_size for each in pathlib.Path(data, "spool").glob("*.segment"))


class Underspan:
    """The command on one data folder, which it fills and reads."""

    def __init__(self, binary, data, log):
        self.binary = binary
        self.data = data
        self.log = log
        self.begin()

    def begin(self):
        """What is in the store by now belongs to another run."""
        self.since = time.time_ns()

    def _start(self, *arguments):
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [self.binary, arguments[0], "--data", self.data, *arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _end(self, process, time_limit):
        try:
            return process.wait(time_limit)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait()
            message = f"underspan did not end within {time_limit} s: {self.last_words()}"
            raise Unusable(message) from late

    def deliver(self):
        """Has rows sent that the store did not take in time, as it may on a busy machine: they wait
        in the spool until an agent runs again."""
        for _ in range(DELIVERIES):
            if not spooled(self.data):
                return
            self.run(["sleep", "2"])
        if spooled(self.data):
            raise Unusable(f"the store does not take what is in the spool: {self.last_words()}")

    def last_words(self):
        with open(self.log) as log:
            return (log.read().strip().splitlines() or ["it said nothing"])[-1]

    def run(self, command):
        """`underspan run -- COMMAND`; returns its exit status."""
        return self._end(self._start("run", "--", *command), RUN_TIME_LIMIT_S)

    @contextlib.contextmanager
    def attached(self, pid):
        """`underspan agent --pid PID`, from when it watches the process until the block ends."""
        agent = self._start("agent", "--pid", str(pid))
        try:
            deadline = time.monotonic() + START_TIME_LIMIT_S
            while not self.rows(f"SELECT pid FROM processes WHERE ns_pid = {pid} LIMIT 1"):
                if agent.poll() is not None or time.monotonic() > deadline:
                    raise Unusable(f"`underspan agent` does not watch {pid}: {self.last_words()}")
                time.sleep(0.2)
            yield
        finally:
            agent.send_signal(signal.SIGINT)
            self._end(agent, START_TIME_LIMIT_S)

    def _ask(self, *arguments):
        answer = subprocess.run(
            [self.binary, arguments[0], "--data", self.data, "--json", *arguments[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIME_LIMIT_S,
        )
        if answer.returncode:
            said = answer.stderr.decode().strip()
            raise Unusable(f"`underspan {arguments[0]}` failed: {said}")
        return answer.stdout.decode()

    def rows(self, query):
        return [json.loads(line) for line in self._ask("sql", query).splitlines()]

    def table(self, name):
        """A table's rows of this run."""
        since = f"fromUnixTimestamp64Nano({self.since})"
        return self.rows(
            f"SELECT *, toUnixTimestamp64Nano(start_time) AS start FROM {name} "
            f"WHERE start_time >= {since}"
        )

    def lost(self):
        """Events that could not be recorded in this run. Of a stack that is cut short the event is
        there: see `cut_short`. A switch that the kernel did not tell is made up for (see the
        ledger's README). Goroutines are looked at, not told of."""
        rows = self.rows(
            f"SELECT * FROM lost_events WHERE start_time >= fromUnixTimestamp64Nano({self.since}) "
            "AND reason NOT IN (SELECT end FROM stack_ends) AND reason != 'untold' "
            "AND tracker != 'goroutine'"
        )
        return [row for row in rows if int(row["count"])]

    def cut_short(self):
        """How the stacks of this run ended, by reason (whole ones have none), and of how many
        programs they are. A program's memory map is read soon after it began: its first two
        seconds do not count."""
        since = f"start_time >= fromUnixTimestamp64Nano({self.since})"
        samples = " UNION ALL ".join(
            "SELECT host, pid, stack_id, toUnixTimestamp64Nano(start_time) + duration_ns AS end "
            f"FROM {table} WHERE {since}"
            for table in ("off_cpu", "on_cpu")
        )
        rows = self.rows(
            "WITH programs AS (SELECT pid, min(toUnixTimestamp64Nano(start_time)) AS first "
            f"FROM thread_states WHERE {since} GROUP BY pid) "
            f"SELECT truncated, groupArray(pid) AS pids FROM ({samples}) AS samples "
            "JOIN stacks USING (host, stack_id) JOIN programs USING (pid) "
            "WHERE end > first + 2000000000 GROUP BY truncated"
        )
        programs = {pid for row in rows for pid in row["pids"]}
        return {row["truncated"]: len(row["pids"]) for row in rows}, len(programs)

    def without_stack(self):
        """Waits that are samples, and of whose stack nothing is known."""
        rows = self.rows(
            "SELECT count() AS samples FROM off_cpu WHERE stack_id = 0 "
            f"AND start_time >= fromUnixTimestamp64Nano({self.since})"
        )
        return int(rows[0]["samples"])

    def untold(self):
        """When and how often a thread came on a CPU in this run and the kernel did not tell."""
        return self.rows(
            "SELECT toUnixTimestamp64Nano(start_time) AS start, duration_ns, count "
            "FROM lost_events WHERE reason = 'untold' "
            f"AND start_time >= fromUnixTimestamp64Nano({self.since})"
        )

    def explain(self, request_id):
        return json.loads(self._ask("explain", request_id))

    def flame(self, pid, claim, idle):
        """Lines of folded stacks of a process off the CPU, in a claim's time."""
        since, until = (
            datetime.datetime.fromtimestamp(ns / 1e9, datetime.timezone.utc).isoformat()
            for ns in (claim["start"], claim["end"])
        )
        window = ["--since", since, "--until", until, "--pid", str(pid)]
        command = ["flame", "--data", self.data, "--kind", "off-cpu", "--format", "folded", *window]
        answer = subprocess.run(
            [self.binary, *command, *(["--idle"] if idle else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIME_LIMIT_S,
        )
        if answer.returncode:
            raise Unusable(f"`underspan flame` failed: {answer.stderr.decode().strip()}")
        return answer.stdout.decode().splitlines()
