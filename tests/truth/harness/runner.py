"""Plays the cases of one interpreter, under one `underspan run` or alone, and judges them."""

import collections
import json
import os
import pathlib
import subprocess
import sys

from . import checks, requests
from .cases import source
from .seen import TABLES, Seen
from .underspan import Unusable
from .verdict import Verdict, ms, statement

DRIVER = pathlib.Path(__file__).with_name("driver.py")
DRIVER_STATUS = 42
CHECKS = {
    "wait": checks.wait,
    "cell": checks.cell,
    "crowd": checks.crowd,
    "life": checks.life,
    "gil_wait": checks.gil_wait,
    "gc_pause": checks.gc_pause,
    "peer": checks.peer,
    "holders": checks.holders,
    "request": requests.request,
    "no_request": requests.no_request,
    "no_finding": requests.no_finding,
}
LOST = """
    SELECT tracker, reason, toUInt32(sum(count)) AS lost FROM lost_events
    GROUP BY tracker, reason HAVING lost > 0
"""

Line = collections.namedtuple("Line", "case python verdict")
# done: when it ran and how it ended, as the driver wrote it down.
Played = collections.namedtuple("Played", "name log done claims")


def compile_c(path, folder):
    binary = os.path.join(folder, path.stem)
    subprocess.run(["cc", "-O2", "-pthread", str(path), "-o", binary], check=True)
    return binary


def plan(cases, interpreter, folder):
    for case in cases:
        path = source(case)
        argv = [interpreter.path, str(path)] if path.suffix == ".py" else [compile_c(path, folder)]
        place = os.path.join(folder, case.name)
        yield {"case": case.name, "argv": argv, "claims": place + ".claims", "log": place + ".log"}


def play(cases, interpreter, folder, run):
    """Has `run` run the driver with a plan. Returns the exit status and what was played."""
    steps = list(plan(cases, interpreter, folder))
    plan_path, done_path = os.path.join(folder, "plan.json"), os.path.join(folder, "done.json")
    with open(plan_path, "w") as out:
        json.dump(steps, out)
    status = run([sys.executable, str(DRIVER), plan_path, done_path])
    if not os.path.exists(done_path):
        raise Unusable(f"the workloads did not run to their end (status {status}); see {folder}")
    played = []
    with open(done_path) as text:
        for step, done in zip(steps, json.load(text)):
            claims = []
            if os.path.exists(step["claims"]):
                with open(step["claims"]) as lines:
                    claims = [dict(json.loads(line), case=done) for line in lines]
            played.append(Played(step["case"], step["log"], done, claims))
    return status, played


def workload_ended_well(each):
    problems = []
    if each.done["status"] != 0:
        with open(each.log) as log:
            last = (log.read().strip().splitlines() or ["no message"])[-1]
        problems.append(f"the workload failed ({each.done['status']}): {last}; see {each.log}")
    elif not each.claims:
        problems.append("the workload claimed nothing")
    return statement("the workload ran to its end", problems)


def judge(cases, interpreter, folder, underspan):
    """Every line of the table for one interpreter."""
    status, played = play(cases, interpreter, folder, underspan.run)
    seen = Seen({name: underspan.table(name) for name in TABLES}, underspan.explain)
    wrong = [] if status == DRIVER_STATUS else [f"it is {status} instead of {DRIVER_STATUS}"]
    lost = [f"{row['lost']} of {row['tracker']}: {row['reason']}" for row in underspan.rows(LOST)]
    lines = [
        Line("run", interpreter.name, statement("exit status is the command's", wrong)),
        Line("run", interpreter.name, statement("no event was lost", lost)),
    ]
    for each in played:
        found = [workload_ended_well(each)]
        for claim in each.claims:
            found += CHECKS[claim["kind"]](claim, seen)
        found += requests.sums(each.done, seen)
        lines += [Line(each.name, interpreter.name, verdict) for verdict in found]
    return lines


def injection(claim):
    """Did a workload inject what it is for?"""
    ns = claim.get("ns", sum(claim.get("spans", {}).values()))
    floor = claim.get("at_least", 0)
    problems = [f"it injected {ms(ns)} ms instead of {ms(floor)}"] if ns < floor else []
    what = claim.get("label", claim.get("path"))
    return Verdict(what, claim.get("thread", ""), claim["kind"], ns, 0, 0, "", problems)


def rehearse(cases, interpreter, folder):
    """The workloads without Underspan."""
    _, played = play(cases, interpreter, folder, subprocess.call)
    return [
        Line(each.name, interpreter.name, verdict)
        for each in played
        for verdict in [workload_ended_well(each), *map(injection, each.claims)]
    ]
