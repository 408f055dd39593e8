"""Runs the trackers' tests against the real kernel, each in a process of its own. Prints one JSON
object a line."""

import json
import os
import pathlib
import subprocess
import threading
import time

BINARIES = ("session", "throttle", "netstack", "unwind")
# They only run when they are asked for: not every machine has netem, or a clock that may be set.
ASKED_FOR = (
    "tcp::random::all_that_netem_made_the_kernel_send_again_is_told_of",
    "clock::a_clock_that_is_set_makes_no_packet_late",
)
# While much work goes on beside it, some of its samples never come on emulated CPUs: 49 to 94 of
# 100 do and are right. Why is not known; on real ones at least 90 are.
LEFT_OUT = ("trees::a_giant_does_not_delay_others",)
# Of the guest's time, of which no test takes a quarter.
PATIENCE_S = 120


def say(**what):
    print(json.dumps(what), flush=True)


def tests_of(binary):
    """The names of its tests; of those that only run when they are asked for, ours."""

    def names(*options):
        command = [binary, "--list", "--format=terse", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = (line.rpartition(": ") for line in done.stdout.splitlines())
        return [name for name, _, kind in lines if kind == "test"]

    ignored = set(names("--ignored")).difference(ASKED_FOR).union(LEFT_OUT)
    return [name for name in names() if name not in ignored]


def standstill(pid):
    """What each of its threads does in the kernel."""
    threads = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, state = (task / "comm").read_text().strip(), (task / "stat").read_text()
            stack = [line.split()[-1] for line in (task / "stack").read_text().splitlines()]
        except OSError:
            continue
        threads.append(f"{name} {state.rpartition(')')[2].split()[0]} {' < '.join(stack[:8])}")
    return "; ".join(threads)


def listen(pipe, said):
    """Keeps what a test says, and shows it on the console while it runs."""
    with open("/dev/console", "w") as console:
        for line in pipe:
            said.append(line)
            print("  |", line.rstrip(), file=console, flush=True)


def run(binary, name):
    """Runs one test. Whether it passed, and what it said if not."""
    # The programs that they watch are compiled already; there is no compiler here.
    built = {"CLANG": "true", "UNDERSPAN_TEST_PROGRAMS_BUILT": "1"}
    environment = {**os.environ, **built, "RUST_BACKTRACE": "0"}
    command = [binary, "--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"]
    command += ["--color=never"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    test = subprocess.Popen(command, env=environment, errors="replace", **pipes)
    said = []
    # What it starts may outlive it and keep the pipe open.
    listener = threading.Thread(target=listen, args=(test.stdout, said), daemon=True)
    listener.start()
    late = ""
    try:
        test.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        late = f"not within {PATIENCE_S} s; its threads: {standstill(test.pid)}; it said: "
        test.kill()
    ok = not test.wait()
    listener.join(1)
    return ok, "" if ok else late + last_words("".join(said))


def last_words(said):
    _, panicked, why = said.rpartition(" panicked at ")
    return " ".join((why if panicked else said).split())[-1200:]


def main():
    only = [part for part in os.environ.get("ONLY", "").split(",") if part]
    for binary in BINARIES:
        for name in tests_of(binary):
            if only and not any(part in f"{binary} {name}" for part in only):
                continue
            say(begin=f"{binary} {name}")
            start = time.monotonic()
            ok, detail = run(binary, name)
            took = f"{time.monotonic() - start:.1f} s"
            say(check=f"{binary} {name}", ok=ok, detail=f"{took} {detail}".strip())
            if not ok:
                # It stays wrong; but whether it is so every time says where to look.
                ok, detail = run(binary, name)
                say(again=f"{binary} {name}", ok=ok, detail=detail)


if __name__ == "__main__":
    main()
