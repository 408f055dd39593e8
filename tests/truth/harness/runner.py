"""Plays the cases of one interpreter, under one `underspan run` or alone, and judges them."""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from . import checks, driver, loops, patterns, requests, stacks
from .cases import CASES, WORKLOADS, source
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
    "stack": stacks.stack,
    "first_stack": stacks.first_stack,
    "stall": loops.stall,
    "patterns": patterns.patterns,
}

ATTEMPTS = 3

# attempt: which try this was.
Line = collections.namedtuple("Line", "case python verdict attempt", defaults=(1,))
# done: when it ran and how it ended, as the driver wrote it down.
Played = collections.namedtuple("Played", "name log done claims")


COMPILERS = {
    ".c": ["cc", "-O2", "-pthread", "-fomit-frame-pointer"],
    ".rs": ["rustc", "--edition=2021", "-O", "-Cforce-frame-pointers=no"],
    ".go": ["go", "build"],
}


def compiled(path, folder, *flags):
    """A program, or what `flags` make of it, beside the claims."""
    binary = os.path.join(folder, path.stem)
    command = [*COMPILERS[path.suffix], *flags, "-o", binary, str(path)]
    # Where Go's own installer puts it.
    search = os.environ.get("PATH", "") + ":/usr/local/go/bin"
    found = shutil.which(command[0], path=search)
    if found is None:
        raise Unusable(f"no `{command[0]}`: {path.name} cannot be compiled; run `make setup`")
    command[0] = found
    subprocess.run(command, check=True, env=dict(os.environ, CGO_ENABLED="0"))
    return binary


def plan(cases, interpreter, folder):
    for case in cases:
        path = source(case)
        argv = [interpreter.path, str(path)] if path.suffix == ".py" else [compiled(path, folder)]
        if case.needs:
            argv.append(compiled(WORKLOADS / case.needs, folder, "-shared", "-fPIC"))
        place = os.path.join(folder, case.name)
        yield {"case": case.name, "argv": argv, "claims": place + ".claims", "log": place + ".log"}


def play(steps, folder, run):
    """Has `run` run the driver with a plan. Returns the exit status and what was played."""
    plan_path, done_path = os.path.join(folder, "plan.json"), os.path.join(folder, "done.json")
    with open(plan_path, "w") as out:
        json.dump(steps, out)
    status = run([sys.executable, str(DRIVER), plan_path, done_path])
    if not os.path.exists(done_path):
        raise Unusable(f"the workloads did not run to their end: status {status}")
    with open(done_path) as text:
        return status, [played(step, done) for step, done in zip(steps, json.load(text))]


def play_attached(step, underspan):
    """Starts a workload, has it watched, and only then lets it go on."""
    begin = time.time_ns()
    with open(step["log"], "wb") as log:
        environment = dict(os.environ, TRUTH_CLAIMS=step["claims"])
        process = subprocess.Popen(step["argv"], stdout=log, stderr=log, env=environment)
    try:
        wait_for(step["claims"] + ".ready", process)
        with underspan.attached(process.pid):
            open(step["claims"] + ".go", "w").close()
            status = process.wait(driver.TIME_LIMIT_S)
    finally:
        process.kill()
    end = time.time_ns()
    return played(step, {"driver": 0, "status": status, "start": begin, "end": end})


def wait_for(path, process):
    deadline = time.monotonic() + driver.TIME_LIMIT_S
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unusable(f"the workload did not come to the point where {path} is made")
        time.sleep(0.02)


def played(step, done):
    claims = []
    if os.path.exists(step["claims"]):
        with open(step["claims"]) as lines:
            claims = [dict(json.loads(line), case=done) for line in lines]
    return Played(step["case"], step["log"], done, claims)


def workload_ended_well(each):
    problems = []
    if each.done["status"] != 0:
        with open(each.log) as log:
            last = (log.read().strip().splitlines() or ["no message"])[-1]
        problems.append(f"the workload failed ({each.done['status']}): {last}; see {each.log}")
    elif not each.claims:
        problems.append("the workload claimed nothing")
    return statement("the workload ran to its end", problems)


def cut_short(underspan, untold):
    """Why stacks ended early, if too many did. A wait whose end the kernel did not tell has no
    stack that could be taken; and stacks through a library that was loaded since lack its table for
    about a tenth of a second, that is ten samples."""
    ends, programs = underspan.cut_short()
    samples, whole = sum(ends.values()), ends.pop("", 0)
    ends.pop("too_deep", 0)  # they are meant to be: each claim says so
    few = max(1, samples * stacks.CUT_SHORT / 100)
    allowed = {"missed": few + untold, "no_mapping": few + 10 * programs}
    early = {reason: count for reason, count in ends.items() if count > allowed.get(reason, few)}
    problems = [f"of {samples}, {early}; {whole} are whole"] if early else []
    without = underspan.without_stack()
    if without > few + untold:
        problems.append(f"{without} have none")
    return problems


def judge_once(cases, interpreter, folder, underspan):
    """Every line of the table for one interpreter."""
    os.makedirs(folder)
    underspan.begin()
    steps = list(plan([case for case in cases if not case.attach], interpreter, folder))
    try:
        status, all_played = play(steps, folder, underspan.run) if steps else (DRIVER_STATUS, [])
    except Unusable as error:
        raise Unusable(f"{error}; underspan said: {underspan.last_words()}") from error
    for step in plan([case for case in cases if case.attach], interpreter, folder):
        all_played.append(play_attached(step, underspan))
    underspan.deliver()
    tables = {name: underspan.table(name) for name in TABLES}
    stacks_seen = underspan.table("stacks") if any(case.part == "stacks" for case in cases) else ()
    untold = underspan.untold()
    seen = Seen(tables, underspan.explain, stacks_seen, underspan.flame, untold)
    wrong = [] if status == DRIVER_STATUS else [f"it is {status} instead of {DRIVER_STATUS}"]
    lost = [f"{row['count']} of {row['tracker']}: {row['reason']}" for row in underspan.lost()]
    yield "run", statement("exit status is the command's", wrong)
    yield "run", statement("no event was lost", lost)
    untold_times = sum(int(row["count"]) for row in untold)
    yield "run", statement("stacks are whole", cut_short(underspan, untold_times))
    for each in all_played:
        yield each.name, workload_ended_well(each)
        for claim in each.claims:
            for verdict in CHECKS[claim["kind"]](claim, seen):
                yield each.name, verdict
        for verdict in requests.sums(each.done, seen):
            yield each.name, verdict


def judge(cases, interpreter, folder, underspan):
    """Plays a case again that was wrong: what else the machine does makes the truth uncertain, but
    an error of Underspan's stays. The table says which try it shows."""
    lines = []
    for attempt in range(1, ATTEMPTS + 1):
        place = os.path.join(folder, str(attempt))
        found = [
            Line(name, interpreter.name, verdict, attempt)
            for name, verdict in judge_once(cases, interpreter, place, underspan)
        ]
        again = {line.case for line in found if not line.verdict.ok} - {"run"}
        if attempt == ATTEMPTS:
            again = set()
        for line in found:
            if line.case in again and not line.verdict.ok:
                state = getattr(line.verdict, "state", "stack")
                about = f"{line.case}, {line.python}: {line.verdict.what} ({state})"
                print(f"played again: {about}: {'; '.join(line.verdict.problems)}", flush=True)
        lines += [line for line in found if line.case not in again]
        cases = [case for case in cases if case.name in again]
        if not cases:
            break
    order = [case.name for case in CASES]
    return sorted(lines, key=lambda line: order.index(line.case) if line.case in order else -1)


def injection(claim):
    """Did a workload inject what it is for?"""
    spans = sum(low for low, _ in claim.get("spans", {}).values())
    ns = claim.get("ns", spans + sum(tree["ns"] for tree in claim.get("trees", ())))
    floor = claim.get("at_least", 0)
    problems = [f"it injected {ms(ns)} ms instead of {ms(floor)}"] if ns < floor else []
    what = claim.get("label", claim.get("path"))
    return Verdict(what, claim.get("thread", ""), claim["kind"], ns, 0, 0, "", problems)


def rehearse(cases, interpreter, folder):
    """The workloads without Underspan."""
    os.makedirs(folder)
    steps = list(plan(cases, interpreter, folder))
    for step in steps:
        open(step["claims"] + ".go", "w").close()  # nobody will attach
    _, all_played = play(steps, folder, subprocess.call)
    return [
        Line(each.name, interpreter.name, verdict)
        for each in all_played
        for verdict in [workload_ended_well(each), *map(injection, each.claims)]
    ]
