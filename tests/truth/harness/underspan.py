"""The `underspan` command, as the harness uses it."""

import json
import os
import shutil
import subprocess

RUN_TIME_LIMIT_S = 600
ASK_TIME_LIMIT_S = 60


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


class Underspan:
    """The command with a data folder of its own, which it fills and reads."""

    def __init__(self, binary, data, log):
        self.binary = binary
        self.data = data
        self.log = log

    def _command(self, *arguments):
        return [self.binary, arguments[0], "--data", self.data, *arguments[1:]]

    def run(self, command):
        """`underspan run -- COMMAND`; returns its exit status."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self._command("run", "--", *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                return process.wait(RUN_TIME_LIMIT_S)
            except subprocess.TimeoutExpired as late:
                process.terminate()
                message = f"`underspan run` did not end in {RUN_TIME_LIMIT_S} s; see {self.log}"
                raise Unusable(message) from late

    def _ask(self, *arguments):
        answer = subprocess.run(
            self._command(*arguments, "--json"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIME_LIMIT_S,
        )
        if answer.returncode:
            said = answer.stderr.decode().strip()
            raise Unusable(f"`underspan {arguments[0]}` failed: {said}")
        return answer.stdout.decode()

    def rows(self, query):
        return json.loads(self._ask("sql", query))

    def table(self, name):
        return self.rows(f"SELECT *, toUnixTimestamp64Nano(start_time) AS start FROM {name}")

    def explain(self, request_id):
        return json.loads(self._ask("explain", request_id))
