"""Boots other kernels and checks there what Underspan says: `python3 tests/kernels --help`."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import initramfs
import machine
import packages

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "kernels"


def options():
    parser = argparse.ArgumentParser(prog="tests/kernels", description="Boot Debian's kernels")
    parser.add_argument(
        "--kernel",
        action="append",
        choices=list(packages.LINES),
        help="boot this one only; may be given several times",
    )
    parser.add_argument(
        "--seconds", type=int, default=300, help="the longest that one boot may take (300)"
    )
    return parser.parse_args()


def cargo(*command):
    """The executables that a cargo command makes."""
    command = ["cargo", *command, "--locked", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise packages.Unusable(f"{' '.join(command)} failed")
    made = (json.loads(line).get("executable") for line in done.stdout.splitlines())
    return [pathlib.Path(path) for path in made if path]


def workload():
    """What the trackers' tests watch, and where they look for it. They read its symbols."""
    folder = ROOT / "crates" / "trackers" / "tests" / "session"
    compiled = CACHE / "workload"
    command = ["-O1", "-g", "-no-pie", "-pthread", folder / "workload.c", "-o", compiled]
    subprocess.run([os.environ.get("CLANG", "clang"), *command], check=True)
    metadata = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    target = json.loads(metadata.stdout)["target_directory"]
    return {f"{target}/tmp/workload": compiled}


def built():
    """Path in the machine to file here."""
    (session,) = cargo("test", "--no-run", "-p", "underspan-trackers", "--test", "session")
    (throttle,) = cargo("test", "--no-run", "-p", "underspan-trackers", "--test", "throttle")
    # The agent's command line, and the example that prints rows instead of storing them.
    (underspan,) = cargo("build", "-p", "underspan-cli")
    (rows,) = cargo("build", "-p", "underspan-agent", "--example", "rows")
    binaries = {"session": session, "throttle": throttle, "underspan": underspan, "rows": rows}
    return {
        f"/usr/bin/{name}": initramfs.stripped(path, CACHE / name)
        for name, path in binaries.items()
    }


def show(kernel, result, seconds):
    """Prints what happened. Returns how many things were wrong."""
    wrong = bool(result.problem)
    trackers = result.doctor.get("trackers", [])
    print(f"\n{kernel.package}  ({seconds:.0f} s)")
    if result.doctor.get("error"):
        print(f"  {result.doctor['error']}")
    for tracker in trackers:
        wrong += not tracker["runs"]
        for hook in tracker["hooks"]:
            print(f"  {tracker['name']:8} {hook['what']:32} {hook['attached'] or 'NOT ATTACHED'}")
    for name, ok, detail in result.checks:
        wrong += not ok
        print(f"  {'ok   ' if ok else 'WRONG'}  {name:32} {detail}")
    passed = sum(ok for _, ok, _ in result.checks)
    print(f"  {passed} of {len(result.checks)} checks hold", flush=True)
    if result.problem:
        print(f"  {result.problem}")
    return wrong


def main():
    args = options()
    try:
        print("kernels: building", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        files = built() | workload()
        kernels = [packages.fetch(line, CACHE) for line in args.kernel or packages.LINES]
        image = CACHE / "initramfs.img"
        initramfs.build(files, image)
        wrong = 0
        for kernel in kernels:
            print(f"kernels: booting {kernel.package}", flush=True)
            start = time.monotonic()
            result = machine.boot(kernel, image, CACHE, args.seconds)
            wrong += show(kernel, result, time.monotonic() - start)
    except packages.Unusable as problem:
        sys.exit(f"kernels: {problem}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
