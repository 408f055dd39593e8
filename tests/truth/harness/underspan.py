"""The `underspan` command, as the harness uses it."""

import json
import os
import shutil
import subprocess


class Unusable(Exception):
    """Truth cannot be tested here; the message says why and what to do."""


def preflight(binary):
    """Fails early, and says why, where the kernel will not be watched."""
    if os.geteuid() != 0:
        raise Unusable("truth tests load BPF programs: run them as root")
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        raise Unusable(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux): BPF programs cannot be loaded; "
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"
        )
    if not os.path.isfile(binary):
        raise Unusable(
            f"{binary} is not there: build it first with `cargo build --release`, or name it with --underspan"
        )
    if shutil.which("cc") is None:
        raise Unusable("no C compiler (`cc`): some workloads are in C; install gcc or clang")


class Underspan:
    """One data folder, and the command that fills and reads it."""

    def __init__(self, binary, data, log):
        self.binary = binary
        self.data = data
        self.log = log

    def _command(self, *arguments):
        return [self.binary, arguments[0], "--data", self.data, *arguments[1:]]

    def run(self, command, time_limit):
        """`underspan run -- COMMAND`; returns its exit status."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self._command("run", "--", *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                return process.wait(time_limit)
            except subprocess.TimeoutExpired:
                process.terminate()
                raise Unusable("`underspan run` did not end within %d s; see %s" % (time_limit, self.log))

    def _ask(self, *arguments):
        answer = subprocess.run(
            self._command(*arguments, "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=120,
        )
        if answer.returncode:
            raise Unusable("`underspan {}` failed: {}".format(" ".join(arguments), answer.stderr.decode().strip()))
        return answer.stdout.decode()

    def rows(self, query):
        text = self._ask("sql", query).strip()
        if text.startswith("["):
            return json.loads(text)
        if text.startswith("{") and "\n" not in text.strip() or text.startswith("{\n"):
            whole = json.loads(text)
            return whole["data"] if "data" in whole else [whole]
        return [json.loads(line) for line in text.splitlines() if line]

    def table(self, name):
        return self.rows(f"SELECT *, toUnixTimestamp64Nano(start_time) AS start FROM {name}")

    def explain(self, request_id):
        return json.loads(self._ask("explain", request_id))
