"""Truth tests: `python3 tests/truth --help`."""

import argparse
import contextlib
import os
import pathlib
import shlex
import shutil
import sys
import tempfile

from harness import interpreters, report, runner
from harness.cases import CASES
from harness.underspan import Underspan, Unusable, embedded_store, preflight

ROOT = pathlib.Path(__file__).resolve().parents[2]
WANTED = ", ".join(interpreters.WANTED)


def options():
    parser = argparse.ArgumentParser(prog="tests/truth", description="Injected delays, found again")
    parser.add_argument(
        "--case",
        action="append",
        metavar="NAME",
        choices=[case.name for case in CASES],
        help="play this case only; may be given several times",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="VERSION",
        help=f"such as 3.11 or 3.8.18, or `all`; default: what is here of {WANTED}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="play what does not depend on the interpreter on one of them only",
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="run the workloads alone: do they inject anything?"
    )
    parser.add_argument(
        "--underspan",
        metavar="PATH",
        default=str(ROOT / "target" / "release" / "underspan"),
        help="the program to test; default: target/release/underspan",
    )
    parser.add_argument("--report", metavar="FILE", help="write the table here too, as Markdown")
    parser.add_argument("--keep", metavar="DIR", help="keep claims, logs and stores here")
    return parser.parse_args()


def chosen_cases(args, first):
    cases = [case for case in CASES if not args.case or case.name in args.case]
    return [case for case in cases if case.every_python or first or not args.quick]


def play(args, folder):
    pythons = interpreters.choose(interpreters.found(), args.python)
    print("interpreters:", ", ".join(f"{each.name} ({each.path})" for each in pythons))
    absent = [] if args.python else interpreters.absent(pythons)
    if absent:
        print("not on this machine, so not tested: CPython", ", ".join(absent))
    lines = []
    for python in pythons:
        cases = chosen_cases(args, first=python is pythons[0])
        place = os.path.join(folder, python.name.replace(" ", "-"))
        if args.rehearse:
            made = runner.rehearse(cases, python, place)
        else:
            underspan = Underspan(args.underspan, os.path.join(folder, "store"), place + ".log")
            made = runner.judge(cases, python, place, underspan)
        print(report.to_text(made), flush=True)
        lines += made
    print(report.summary(lines))
    if args.report:
        command = shlex.join(["python3", "tests/truth", *sys.argv[1:]])
        pathlib.Path(args.report).write_text(report.to_markdown(lines, command, pythons))
    return 1 if any(not line.verdict.ok for line in lines) else 0


def main():
    args = options()
    try:
        if not args.rehearse:
            preflight(args.underspan)
    except Unusable as error:
        print(f"truth: {error}", file=sys.stderr)
        return 2
    folder = args.keep or tempfile.mkdtemp(prefix="underspan-truth-")
    try:
        with contextlib.ExitStack() as stack:
            if not args.rehearse:
                stack.enter_context(embedded_store(os.path.join(folder, "store")))
            status = play(args, folder)
    except Unusable as error:
        print(f"truth: {error}", file=sys.stderr)
        status = 2
    if status == 0 and not args.keep:
        shutil.rmtree(folder)
    else:
        print(f"claims, logs and the store are in {folder}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
