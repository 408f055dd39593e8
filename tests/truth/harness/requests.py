"""Claims about requests: the window's phases, what was said on the wire, the handler's ledger."""

from .verdict import Verdict, judge, ms, statement

PHASES = ("accept_queue_ns", "handoff_ns", "handler_ns")
EXACT_NS = 1000


def request(claim, seen):
    rows = [row for row in seen.of_process("requests", claim) if row["path"] == claim["path"]]
    injected = sum(claim["spans"][phase][0] for phase in PHASES)
    thread = claim["same"]["thread"]
    if len(rows) != 1:
        paths = sorted(row["path"] for row in seen.of_process("requests", claim))
        problem = f"{len(rows)} rows instead of 1; paths seen: {paths}"
        return [Verdict(claim["path"], thread, "request", injected, 0, -injected, "", [problem])]
    row = rows[0]
    worst, problems = 0, []
    for span, (low, high) in claim["spans"].items():
        error, wrong = judge(row[span], low, high)
        worst = max(worst, error, key=abs)
        problems += [f"{span}: {each}" for each in wrong]
    for state, ns in claim["cells"].items():
        problems += [
            f"{state}_ns must be {ms(ns)} ms: {each}" for each in judge(row[state + "_ns"], ns)[1]
        ]
    for key, value in claim["same"].items():
        if row[key] != value:
            problems.append(f"{key} is {row[key]!r}, must be {value!r}")
    for key in ("tid", "sent_tid"):
        if claim[key] and seen.own_tid(row[key]) != claim[key]:
            problems.append(f"{key} is {seen.own_tid(row[key])}, must be {claim[key]}")
    longest = max(PHASES, key=lambda phase: claim["spans"][phase])
    state = f"request, mostly {longest[:-3]}"
    return [
        Verdict(claim["path"], thread, state, injected, row["duration_ns"], worst, "", problems)
    ]


def no_request(claim, seen):
    """The thread served nobody."""
    rows = seen.of_thread("requests", claim)
    return [statement(claim["label"], [f"{len(rows)} rows, must be none"] if rows else [])]


def no_finding(claim, seen):
    """`underspan explain` has nothing to say about requests with which nothing is wrong."""
    rows = seen.of_process("requests", claim)
    rows = [row for row in rows if row["path"].startswith(claim["path"])]
    problems = []
    if len(rows) != claim["requests"]:
        problems.append(f"{len(rows)} requests seen of {claim['requests']}")
    for row in rows:
        findings = seen.explain(row["request_id"])["findings"]
        if findings:
            problems.append(f"{row['path']} ({ms(row['duration_ns'])} ms): {findings}")
    return [statement(claim["label"] + ": no finding", problems)]


def sums(case, seen):
    """True of every row, claimed or not: cells sum to what they split, `other` is tiny."""
    problems, worst = [], 0
    for row in seen.of_case("requests", case):
        phases = row["duration_ns"] - sum(row[phase] for phase in PHASES)
        cells = row["handler_ns"] - sum(ns for _, ns in seen.cells([row]))
        worst = max(worst, abs(phases), abs(cells))
        if phases:
            problems.append(f"{row['path']}: the phases miss the duration by {phases} ns")
        if abs(cells) > EXACT_NS:
            problems.append(f"{row['path']}: the cells miss the handler by {cells} ns")
    states = seen.of_case("thread_states", case)
    for row in states:
        cells = row["duration_ns"] - sum(ns for _, ns in seen.cells([row]))
        worst = max(worst, abs(cells))
        if cells:
            problems.append(f"thread {row['thread']}: the cells miss the row by {cells} ns")
    wall = sum(row["duration_ns"] for row in states)
    other = sum(row["other_ns"] for row in states)
    if not states:
        problems.append("no row in thread_states")
    if other * 100 > wall:
        most = sorted(((row["other_ns"], row["thread"]) for row in states), reverse=True)[:3]
        problems.append(f"other is {ms(other)} of {ms(wall)} ms; most in {most}")
    share = f"other {100 * other / max(wall, 1):.2f} %"
    return [
        Verdict("every row sums", "", "all cells", wall, wall - worst, worst, share, problems[:5])
    ]
