"""Runs the trackers' tests against the real kernel. Prints one JSON object a line."""

import json
import os
import re
import subprocess

# What needs a processor's pace. The emulator runs the two CPUs in turn, up to 100 ms each, so
# between a hook and what it tells, or between two slices of a wait, there is time that a processor
# has not. `smoke.py` asks the same of requests and of the GIL, with room for that.
SKIPPED = {
    "session": [
        "gil::",
        # Also: reading unwind tables takes longer here than the threads wait.
        "loops::",
        "off_cpu::",
        "requests::",
        "sums::a_thread_moved_between_cpus_loses_nothing",
        "sums::running_and_runnable_agree_with_the_scheduler",
        # Needs ip, tc, veth and a wire whose round trips take microseconds.
        "tcp::",
    ],
    # Busybox' ip makes no veth.
    "throttle": ["packets_an_interface_dropped"],
}


def run(binary, skipped):
    # The program that they watch is compiled already; there is no compiler here.
    environment = {**os.environ, "CLANG": "true", "RUST_BACKTRACE": "0"}
    done = subprocess.run(
        [binary, "--test-threads=1", "--color=never", *(f"--skip={name}" for name in skipped)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    why = dict(re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^----|\Z)", done.stdout, re.M | re.S))
    for name, outcome in re.findall(r"^test (\S+) \.\.\. (\w+)", done.stdout, re.M):
        if outcome != "ignored":
            detail = " ".join(why.get(name, "").split())[:600]
            print(json.dumps({"check": name, "ok": outcome == "ok", "detail": detail}), flush=True)
    ended = "test result:" in done.stdout
    print(
        json.dumps(
            {"check": f"{binary} ran", "ok": ended, "detail": done.stdout[-300:] * (not ended)}
        ),
        flush=True,
    )


def main():
    for binary, skipped in SKIPPED.items():
        run(binary, skipped)


if __name__ == "__main__":
    main()
