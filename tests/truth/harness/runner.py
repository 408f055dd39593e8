"""Plays the cases of one interpreter under one `underspan run`, then judges their claims."""

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
from .verdict import Verdict

DRIVER = pathlib.Path(__file__).with_name("driver.py")
DRIVER_STATUS = 42
CHECKS = {
    "wait": checks.wait,
    "cell": checks.cell,
    "life": checks.life,
    "gil_wait": checks.gil_wait,
    "gc_pause": checks.gc_pause,
    "peer": checks.peer,
    "holders": checks.holders,
    "request": requests.request,
    "no_request": requests.no_request,
    "no_finding": requests.no_finding,
}

Line = collections.namedtuple("Line", "case python verdict")


def compile_c(path, folder):
    binary = os.path.join(folder, path.stem)
    subprocess.run(["cc", "-O2", "-pthread", str(path), "-o", binary], check=True)
    return binary


def plan(cases, interpreter, folder):
    steps = []
    for case in cases:
        path = source(case)
        argv = [compile_c(path, folder)] if path.suffix == ".c" else [interpreter.path, str(path)]
        steps.append(
            {
                "case": case.name,
                "argv": argv,
                "claims": os.path.join(folder, case.name + ".claims"),
                "log": os.path.join(folder, case.name + ".log"),
            }
        )
    return steps


def claims_of(step, done):
    if not os.path.exists(step["claims"]):
        return []
    with open(step["claims"]) as lines:
        return [dict(json.loads(line), case=done) for line in lines]


def play(cases, interpreter, folder, underspan):
    """Runs the cases; without `underspan`, the workloads run by themselves. Returns each step, its end, its claims."""
    steps = plan(cases, interpreter, folder)
    plan_path, done_path = os.path.join(folder, "plan.json"), os.path.join(folder, "done.json")
    with open(plan_path, "w") as out:
        json.dump(steps, out)
    command = [sys.executable, str(DRIVER), plan_path, done_path]
    if underspan is None:
        status = subprocess.run(command).returncode
    else:
        status = underspan.run(command, time_limit=100 * len(steps) + 60)
    if not os.path.exists(done_path):
        raise Unusable(
            "`underspan run` ended with status %d before its command did; see %s"
            % (status, underspan.log if underspan else "above")
        )
    with open(done_path) as text:
        done = json.load(text)
    failed = (
        []
        if status == DRIVER_STATUS
        else ["`underspan run` ended with %d, its command with %d" % (status, DRIVER_STATUS)]
    )
    return [(step, end, claims_of(step, end)) for step, end in zip(steps, done)], failed


def whole_run(problem_list, what):
    return Verdict(what, "", "", 0, 0, 0, "", problem_list)


def workload_problems(step, end):
    if end["status"] == 0:
        return []
    with open(step["log"]) as log:
        last = log.read().strip().splitlines()[-1:] or [""]
    return ["the workload failed (status {}): {}; see {}".format(end["status"], last[0], step["log"])]


def judge(cases, interpreter, folder, underspan):
    """Every line of the table for one interpreter."""
    played, failed = play(cases, interpreter, folder, underspan)
    lines = [Line("run", interpreter.name, whole_run(failed, "exit status is the command's"))]
    seen = Seen({name: underspan.table(name) for name in TABLES}, underspan.explain)
    for step, end, claims in played:
        found = [whole_run(workload_problems(step, end), "workload")] if end["status"] else []
        for claim in claims:
            found += CHECKS[claim["kind"]](claim, seen)
        found += requests.sums(end, seen)
        lines += [Line(step["case"], interpreter.name, each) for each in found]
    lost = underspan.rows("SELECT tracker, reason, sum(count) AS lost FROM lost_events GROUP BY tracker, reason")
    lines.append(
        Line("run", interpreter.name, whole_run([str(row) for row in lost if int(row["lost"])], "no lost events"))
    )
    return lines


def rehearse(cases, interpreter, folder):
    """The workloads without Underspan: did each inject what it is for?"""
    played, _ = play(cases, interpreter, folder, None)
    lines = []
    for step, end, claims in played:
        lines.append(Line(step["case"], interpreter.name, whole_run(workload_problems(step, end), "workload")))
        for claim in claims:
            ns = claim.get("ns", sum(claim.get("spans", {}).values()))
            short = ns < claim.get("at_least", 0)
            problems = ["injected only %.3f ms" % (ns / 1e6)] if short else []
            lines.append(
                Line(
                    step["case"],
                    interpreter.name,
                    Verdict(
                        claim.get("label", claim.get("path")),
                        claim.get("thread", ""),
                        claim["kind"],
                        ns,
                        0,
                        0,
                        "",
                        problems,
                    ),
                )
            )
    return lines
