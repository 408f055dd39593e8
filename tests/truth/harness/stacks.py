"""Stacks: was the time spent where the workload says, and do the weights sum to it?"""

import collections
import os

from .verdict import Verdict, ms

# What must hold, each in percent.
RIGHT = 99
WEIGHT_ERROR = 1
CUT_SHORT = 0.5
WITHOUT = 1

# As much of a stack that is deeper must still be there.
DEEPEST = 500

COLUMNS = (
    "program",
    "cause",
    "samples",
    "injected ms",
    "weights ms",
    "error %",
    "scaled ms",
    "error %",
    "right stack %",
    "cut short %",
    "verdict",
)


class StackVerdict(
    collections.namedtuple("StackVerdict", "what samples injected weight scaled right cut problems")
):
    """Times in nanoseconds, shares in percent. scaled: the weights, scaled to the ledger's total as
    `underspan flame` does it."""

    @property
    def ok(self):
        return not self.problems

    def error(self, ns):
        return 100 * (ns - self.injected) / self.injected if self.injected else 0.0

    def figures(self):
        return (
            str(self.samples),
            ms(self.injected),
            ms(self.weight),
            f"{self.error(self.weight):+.2f}",
            ms(self.scaled),
            f"{self.error(self.scaled):+.2f}",
            f"{self.right:.2f}",
            f"{self.cut:.2f}",
        )


Frame = collections.namedtuple("Frame", "kind function file line module")


def frames(stack):
    columns = (stack[each] for each in ("kinds", "functions", "files", "lines", "modules"))
    return [Frame(kind, *rest) for kind, *rest in zip(*columns)]


def same_frame(frame, expected):
    function, file, line = expected
    # Before 3.11 code objects do not know to which class a function belongs.
    names = {frame.function, frame.function.rsplit(".", 1)[-1]}
    same_file = os.path.basename(frame.file) == file
    return function in names and same_file and line in (0, int(frame.line))


def python_problem(found, tree, cut_short):
    """Why these are not the frames of the tree; None if they are."""
    python = [each for each in found if each.kind == "python"]
    expected = tree["frames"]
    if cut_short:
        if len(python) < DEEPEST:
            return f"{len(python)} frames of Python are left of {len(expected)}"
        expected = expected[len(expected) - len(python) :]
    if len(python) != len(expected):
        return f"{len(python)} frames of Python instead of {len(expected)}"
    for frame, wanted in zip(python, expected):
        if not same_frame(frame, wanted):
            return f"{frame.function} ({frame.file}:{frame.line}) instead of {wanted}"
    after = found[found.index(python[-1]) + 1 :]
    if not any(each.kind == "kernel" for each in after):
        return "it does not end in the kernel"
    if not cut_short and any("_PyEval_EvalFrame" in each.function for each in found):
        return "the interpreter's own loop is left in it"
    native = tree.get("native")
    return between_problem(found, native) if native and not cut_short else None


def between_problem(found, native):
    """Native frames must stand between the right two of Python."""
    module = native.get("module", "callback")
    seen, between = 0, []
    for frame in found:
        seen += frame.kind == "python"
        if frame.kind == "native" and frame.module.startswith(module):
            between.append((seen, frame.function))
    expected = [(native["after"], function) for function in native["functions"]]
    return None if between == expected else f"{between} instead of {expected}"


def native_problem(found, tree):
    """The functions of the tree follow each other, and nothing but libraries is further in."""
    functions = [each.function for each in found if each.kind == "native"]
    expected = tree["functions"]
    runs = range(len(functions) - len(expected) + 1)
    if not any(functions[at : at + len(expected)] == expected for at in runs):
        return f"{functions} instead of {expected}"
    return None


def problem(stack, tree, cut_short=""):
    """Why the stack is not that of the tree; None if it is."""
    if stack is None:
        return "it has no stack"
    if stack["truncated"] != cut_short:
        return f"it says {stack['truncated'] or 'nothing'} about being cut short"
    if "functions" in tree:
        return native_problem(frames(stack), tree)
    return python_problem(frames(stack), tree, cut_short)


def rows_of(claim, seen):
    rows = seen.of_thread("off_cpu", claim)
    return [
        row
        for row in rows
        if claim["start"] <= row["start"] <= claim["end"] and row["state"] in claim["states"]
    ]


def scaled(rows, claim, seen):
    """The rows' weights, scaled so that all of the thread's sum to its ledger, state by state."""
    ledgers, samples = seen.of_thread("thread_states", claim), seen.of_thread("off_cpu", claim)
    total = 0
    for state in claim["states"]:
        weight = sum(row["weight_ns"] for row in samples if row["state"] == state)
        ours = sum(row["weight_ns"] for row in rows if row["state"] == state)
        if weight:
            total += ours * sum(row[state + "_ns"] for row in ledgers) / weight
    return round(total)


def stack(claim, seen):
    """One place or several at which a thread waited: its samples say the same."""
    rows, trees, cut_short = rows_of(claim, seen), claim["trees"], claim.get("cut_short", "")
    weight, injected = sum(row["weight_ns"] for row in rows), sum(tree["ns"] for tree in trees)
    found, why = collections.Counter(), collections.Counter()
    cut, told, without = 0, 0, 0
    for row in rows:
        known = seen.stacks.get(row["stack_id"])
        # Of a wait whose end the kernel did not tell there is no stack, right or wrong. There may
        # not be more of them than it kept to itself meanwhile, nor in the whole run (runner.py).
        if known is None and not int(row["stack_id"]):
            without += 1
            continue
        told += row["weight_ns"]
        said = [problem(known, tree, cut_short) for tree in trees]
        cut += known is None or known["truncated"] != cut_short
        if None in said:
            found[said.index(None)] += row["weight_ns"]
        else:
            why[said[0]] += row["weight_ns"]
    # Each place has the share that it had of the time, and what one has too much another lacks.
    right = 100 * sum(
        min(found[index] / told, tree["ns"] / injected) if told and injected else 0
        for index, tree in enumerate(trees)
    )
    verdict = StackVerdict(
        claim["label"],
        len(rows),
        injected,
        weight,
        scaled(rows, claim, seen),
        right,
        100 * cut / len(rows) if rows else 0,
        [],
    )
    verdict.problems.extend(problems(verdict, claim))
    untold = seen.untold(claim["start"], claim["end"])
    if without > max(1, len(rows) * WITHOUT / 100) + untold:
        verdict.problems.append(f"{without} of {len(rows)} samples have no stack")
    if right < RIGHT:
        verdict.problems.extend(f"{ms(ns)} ms: {text[:2000]}" for text, ns in why.most_common(2))
    return [verdict]


def problems(verdict, claim):
    if verdict.injected < claim.get("at_least", 0):
        yield f"the workload injected {ms(verdict.injected)} ms only: run it again"
    if not verdict.samples:
        yield "no sample"
        return
    if verdict.right < RIGHT:
        yield f"{verdict.right:.2f} % of the time on the right stack, must be {RIGHT} %"
    for name in ("weight", "scaled"):
        error = verdict.error(getattr(verdict, name))
        if abs(error) > WEIGHT_ERROR:
            yield f"{name} is off by {error:+.2f} %, allowed {WEIGHT_ERROR} %"
    if verdict.cut > CUT_SHORT:
        yield f"{verdict.cut:.2f} % of the stacks are cut short, allowed {CUT_SHORT} %"


def first_stack(claim, seen):
    """How long it takes until the stacks of a program that is new to the agent are whole."""
    begun = claim["case"]["start"]
    rows = [row for row in seen.of_process("off_cpu", claim) if row["stack_id"] in seen.stacks]
    whole = [row for row in rows if not seen.stacks[row["stack_id"]]["truncated"]]
    ends = [row["start"] + row["duration_ns"] for row in whole]
    after = min(ends) - begun if ends else 0
    late = not ends or min(ends) > claim["end"]
    problems = ["none came while the workload waited for it"] if late else []
    return [Verdict(claim["label"], claim["thread"], "", 0, after, 0, "", problems)]
