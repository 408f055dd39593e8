"""The tables, on the terminal and as docs/accuracy.md."""

import datetime
import os
import pathlib
import platform
import re

from . import stacks
from .verdict import ms

TIMES = (
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

TITLE = """# Accuracy

How far Underspan's figures are from the truth: {day}, Linux {kernel} on {machine}, {cpus} CPUs.
`tests/truth/README.md` says how the truth is known.

"""

# By part, in the order of the page. Each begins with the command that makes it.
PARTS = {
    "stacks": """## Stacks

Threads wait at the ends of known call trees, in every kind of code and on every interpreter there
is. Each sample's stack is compared with what the program itself says, frame by frame: for Python
all frames with their lines; and the samples' weights with the time that the kernel says was waited.

- **right stack**: the share of the weights that is on the right stack, complete, with nothing in
  it that is not there. At least 99 %.
- **weights**: the sum of `weight_ns`; **scaled**: to the ledger's totals, as `underspan flame` does
  it. Each off by 1 % at the most.
- **cut short**: the share of stacks that end before the outermost function. At most 0.5 %. The
  recursion of 900 is deeper than what a stack holds: it must say `too_deep`, and its innermost
  frames must be right.

A program that is new to the agent has no unwind tables at first, and its stacks say `no_mapping`
until they are read: up to {first:.0f} ms here. Workloads wait for that before they claim anything.

    {command}

Programs: {programs}. {summary}

""",
    "times": """## Times

Each workload injects a delay and reads the kernel's own accounts around it: CLOCK_MONOTONIC, thread
CPU time, run queue delay. What it found is compared with what the store says.

A line is `ok` if the length is off by at most 1 ms or 1 %, whichever is larger, and the state and
the culprit are the right ones. For a request the error is that of its worst phase. Where the truth
is an interval (a wait for the GIL that ends in a run queue), the error is the distance to it.
A case with a wrong line is played again, three times at most, because what else the machine does
can make the truth itself uncertain; the table says which try it shows. Times are in milliseconds.

    {command}

Interpreters: {programs}. {summary}

""",
}


def is_stack(line):
    return isinstance(line.verdict, stacks.StackVerdict)


def said(line):
    word = "ok" if line.verdict.ok else "WRONG"
    return word + (f" (try {line.attempt})" if line.attempt > 1 else "")


def program(line):
    """What a stack's line is about: a program in another language has no interpreter."""
    language = line.case.partition("_")[2]
    return language.capitalize() or line.python


def time_cells(line):
    each = line.verdict
    timed = each.injected or each.reported
    numbers = [ms(ns) if timed else "" for ns in (each.injected, each.reported, each.error)]
    about = (line.case, line.python, each.what, each.thread, each.state)
    return (*about, *numbers, each.culprit, said(line))


def stack_cells(line):
    return (program(line), line.verdict.what, *line.verdict.figures(), said(line))


def tables(lines):
    """Columns, lines and their cells, of each kind of line that there is."""
    kinds = (
        (TIMES, [line for line in lines if not is_stack(line)], time_cells),
        (stacks.COLUMNS, [line for line in lines if is_stack(line)], stack_cells),
    )
    return [kind for kind in kinds if kind[1]]


def to_text(lines):
    return "\n\n".join(text_table(*kind) for kind in tables(lines))


def text_table(columns, lines, cells):
    rows = [columns, *map(cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    out = []
    for row, line in zip(rows, [None, *lines]):
        out.append("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        out += ["      " + problem for problem in (line.verdict.problems if line else ())]
    return "\n".join(out)


def summary(lines):
    wrong = sum(not line.verdict.ok for line in lines)
    return f"{len(lines)} checks, {wrong} wrong."


def conclusion(lines):
    """The summary, and what is wrong once more: of a long log often only the end is kept."""
    wrong = [line for line in lines if not line.verdict.ok]
    return "\n\n".join(filter(None, (to_text(wrong), summary(lines))))


def is_number(text):
    return re.fullmatch(r"[-+]?[0-9.]*", text) is not None


def markdown_table(rows):
    columns = list(zip(*rows[1:]))
    rule = ["---:" if all(map(is_number, column)) else "---" for column in columns]
    return "".join("| " + " | ".join(row) + " |\n" for row in (rows[0], rule, *rows[1:]))


def worst_by_cause(lines):
    """One row per cause: the worst that any program had."""
    causes = {}
    for line in lines:
        causes.setdefault(line.verdict.what, []).append(line.verdict)
    columns = ("cause", "programs", "samples", "injected ms", "worst: weights, error %")
    yield (*columns, "scaled, error %", "right stack %", "cut short %", "verdict")
    for cause, all_of_it in causes.items():
        yield (
            cause,
            str(len(all_of_it)),
            str(sum(each.samples for each in all_of_it)),
            ms(sum(each.injected for each in all_of_it)),
            *(
                f"{max((each.error(getattr(each, which)) for each in all_of_it), key=abs):+.2f}"
                for which in ("weight", "scaled")
            ),
            f"{min(each.right for each in all_of_it):.2f}",
            f"{max(each.cut for each in all_of_it):.2f}",
            "ok" if all(each.ok for each in all_of_it) else "WRONG",
        )


def stacks_body(lines):
    about = [line for line in lines if is_stack(line)]
    rows = [stacks.COLUMNS, *map(stack_cells, about)]
    whole = markdown_table(list(worst_by_cause(about))), markdown_table(rows)
    others = [line for line in lines if not is_stack(line) and line.case in ("patterns", "loop")]
    more = markdown_table([TIMES, *map(time_cells, others)]) if others else ""
    heading = "\n### Three patterns of a service, and stalls of an event loop\n\n"
    return whole[0] + (heading + more if more else "") + "\n### By program\n\n" + whole[1]


def times_body(lines):
    return markdown_table([TIMES, *map(time_cells, lines)])


def section(part, lines, command):
    first = [each.verdict.reported for each in lines if each.verdict.what == "first whole stack"]
    name = program if part == "stacks" else (lambda line: line.python)
    preface = PARTS[part].format(
        command=command,
        programs=", ".join(dict.fromkeys(map(name, lines))),
        summary=summary(lines),
        first=max(first, default=0) / 1e6,
    )
    return preface + (stacks_body if part == "stacks" else times_body)(lines)


def update(path, lines, command, part_of):
    """Writes the sections that there are lines of; the page's others stay as they are."""
    title = TITLE.format(
        day=datetime.date.today().isoformat(),
        kernel=platform.release().split("-")[0],
        machine=platform.machine(),
        cpus=os.cpu_count(),
    )
    path = pathlib.Path(path)
    before = path.read_text() if path.exists() else ""
    sections = []
    for part, preface in PARTS.items():
        of_part = [line for line in lines if part in part_of(line)]
        if of_part:
            sections.append(section(part, of_part, command))
            continue
        heading = preface.splitlines()[0]
        kept = re.search(rf"^{heading}\n.*?(?=^## |\Z)", before, re.DOTALL | re.MULTILINE)
        if kept:
            sections.append(kept[0].rstrip("\n") + "\n")
    path.write_text(title + "\n".join(sections))
