"""Boots other kernels and checks there what Underspan says: `python3 tests/kernels --help`."""

import argparse
import concurrent.futures
import functools
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
# Two namespaces, a wire between them, what delays and loses on it, and the firewall.
MODULES = ["veth", "sch_netem", "sch_tbf", "sch_ingress", "cls_bpf", "nf_tables", "nft_quota"]
# Hooks that there is no way for. `doctor` says why (README.md).
ABSENT = {
    "6.1": {
        "threads back from a wait, without restartable sequences",
        "cycles, instructions, misses",
        "packets dropped",
    },
    "6.12": {
        "threads back from a wait, without restartable sequences",
        "cycles, instructions, misses",
        "ends of epoll instances",
    },
}


def options():
    parser = argparse.ArgumentParser(prog="tests/kernels", description="Boot Debian's kernels")
    parser.add_argument(
        "--kernel",
        action="append",
        choices=list(packages.LINES),
        help="boot this one only; may be given several times",
    )
    parser.add_argument(
        "--seconds", type=int, default=1200, help="the longest that one boot may take (1200)"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        default=[],
        help="only those of the trackers' tests whose names contain this, `smoke`, or `clock`; "
        "repeatable",
    )
    return parser.parse_args()


def cargo(*command):
    """The executables that a cargo command makes. Optimized: they are emulated. `make test` built
    them so, too."""
    command = ["cargo", *command, "--release", "--locked", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise packages.Unusable(f"{' '.join(command)} failed")
    made = (json.loads(line).get("executable") for line in done.stdout.splitlines())
    return [pathlib.Path(path) for path in made if path]


def target_directory():
    metadata = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(metadata.stdout)["target_directory"]


def watched():
    """What the trackers' tests compile, where they look for it: the guest has no compiler."""
    tests = ROOT / "crates" / "trackers" / "tests" / "session"
    bpf = ["-O2", "-g", "-target", "bpf", "-idirafter", "/usr/include/x86_64-linux-gnu", "-c"]
    compiled = {
        "workload": ["-O1", "-g", "-no-pie", "-pthread", tests / "workload.c"],
        "wire.bpf.o": [*bpf, tests / "tcp" / "wire.bpf.c"],
    }
    for name, command in compiled.items():
        clang = [os.environ.get("CLANG", "clang"), *command, "-o", CACHE / name]
        subprocess.run(clang, check=True)
    return {f"{target_directory()}/tmp/{name}": CACHE / name for name in compiled}


def unwound(test):
    """What the test of native stacks compiles, where it looks for it, built by the test itself."""
    subprocess.run([test, "--exact", "trees::every_program_is_there"], check=True)
    folder = pathlib.Path(target_directory()) / "tmp" / "unwind"
    return {str(path): path for path in folder.iterdir() if path.suffix in ("", ".so")}


def built():
    """Path in the machine to file here."""
    tests = ("session", "netstack", "throttle", "unwind")
    named = [option for test in tests for option in ("--test", test)]
    made = cargo("test", "--no-run", "-p", "underspan-trackers", *named)
    binaries = {path.name.rpartition("-")[0]: path for path in made}
    programs = unwound(binaries["unwind"])
    # The agent's command line, and the example that prints rows instead of storing them.
    (binaries["underspan"],) = cargo("build", "-p", "underspan-cli")
    (binaries["rows"],) = cargo("build", "-p", "underspan-agent", "--example", "rows")
    stripped = {
        f"/usr/bin/{name}": initramfs.stripped(path, CACHE / name)
        for name, path in binaries.items()
    }
    return stripped | programs


def tell(line, said):
    """Prints an answer of the guest."""
    for tracker in said.get("doctor", {}).get("trackers", []):
        for hook in tracker["hooks"]:
            attached = hook["attached"] or "NOT ATTACHED"
            print(f"{line:5} {tracker['name']:11} {hook['what']:32} {attached}")
    if "check" in said:
        outcome = "ok" if said["ok"] else "WRONG"
        print(f"{line:5} {outcome:5} {said['check']:56} {said['detail']}")
    if "again" in said:
        outcome = "held" if said["ok"] else f"wrong again: {said['detail']}"
        print(f"{line:5}       a second play of {said['again']}: {outcome}")
    sys.stdout.flush()


def surprises(kernel, result):
    """Hooks that are attached and should not be, or the reverse; or nobody says why not."""
    absent = set()
    for tracker in result.doctor.get("trackers", []):
        # Others are the host's counters: a virtual machine without a cloud has few.
        if tracker["name"] != "throttle":
            hooks = [hook for hook in tracker["hooks"] if not hook["attached"]]
            absent |= {hook["what"] for hook in hooks}
            yield from (f"{hook['what']}: no reason" for hook in hooks if not hook["failed"])
    yield from (f"{what}: not attached" for what in absent - ABSENT[kernel.line])
    yield from (f"{what}: attached" for what in ABSENT[kernel.line] - absent)


def sum_up(kernel, result, seconds):
    """Prints how it went. Returns how many things were wrong."""
    idle = [tracker["name"] for tracker in result.doctor.get("trackers", []) if not tracker["runs"]]
    wrong = [name for name, ok, _ in result.checks if not ok]
    passed = len(result.checks) - len(wrong)
    surprising = list(surprises(kernel, result))
    print(f"{kernel.package}: {passed} of {len(result.checks)} checks hold ({seconds:.0f} s)")
    for problem in (result.doctor.get("error"), result.problem):
        if problem:
            print(f"  {problem}")
    for what, names in (("does not run", idle), ("WRONG", wrong), ("hook", surprising)):
        for name in names:
            print(f"  {what}: {name}")
    sys.stdout.flush()
    return len(idle) + len(wrong) + len(surprising) + bool(result.problem)


def test(kernel, common, args):
    """Boots one kernel. Returns how many things were wrong."""
    print(f"kernels: booting {kernel.package}", flush=True)
    image = CACHE / f"{kernel.line}.img"
    initramfs.with_modules(common, kernel.modules(MODULES), image)
    start = time.monotonic()
    result = machine.boot(
        kernel, image, CACHE, args.only, args.seconds, functools.partial(tell, kernel.line)
    )
    return sum_up(kernel, result, time.monotonic() - start)


def main():
    args = options()
    try:
        print("kernels: building", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        files = built() | watched()
        kernels = [packages.fetch(line, CACHE) for line in args.kernel or packages.LINES]
        common = CACHE / "common.img"
        initramfs.build(files, common)
        # At once: each takes one thread of qemu, and its time does not depend on the host's.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            wrong = sum(pool.map(lambda kernel: test(kernel, common, args), kernels))
    except packages.Unusable as problem:
        sys.exit(f"kernels: {problem}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
