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
from harness.cases import CASES, PARTS, is_python
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
        "--only", metavar="PART", choices=PARTS, help=f"play one part only: {' or '.join(PARTS)}"
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


def chosen_cases(args, python, pythons):
    """What is played with this interpreter. `pythons`: those that times are measured on; stacks are
    looked at on every one. Programs in other languages, and with --quick what does not depend on
    the interpreter, are played once."""
    first = python is pythons[0]
    for case in CASES:
        if (args.case and case.name not in args.case) or (args.only or case.part) != case.part:
            continue
        once = not is_python(case) and case.part == "stacks"
        once = once or (args.quick and not case.every_python)
        everywhere = case.part == "stacks" and not args.python
        if first or (not once and (python in pythons or everywhere)):
            yield case


def play(args, folder):
    found = interpreters.found()
    pythons = interpreters.choose(found, args.python)
    print("interpreters:", ", ".join(f"{each.name} ({each.path})" for each in pythons))
    absent = [] if args.python else interpreters.absent(pythons)
    if absent:
        print("not on this machine, so not tested: CPython", ", ".join(absent))
    lines = []
    others = [] if args.python else [each for each in found if each not in pythons]
    for python in pythons + others:
        cases = list(chosen_cases(args, python, pythons))
        if not cases:
            continue
        place = os.path.join(folder, python.name.replace(" ", "-"))
        if args.rehearse:
            made = runner.rehearse(cases, python, place)
        else:
            underspan = Underspan(args.underspan, os.path.join(folder, "store"), place + ".log")
            made = runner.judge(cases, python, place, underspan)
        print(report.to_text(made), flush=True)
        lines += made
    print(report.conclusion(lines))
    if args.report:
        command = shlex.join(["python3", "tests/truth", *sys.argv[1:]])
        part = {case.name: (case.part,) for case in CASES}
        played = {each for line in lines for each in part.get(line.case, ())}
        report.update(args.report, lines, command, lambda line: part.get(line.case, played))
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
