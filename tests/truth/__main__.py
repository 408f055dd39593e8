"""Truth tests: `python3 tests/truth --help`."""

import argparse
import os
import pathlib
import shlex
import sys
import tempfile

from harness import interpreters, report, runner
from harness.cases import CASES
from harness.underspan import Underspan, Unusable, preflight

ROOT = pathlib.Path(__file__).resolve().parents[2]


def options():
    parser = argparse.ArgumentParser(prog="tests/truth", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--case",
        action="append",
        metavar="NAME",
        choices=[case.name for case in CASES],
        help="play this case only (may be given several times)",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="VERSION",
        help="use interpreters of this version only, e.g. 3.11 or 3.8.18, or `all`; default: what is here of {}".format(
            ", ".join(interpreters.WANTED)
        ),
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="cases that do not depend on the interpreter are played on one of them only",
    )
    parser.add_argument("--rehearse", action="store_true", help="run the workloads without Underspan and check them")
    parser.add_argument(
        "--underspan",
        metavar="PATH",
        default=str(ROOT / "target" / "release" / "underspan"),
        help="the program to test (default: target/release/underspan)",
    )
    parser.add_argument("--report", metavar="FILE", help="also write the table to this Markdown file")
    parser.add_argument("--keep", metavar="DIR", help="keep claims, logs and the store here")
    return parser.parse_args()


def cases_for(number, args):
    """The cases of the `number`th interpreter."""
    chosen = [case for case in CASES if not args.case or case.name in args.case]
    return [case for case in chosen if case.every_python or number == 0] if args.quick else chosen


def play(args, folder):
    pythons = interpreters.choose(interpreters.found(), args.python)
    print("interpreters: " + ", ".join(f"{each.name} ({each.path})" for each in pythons))
    absent = [] if args.python else interpreters.absent(pythons)
    if absent:
        print("not on this machine, so not tested: CPython " + ", ".join(absent))
    lines = []
    for number, python in enumerate(pythons):
        cases = cases_for(number, args)
        if not cases:
            continue
        place = os.path.join(folder, python.name.replace(" ", "-"))
        os.makedirs(place)
        if args.rehearse:
            made = runner.rehearse(cases, python, place)
        else:
            underspan = Underspan(args.underspan, os.path.join(place, "store"), os.path.join(place, "underspan.log"))
            made = runner.judge(cases, python, place, underspan)
        print(report.to_text(made), flush=True)
        lines += made
    print(report.summary(lines))
    if args.report:
        command = shlex.join(["python3", "tests/truth"] + [word for word in sys.argv[1:]])
        text = report.to_markdown(lines, command, os.cpu_count(), [each.name for each in pythons])
        pathlib.Path(args.report).write_text(text)
    return 1 if any(not line.verdict.ok for line in lines) else 0


def main():
    args = options()
    try:
        if not args.rehearse:
            preflight(args.underspan)
        if args.keep:
            return play(args, args.keep)
        with tempfile.TemporaryDirectory(prefix="underspan-truth-") as folder:
            return play(args, folder)
    except Unusable as error:
        print(f"truth: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
