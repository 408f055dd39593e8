"""The table, on the terminal and as docs/accuracy.md."""

import datetime
import os
import platform

from .verdict import ms

COLUMNS = (
    "case",
    "interpreter",
    "what",
    "thread",
    "state",
    "injected",
    "reported",
    "error",
    "culprit",
    "verdict",
)
NUMBERS = ("injected", "reported", "error")

PREFACE = """# Accuracy

How far Underspan's figures are from the truth. Each workload injects a delay and reads the kernel's
own accounts around it: CLOCK_MONOTONIC, thread CPU time, run queue delay. What it found is compared
with what the store says; `tests/truth/README.md` says how, and how the truth itself is known.

A line is `ok` if the length is off by at most 1 ms or 1 %, whichever is larger, and the state and
the culprit are the right ones. For a request the error is that of its worst phase. Where the truth
is an interval (a wait for the GIL that ends in a run queue), the error is the distance to it.
A case with a wrong line is played again, three times at most, because what else the machine does
can make the truth itself uncertain; the table says which try it shows. Times are in milliseconds.

    {command}

{day}, Linux {kernel} on {machine}, {cpus} CPUs. Interpreters: {pythons}.

{summary}

"""


def cells(line):
    each = line.verdict
    timed = each.injected or each.reported
    numbers = [ms(ns) if timed else "" for ns in (each.injected, each.reported, each.error)]
    said = "ok" if each.ok else "WRONG"
    if line.attempt > 1:
        said += f" (try {line.attempt})"
    return (
        line.case,
        line.python,
        each.what,
        each.thread,
        each.state,
        *numbers,
        each.culprit,
        said,
    )


def to_text(lines):
    rows = [COLUMNS, *map(cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    out = []
    for row, line in zip(rows, [None, *lines]):
        out.append("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        out += ["      " + problem for problem in (line.verdict.problems if line else ())]
    return "\n".join(out)


def summary(lines):
    wrong = sum(not line.verdict.ok for line in lines)
    return f"{len(lines)} checks, {wrong} wrong."


def to_markdown(lines, command, pythons):
    preface = PREFACE.format(
        command=command,
        day=datetime.date.today().isoformat(),
        kernel=platform.release().split("-")[0],
        machine=platform.machine(),
        cpus=os.cpu_count(),
        pythons=", ".join(each.name for each in pythons),
        summary=summary(lines),
    )
    rule = ["---:" if column in NUMBERS else "---" for column in COLUMNS]
    rows = [COLUMNS, rule, *map(cells, lines)]
    return preface + "".join("| " + " | ".join(row) + " |\n" for row in rows)
