"""Claims about requests: the window's spans, what was said on the wire, and the handler's ledger."""

from .checks import MARGIN_NS
from .verdict import Verdict, judge_length

SPANS = ("accept_queue_ns", "handoff_ns", "handler_ns", "accept_to_read_ns")
EXACT_NS = 1000


def request(claim, seen):
    rows = [row for row in seen.of_process("requests", claim) if row["path"] == claim["path"]]
    injected = sum(claim["spans"][span] for span in SPANS[:3])
    if len(rows) != 1:
        paths = sorted(row["path"] for row in seen.of_process("requests", claim))
        return [
            Verdict(
                claim["path"],
                claim["same"]["thread"],
                "request",
                injected,
                0,
                -injected,
                "",
                ["%d rows instead of 1; paths seen: %s" % (len(rows), paths)],
            )
        ]
    row, problems = rows[0], []
    worst = 0
    for span in SPANS:
        error, wrong = judge_length(row[span], claim["spans"][span])
        worst = error if abs(error) > abs(worst) else worst
        problems += [
            "{} {:.3f} ms, must be {:.3f} ms: {}".format(span, row[span] / 1e6, claim["spans"][span] / 1e6, each)
            for each in wrong
        ]
    for key, value in claim["same"].items():
        if row[key] != value:
            problems.append(f"{key} is {row[key]!r}, must be {value!r}")
    for key in ("tid", "sent_tid"):
        if claim[key] and seen.own_tid(row[key]) != claim[key]:
            problems.append("%s is %d, must be %d" % (key, seen.own_tid(row[key]), claim[key]))
    for state, ns in claim["cells"].items():
        _, wrong = judge_length(row[state + "_ns"], ns)
        problems += [
            "{}_ns {:.3f} ms, must be {:.3f} ms: {}".format(state, row[state + "_ns"] / 1e6, ns / 1e6, each)
            for each in wrong
        ]
    longest = max(SPANS[:3], key=lambda span: claim["spans"][span])
    return [
        Verdict(
            claim["path"],
            row["thread"],
            f"request, mostly {longest[:-3]}",
            injected,
            row["duration_ns"],
            worst,
            "",
            problems,
        )
    ]


def no_request(claim, seen):
    rows = seen.of_process("requests", claim)
    rows = [row for row in rows if row["thread"] == claim["thread"]]
    problems = ["%d rows, must be none" % len(rows)] if rows else []
    return [
        Verdict(
            claim["label"], claim["thread"], "no request", 0, sum(row["duration_ns"] for row in rows), 0, "", problems
        )
    ]


def no_finding(claim, seen):
    """`underspan explain` has nothing to say about requests with which nothing is wrong."""
    rows = [row for row in seen.of_process("requests", claim) if row["path"].startswith(claim["path"])]
    problems = []
    if len(rows) != claim["requests"]:
        problems.append("%d requests seen of %d" % (len(rows), claim["requests"]))
    for row in rows:
        findings = seen.explain(row["request_id"])["findings"]
        if findings:
            problems.append("{} ({:.1f} ms): {}".format(row["path"], row["duration_ns"] / 1e6, findings))
    return [Verdict(claim["label"], "", "no finding", 0, 0, 0, "", problems)]


def sums(case, seen):
    """Holds for every row of a case, claimed or not: cells sum to what they split, and `other` is tiny."""
    problems, worst = [], 0
    for row in seen.of_case("requests", case):
        phases = row["duration_ns"] - row["accept_queue_ns"] - row["handoff_ns"] - row["handler_ns"]
        cells = row["handler_ns"] - sum(ns for _, ns in seen.cells([row]))
        worst = max(worst, abs(phases), abs(cells))
        if phases:
            problems.append("%s: the three phases miss the duration by %d ns" % (row["path"], phases))
        if abs(cells) > EXACT_NS:
            problems.append("%s: the cells miss the handler by %d ns" % (row["path"], cells))
    states = seen.of_case("thread_states", case)
    for row in states:
        cells = row["duration_ns"] - sum(ns for _, ns in seen.cells([row]))
        worst = max(worst, abs(cells))
        if cells:
            problems.append("thread %s: the cells miss the row by %d ns" % (row["thread"], cells))
    wall, other = sum(row["duration_ns"] for row in states), sum(row["other_ns"] for row in states)
    if not states:
        problems.append("no row in thread_states")
    if other * 100 > wall:
        by_thread = sorted(((row["other_ns"], row["thread"]) for row in states if row["other_ns"]), reverse=True)
        problems.append(f"other is {other / 1e6:.3f} of {wall / 1e6:.3f} ms; most in {by_thread[:3]}")
    return [
        Verdict(
            "every row of the case",
            "",
            "cells sum",
            wall,
            wall - worst,
            worst,
            "other %.2f %%" % (100 * other / max(wall, 1)),
            problems[:5],
        )
    ]


__all__ = ["request", "no_request", "no_finding", "sums", "MARGIN_NS"]
