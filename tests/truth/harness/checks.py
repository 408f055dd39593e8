"""What a claim means: one function per kind of claim. Pure: a claim and the rows go in, a verdict comes out."""

from .verdict import Verdict, judge_length

MARGIN_NS = 1_000_000


def milliseconds(rows):
    """What was seen instead, for the message."""
    return (
        ", ".join("{} {:.1f} ms".format(row.get("state", "row"), row["duration_ns"] / 1e6) for row in rows) or "nothing"
    )


def within(rows, claim):
    """Rows that lie in the claim's own time."""
    return [
        row
        for row in rows
        if row["start"] >= claim["start"] - MARGIN_NS and row["start"] + row["duration_ns"] <= claim["end"] + MARGIN_NS
    ]


def verdict(claim, state, injected, reported, error, problems, culprit=""):
    if injected < claim.get("at_least", 0):
        problems = problems + [
            "the workload injected only {:.3f} ms of the {:.0f} ms it is for: run it again".format(
                injected / 1e6, claim["at_least"] / 1e6
            )
        ]
    return Verdict(claim["label"], claim["thread"], state, injected, reported, error, culprit, problems)


def describe(culprit):
    return ", ".join("{} {}".format(key.replace("_", " "), value) for key, value in sorted(culprit.items()))


def culprit_problems(rows, expected, seen):
    """The culprit must be right for 99 % of the time, since one wrong short slice blames nobody."""
    problems, total = [], sum(row["duration_ns"] for row in rows)
    for key, value in expected.items():

        def said(row):
            return seen.own_tid(row[key]) if key.endswith("tid") else row[key]

        right = sum(row["duration_ns"] for row in rows if said(row) == value)
        if right * 100 < total * 99:
            problems.append(f"{key} is {sorted({str(said(row)) for row in rows})}, must be {value}")
    return problems


def wait(claim, seen):
    """One row of `waits`, as long as the thread was off its CPU."""
    rows = within(seen.of_thread("waits", claim), claim)
    right = [row for row in rows if row["state"] == claim["state"]]
    reported = sum(row["duration_ns"] for row in right)
    error, problems = judge_length(reported, claim["ns"])
    if len(right) != 1:
        problems.append("%d rows instead of 1; seen: %s" % (len(right), milliseconds(rows)))
    problems += culprit_problems(right, claim["culprit"], seen)
    return [verdict(claim, claim["state"], claim["ns"], reported, error, problems, describe(claim["culprit"]))]


def gil_wait(claim, seen):
    """Rows of `gil_wait`, with the holder; a run queue's delay may lie within a wait or between two."""
    rows = within(seen.of_thread("gil_wait", claim), claim)
    reported = sum(row["duration_ns"] for row in rows)
    error, problems = judge_length(reported, claim["ns"], claim["ns_max"])
    problems += culprit_problems(rows, claim["culprit"], seen)
    if claim["in_gc"]:
        _, late = judge_length(sum(row["gc_ns"] for row in rows), claim["ns"], claim["ns_max"])
        problems += ["gc_ns " + problem for problem in late]
    elif any(row["gc_ns"] for row in rows):
        problems.append("gc_ns is not 0, but nobody collected")
    return [verdict(claim, "gil_wait row", claim["ns"], reported, error, problems, describe(claim["culprit"]))]


def gc_pause(claim, seen):
    rows = within(seen.of_thread("gc_pause", claim), claim)
    reported = sum(row["duration_ns"] for row in rows)
    error, problems = judge_length(reported, claim["ns"])
    if len(rows) != 1:
        problems.append("%d rows instead of 1" % len(rows))
    said = []
    for row in rows:
        for key in ("generation", "collected"):
            said.append("{} {}".format(key, row[key] if row[key] >= 0 else "unknown"))
            if row[key] not in (claim[key], -1):
                problems.append("%s is %d, must be %d" % (key, row[key], claim[key]))
        said.append(row["rung"])
    return [verdict(claim, "gc_pause row", claim["ns"], reported, error, problems, ", ".join(said))]


def cell(claim, seen):
    """A state's cell over the whole life of a thread that was in that state for this only."""
    rows = seen.of_thread("thread_states", claim)
    reported = sum(row[state + "_ns"] for row in rows for state in claim["states"])
    error, problems = judge_length(reported, claim["ns"])
    if problems:
        problems.append("seen: " + ", ".join(f"{state} {ns / 1e6:.1f} ms" for state, ns in seen.cells(rows)))
    return [verdict(claim, "+".join(claim["states"]) + " cell", claim["ns"], reported, error, problems)]


def life(claim, seen):
    """The ledger of a thread covers its life, without a hole, and `other` stays tiny."""
    rows = sorted(seen.of_thread("thread_states", claim), key=lambda row: row["start"])
    reported = sum(row["duration_ns"] for row in rows)
    error, problems = judge_length(reported, claim["ns"], claim["ns_max"])
    for before, after in zip(rows, rows[1:]):
        gap = after["start"] - before["start"] - before["duration_ns"]
        if abs(gap) > 1000:
            problems.append("a hole of %.3f ms between two rows" % (gap / 1e6))
    other = sum(row["other_ns"] for row in rows)
    if other * 100 > reported:
        problems.append("other is %.3f ms, more than 1 %%" % (other / 1e6))
    if any(row["thread"] != claim["thread"] for row in rows):
        problems.append("thread is called {}".format(sorted({row["thread"] for row in rows})))
    clocks = claim["clocks"]
    early = claim["ns_max"] - claim["ns"]  # before the thread's first own line, in whatever state
    for label, states, ns in (
        ("on a CPU", ("running", "gc_run"), clocks["cpu"]),
        ("waiting for a CPU", ("runnable", "throttled"), clocks["delay"]),
    ):
        got = sum(row[state + "_ns"] for row in rows for state in states)
        _, wrong = judge_length(got, ns, ns + early)
        problems += [f"{label}: {each} (kernel {ns / 1e6:.3f} ms, reported {got / 1e6:.3f} ms)" for each in wrong]
    return [verdict(claim, "all cells", claim["ns"], reported, error, problems)]


def peer(claim, seen):
    rows = [row for row in within(seen.of_thread("waits", claim), claim) if row["state"] == claim["state"]]
    problems = [] if rows else ["no {} wait".format(claim["state"])]
    problems += culprit_problems(rows, {"peer": claim["peer"]}, seen)
    total = sum(row["duration_ns"] for row in rows)
    return [verdict(claim, claim["state"], total, total, 0, problems, "peer " + claim["peer"])]


def holders(claim, seen):
    """For nine tenths of the time in a run queue, one of the rivals ran instead (anybody may run for the rest)."""
    rows = [row for row in within(seen.of_thread("waits", claim), claim) if row["state"] == claim["state"]]
    total = sum(row["duration_ns"] for row in rows)
    right = sum(row["duration_ns"] for row in rows if seen.own_tid(row["holder_tid"]) in claim["any_of"])
    problems = [] if rows else ["no {} wait".format(claim["state"])]
    if right * 10 < total * 9:
        problems.append(
            "the rivals {} are blamed for {:.0f} % only".format(claim["any_of"], 100 * right / max(total, 1))
        )
    return [verdict(claim, claim["state"] + " rows", total, right, 0, problems, "holder: a rival")]
