"""The table, on the terminal and as docs/accuracy.md."""

import datetime
import platform

HEAD = ("case", "interpreter", "what", "thread", "state", "injected", "reported", "error", "culprit", "verdict")


def ms(ns):
    return "%.3f" % (ns / 1e6)


def cells(line):
    each = line.verdict
    return (
        line.case,
        line.python,
        each.what,
        each.thread,
        each.state,
        ms(each.injected),
        ms(each.reported),
        ms(each.error),
        each.culprit,
        "ok" if each.ok else "WRONG",
    )


def to_text(lines):
    rows = [HEAD] + [cells(line) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    out = []
    for row, line in zip(rows, [None] + list(lines)):
        out.append("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        out += ["      " + problem for problem in (line.verdict.problems if line else ())]
    return "\n".join(out)


def summary(lines):
    wrong = sum(not line.verdict.ok for line in lines)
    return "%d checks, %d wrong" % (len(lines), wrong)


PREFACE = """# Accuracy

How far Underspan's figures are from the truth. Each workload injects a delay, reads the kernel's own accounts around it
(CLOCK_MONOTONIC, thread CPU time, run queue delay), and what it found is compared with what the store says.
`tests/truth/README.md` says how.

A line is `ok` if the error is at most 1 ms or 1 % (whichever is larger), the state is the right one, and so is the
culprit. Where a wait for the GIL ends in a run queue, the truth is an interval, and the error is the distance to it.

Made by

```
%(command)s
```

on %(day)s, Linux %(kernel)s, %(cpus)s CPUs, %(machine)s; interpreters: %(pythons)s. Times in milliseconds. %(summary)s.

"""


def to_markdown(lines, command, cpus, pythons):
    text = PREFACE % {
        "command": command,
        "day": datetime.date.today().isoformat(),
        "kernel": platform.release(),
        "cpus": cpus,
        "machine": platform.machine(),
        "pythons": ", ".join(pythons),
        "summary": summary(lines),
    }
    text += "| " + " | ".join(HEAD) + " |\n|" + "---|" * 5 + "---:|" * 3 + "---|---|\n"
    for line in lines:
        text += "| " + " | ".join(cell.replace("|", "\\|") for cell in cells(line)) + " |\n"
    return text
