"""Stalls of event loops: one row for each that is long, with its state, its culprit, its place."""

from .checks import describe
from .verdict import Verdict, judge, ms


def stall(claim, seen):
    rows = [
        row
        for row in seen.of_thread("loop_stall", claim)
        if row["start"] < claim["end"] and claim["start"] < row["start"] + row["duration_ns"]
    ]
    if not claim["state"]:
        problems = [f"a row of {ms(row['duration_ns'])} ms" for row in rows]
        return [Verdict(claim["label"], claim["thread"], "no stall", 0, 0, 0, "", problems)]
    reported = sum(row[claim["state"] + "_ns"] for row in rows)
    error, problems = judge(reported, claim["ns"], claim["ns_max"])
    if len(rows) != 1:
        problems.append(f"{len(rows)} rows instead of 1")
    for row in rows:
        problems += wrong_about(row, claim, seen)
    state = claim["state"] + " stall"
    culprit = describe(claim["culprit"])
    injected = claim["ns"]
    return [
        Verdict(
            claim["label"], claim["thread"], state, injected, reported, error, culprit, problems
        )
    ]


def wrong_about(row, claim, seen):
    for key, wanted in claim["culprit"].items():
        if seen.own_tid(row[key]) != wanted:
            yield f"{key} is {row[key]}, must be {wanted}"
    stack = seen.stacks.get(row["stack_id"])
    functions = [each.rsplit(".", 1)[-1] for each in stack["functions"]] if stack else []
    if claim["function"] not in functions:
        yield f"{claim['function']} is not in its stack: {functions}"
