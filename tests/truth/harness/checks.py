"""What a claim means: one pure function per kind. A claim and rows go in, a verdict comes out."""

from .verdict import STRICT_NS, Verdict, judge, ms

MARGIN_NS = 1_000_000
SWITCH_NS = 100_000
NAMED_AFTER_NS = 300_000_000


def total(rows):
    return sum(row["duration_ns"] for row in rows)


def within(rows, claim):
    """Rows that lie in the claim's own time."""
    begin, end = claim["start"] - MARGIN_NS, claim["end"] + MARGIN_NS
    return [
        row for row in rows if begin <= row["start"] and row["start"] + row["duration_ns"] <= end
    ]


def verdict(claim, state, injected, reported, error, problems, culprit=""):
    floor = claim.get("at_least", 0)
    if injected < floor:
        little = f"the workload injected {ms(injected)} ms instead of {ms(floor)}: run it again"
        problems = [*problems, little]
    return Verdict(
        claim["label"], claim["thread"], state, injected, reported, error, culprit, problems
    )


def describe(culprit):
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in sorted(culprit.items()))


def blame(rows, expected, seen):
    """The culprit must be right for 99 % of the time: one wrong short slice blames nobody."""

    def said(row, key):
        return seen.own_tid(row[key]) if key.endswith("tid") else row[key]

    problems = []
    for key, value in expected.items():
        right = total(row for row in rows if said(row, key) == value)
        if right * 100 < total(rows) * 99:
            instead = sorted({str(said(row, key)) for row in rows})
            problems.append(f"{key} is {', '.join(instead)}, must be {value}")
    return problems


def wait(claim, seen):
    """One row of `waits`: blocked as long as the kernel says, then perhaps waiting for a CPU."""
    rows = within(seen.of_thread("waits", claim), claim)
    right = [row for row in rows if row["state"] == claim["state"]]
    reported = total(right) - sum(row["runnable_ns"] for row in right)
    error, problems = judge(reported, claim["ns"])
    whole = judge(total(right), claim["ns"], claim["ns"] + claim["delay"])[1]
    problems += ["with its run queue time: " + problem for problem in whole]
    if len(right) != 1:
        instead = ", ".join(f"{row['state']} {ms(row['duration_ns'])} ms" for row in rows)
        problems.append(f"{len(right)} rows instead of 1; seen: {instead or 'nothing'}")
    problems += blame(right, claim["culprit"], seen)
    culprit = describe(claim["culprit"])
    return [verdict(claim, claim["state"], claim["ns"], reported, error, problems, culprit)]


def gil_wait(claim, seen):
    """Rows of `gil_wait`; a run queue's delay may lie within a wait or between two."""
    rows = within(seen.of_thread("gil_wait", claim), claim)
    error, problems = judge(total(rows), claim["ns"], claim["ns_max"])
    problems += blame(rows, claim["culprit"], seen)
    collected = sum(row["gc_ns"] for row in rows)
    truth = (claim["ns"], claim["ns_max"]) if claim["in_gc"] else (0, 0)
    problems += ["gc_ns: " + problem for problem in judge(collected, *truth)[1]]
    culprit = describe(claim["culprit"])
    return [verdict(claim, "gil_wait row", claim["ns"], total(rows), error, problems, culprit)]


def gc_pause(claim, seen):
    """One row, with what was collected where the rung can tell (-1 where not)."""
    rows = within(seen.of_thread("gc_pause", claim), claim)
    error, problems = judge(total(rows), claim["ns"], claim["ns_max"])
    if len(rows) != 1:
        problems.append(f"{len(rows)} rows instead of 1")
    said = []
    for row in rows:
        for key in ("generation", "collected"):
            said.append(f"{key} {row[key] if row[key] >= 0 else 'unknown'}")
            if row[key] not in (claim[key], -1):
                problems.append(f"{key} is {row[key]}, must be {claim[key]}")
        said.append(row["rung"])
    culprit = ", ".join(said)
    return [verdict(claim, "gc_pause row", claim["ns"], total(rows), error, problems, culprit)]


def cell(claim, seen):
    """A state's cell over the life of a thread that was in that state for this only."""
    rows = seen.of_thread("thread_states", claim)
    reported = sum(row[state + "_ns"] for row in rows for state in claim["states"])
    error, problems = judge(reported, claim["ns"], claim.get("ns_max"))
    if problems:
        problems.append("seen: " + ", ".join(f"{state} {ms(ns)}" for state, ns in seen.cells(rows)))
    state = "+".join(claim["states"]) + " cell"
    return [verdict(claim, state, claim["ns"], reported, error, problems)]


def crowd(claim, seen):
    """Cells over many threads: none of them is missing."""
    rows = [
        row for row in seen.of_process("thread_states", claim) if row["ns_tid"] in claim["tids"]
    ]
    reported = sum(row[state + "_ns"] for row in rows for state in claim["states"])
    error, problems = judge(reported, claim["ns"], claim["ns_max"])
    missing = set(claim["tids"]) - {row["ns_tid"] for row in rows}
    if missing:
        problems.append(f"{len(missing)} of {len(claim['tids'])} threads have no row")
    state = "+".join(claim["states"]) + " cells"
    return [verdict(claim, state, claim["ns"], reported, error, problems)]


def cpu_accounts(claim):
    """Time on and waiting for a CPU, where the kernel knows it to a millisecond: its accounts lag
    at a switch, by 5 us as a rule, by up to 100 us if a wake-up had asked for the switch."""
    if claim["slices"] * SWITCH_NS <= STRICT_NS:
        yield "on a CPU", ("running", "gc_run"), claim["cpu"]
        yield "waiting for a CPU", ("runnable", "throttled"), claim["delay"]


def misnamed(rows, claim):
    """A thread is known by its name soon after its birth; until then, by its process's."""
    problems = []
    for row in rows:
        names = {claim["thread"]}
        if row["start"] + row["duration_ns"] < claim["start"] + NAMED_AFTER_NS:
            names.add(row["process"])
        if row["thread"] not in names:
            problems.append(
                f"the thread is called {row['thread']!r} in {ms(row['duration_ns'])} ms"
            )
    return problems


def life(claim, seen):
    """The ledger of a thread covers its life without a hole, as the kernel accounts for it."""
    rows = sorted(seen.of_thread("thread_states", claim), key=lambda row: row["start"])
    reported = total(rows)
    error, problems = judge(reported, claim["ns"], claim["ns_max"])
    for before, after in zip(rows, rows[1:]):
        gap = after["start"] - before["start"] - before["duration_ns"]
        if abs(gap) > 1000:
            problems.append(f"a hole of {ms(gap)} ms between two rows")
    other = sum(row["other_ns"] for row in rows)
    if other * 100 > reported:
        problems.append(f"other is {ms(other)} ms, more than 1 %")
    problems += misnamed(rows, claim)
    early = claim["ns_max"] - claim["ns"]  # before the thread's first own line, in whatever state
    for label, states, ns in cpu_accounts(claim):
        got = sum(row[state + "_ns"] for row in rows for state in states)
        problems += [f"{label}: {each}" for each in judge(got, ns, ns + early)[1]]
    return [verdict(claim, "all cells", claim["ns"], reported, error, problems)]


def peer(claim, seen):
    """Every wait of that state names the peer."""
    rows = within(seen.of_thread("waits", claim), claim)
    rows = [row for row in rows if row["state"] == claim["state"]]
    problems = [] if rows else [f"no {claim['state']} wait"]
    problems += blame(rows, {"peer": claim["peer"]}, seen)
    culprit = "peer " + claim["peer"]
    return [verdict(claim, claim["state"], total(rows), total(rows), 0, problems, culprit)]


def holders(claim, seen):
    """For nine tenths of the time in the run queue, a rival had the CPU."""
    rows = within(seen.of_thread("waits", claim), claim)
    rows = [row for row in rows if row["state"] == claim["state"]]
    right = total(row for row in rows if seen.own_tid(row["holder_tid"]) in claim["any_of"])
    problems = [] if rows else [f"no {claim['state']} wait"]
    if right * 10 < total(rows) * 9:
        share = 100 * right / max(total(rows), 1)
        problems.append(f"the rivals {claim['any_of']} are blamed for {share:.0f} % only")
    return [verdict(claim, "runnable rows", total(rows), right, 0, problems, "holder: a rival")]
