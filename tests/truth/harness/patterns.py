"""A held lock is told with holder and line; a pool without work and a heartbeat are idle."""

import json

from .verdict import Verdict, ms, tolerance


def patterns(claim, seen):
    rows = [row for row in seen.of_process("requests", claim) if row["path"] == claim["path"]]
    if len(rows) != 1:
        yield verdict(claim, "holder and line", 0, [f"{len(rows)} requests of {claim['path']}"])
        return
    yield verdict(claim, "holder and line", *holder_and_line(claim, seen, rows[0]))
    # In the picture of what is not idle, the lock is, and what is idle is not.
    shown = seen.flame(rows[0]["pid"], claim, False)
    waited = weight(shown, "lock_wait", "read")
    error = waited - claim["ns"]
    problems = [] if abs(error) <= tolerance(claim["ns"]) else [f"{ms(waited)} ms in the picture"]
    yield verdict(claim, "the lock in the picture", waited, problems)
    everything = seen.flame(rows[0]["pid"], claim, True)
    for thread, (function, state) in claim["idle"].items():
        # Not so when they wait for a CPU: then they have something to do.
        left = weight(shown, state, function)
        idle = weight(everything, state, function)
        problems = [f"{ms(left)} ms are shown as if it were blocked"] if left else []
        if not idle:
            problems.append("it is not even shown as idle")
        yield verdict(claim, f"{thread} is idle", idle, problems)


def holder_and_line(claim, seen, row):
    """The finding of the lock, its length, and what is wrong with it."""
    findings = seen.explain(row["request_id"])["findings"]
    locks = [each for each in findings if claim["line"] in json.dumps(each)]
    if not locks:
        return 0, [f"no finding names {claim['line']}: {json.dumps(findings)[:1500]}"]
    text = json.dumps(locks[0])
    named = str(claim["holder"]) in text
    return row["lock_wait_ns"], [] if named else [f"the holder {claim['holder']} is not: {text}"]


def weight(folded, state, function):
    """Nanoseconds of the stacks with that function in them, and of that state."""
    total = 0
    for line in folded:
        stack, _, ns = line.rpartition(" ")
        frames = [frame.split(" (")[0].split("`")[-1] for frame in stack.split(";")]
        if any(frame.rsplit(".", 1)[-1] == function for frame in frames) and f"[{state}]" in stack:
            total += int(ns)
    return total


def verdict(claim, what, reported, problems):
    return Verdict(
        f"{claim['label']}: {what}", claim["thread"], "", claim["ns"], reported, 0, "", problems
    )
