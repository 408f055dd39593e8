"""Boots other kernels and checks there what Underspan says: `python3 tests/kernels --help`."""

import argparse
import json
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
        "--seconds", type=int, default=180, help="the longest that one boot may take (180)"
    )
    return parser.parse_args()


def built():
    """The agent's command line, and the example that prints rows instead of storing them."""
    binaries = []
    for what in (("-p", "underspan-cli"), ("-p", "underspan-agent", "--example", "rows")):
        command = ["cargo", "build", "--locked", "--message-format=json", *what]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise packages.Unusable(f"{' '.join(command)} failed")
        made = (json.loads(line).get("executable") for line in done.stdout.splitlines())
        binaries += [pathlib.Path(path) for path in made if path]
    return binaries


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
        binaries = built()
        kernels = [packages.fetch(line, CACHE) for line in args.kernel or packages.LINES]
        image = CACHE / "initramfs.img"
        initramfs.build(binaries, image)
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
