"""Runs the workload under the agent, and compares. Prints one JSON object a line."""

import collections
import json
import subprocess
import sys

MS = 1_000_000
HERE = __file__.rpartition("/")[0]
PYTHON = [sys.executable, "-I", "-S"]


def check(name, holds, detail):
    print(json.dumps({"check": name, "ok": bool(holds), "detail": str(detail)}), flush=True)


def observe(name):
    """What a workload says, and what the agent says of it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workload = subprocess.Popen([*PYTHON, f"{HERE}/{name}"], **pipes)
    agent = subprocess.Popen(["rows", str(workload.pid), "/tmp/spool"], **pipes)
    if json.loads(agent.stdout.readline() or "{}").get("table") != "ready":
        raise SystemExit(f"the agent did not start: status {agent.wait()}")
    said = []
    workload.stdin.write("go\n")
    workload.stdin.flush()
    for line in workload.stdout:
        said.append(json.loads(line))
        if said[-1]["case"] == "end":
            break
    workload.stdin.close()
    workload.wait()
    seen = collections.defaultdict(list)
    agent.stdin.close()
    for line in agent.stdout:
        row = json.loads(line)
        seen[row["table"]].append(row)
    if agent.wait():
        raise SystemExit(f"the agent failed: status {agent.returncode}")
    return said, seen


def ledger(row):
    states = (
        "running gc_run runnable throttled gil_wait gc_wait lock_wait net_read net_write "
        "net_connect poll_wait disk_io page_fault sleep pipe_ipc child_wait other"
    )
    return {state: row[f"{state}_ns"] for state in states.split()}


def check_sums(seen):
    """Every row's cells sum to its time, and a thread's rows follow each other without a gap."""
    threads = collections.defaultdict(list)
    wrong = 0
    for row in seen["thread_states"]:
        wrong += sum(ledger(row).values()) != row["duration_ns"]
        threads[row["pid"], row["tid"]].append(row)
    check("ledger sums", not wrong and threads, f"{len(seen['thread_states'])} rows, {wrong} wrong")
    gaps = 0
    for rows in threads.values():
        rows.sort(key=lambda row: row["start_time"])
        for before, after in zip(rows, rows[1:]):
            gap = after["start_time"] - before["start_time"] - before["duration_ns"]
            gaps += abs(gap) > 1000
    check("no gaps", not gaps, f"{len(threads)} threads, {gaps} gaps")
    other = sum(ledger(row)["other"] for row in seen["thread_states"])
    total = sum(row["duration_ns"] for row in seen["thread_states"])
    check("little other", other <= total / 100, f"{other / MS:.1f} of {total / MS:.0f} ms")


def during(rows, case):
    """The longest of a thread's waits that began and ended within a case."""
    begin, end = case["start"] - MS, case["end"] + MS
    inside = [
        row
        for row in rows
        if row["tid"] == case["tid"]
        and begin <= row["start_time"]
        and row["start_time"] + row["duration_ns"] <= end
    ]
    return max(inside, key=lambda row: row["duration_ns"], default=None)


def check_waits(said, seen):
    wanted = {
        "sleep": ("sleep", 200),
        "poll": ("poll_wait", 200),
        "lock": ("lock_wait", 200),
        "pipe": ("pipe_ipc", 200),
        "peer": ("net_read", 200),
        "child": ("child_wait", 1),
    }
    for name, (state, at_least) in wanted.items():
        case = said[name]
        row = during(seen["waits"], case)
        if row is None:
            check(f"wait {name}", False, "no row")
            continue
        slept = row["duration_ns"] - row["runnable_ns"]
        took = case["end"] - case["start"]
        detail = f"{row['state']} {slept / MS:.2f} of {took / MS:.2f} ms, waker {row['waker_tid']}"
        # The emulator may pause between a timer's start and the thread's leaving its CPU.
        right = row["state"] == state and at_least * 0.8 * MS <= slept <= took
        check(f"wait {name}", right, detail)
        # A timer wakes in an interrupt: whoever that interrupted had nothing to do with it.
        waker = 0 if name in ("sleep", "poll") else case.get("waker")
        if waker is not None:
            check(
                f"waker {name}", row["waker_tid"] == waker, f"{row['waker_tid']}, should be {waker}"
            )
    begin, end = said["busy"]["start"], said["busy"]["end"]
    rows = [row for row in seen["waits"] if row["tid"] == said["busy"]["tid"]]
    rows = [row for row in rows if begin <= row["start_time"] <= end and row["state"] == "sleep"]
    wakers = [row["waker_thread"] for row in rows if row["waker_tid"]]
    check("wakers busy", len(rows) >= 15 and not wakers, f"{len(rows)} sleeps, woken by {wakers}")
    row = during(seen["waits"], said["peer"])
    check("peer", row and row["peer"] == said["peer"]["peer"], row and row["peer"])


def check_python(said, seen):
    row = during(seen["gil_wait"], said["gil"])
    detail = row and f"{row['duration_ns'] / MS:.1f} ms, holder {row['holder_tid']}"
    check("gil", row and row["holder_tid"] == said["gil"]["holder"], detail or "no row")
    row = during(seen["gc_pause"], said["gc"])
    took = said["gc"]["end"] - said["gc"]["start"]
    detail = row and f"{row['rung']}, generation {row['generation']}, {row['duration_ns'] / MS:.1f}"
    right = row and row["generation"] == 2 and took * 0.9 <= row["duration_ns"] <= took
    check("gc", right, f"{detail or 'no row'} of {took / MS:.1f} ms")


def check_quota(case, seen):
    rows = [row for row in seen["thread_states"] if row["tid"] == case["child"]]
    cells = collections.Counter()
    for row in rows:
        cells.update(ledger(row))
    spare = sum(cells.values()) - cells["running"]
    detail = (
        f"{cells['throttled'] / MS:.1f} ms throttled, {cells['runnable'] / MS:.1f} runnable; "
        f"cgroup: {case['throttled'] / MS:.1f} ms in {case['periods']} periods"
    )
    near = abs(cells["throttled"] - case["throttled"]) <= 0.05 * case["throttled"] + 4 * MS
    check("quota", case["throttled"] > 100 * MS and near and spare > 0, detail)


def check_requests(cases, seen):
    rows = {row["path"]: row for row in seen["requests"]}
    for case in cases:
        name, row = f"request {case['path']}", rows.get(case["path"])
        if row is None:
            check(name, False, f"no row; there are {sorted(rows)}")
            continue
        problems = []

        def within(what, time, begin, end, problems=problems):
            if not begin - MS <= time <= end + MS:
                problems.append(f"{what} {(time - begin) / MS:.2f} not in {(end - begin) / MS:.2f}")

        phases = [row[name] for name in ("accept_queue_ns", "handoff_ns", "handler_ns")]
        ready = row["start_time"]
        accepted, read, sent = (ready + sum(phases[:n]) for n in (1, 2, 3))
        within("ready", ready, case["ask_from"], case["ask_to"])
        if "accept_to" in case:
            within("accepted", accepted, case["accept_from"], case["accept_to"])
        elif row["accept_queue_ns"] or row["conn_request"] != 1:
            problems.append(f"accepted for request {row['conn_request']} of its connection")
        within("read", read, case["read_from"], case["read_to"])
        within("sent", sent, case["sent_from"], case["sent_to"])
        if row["duration_ns"] != sum(phases):
            problems.append("phases do not sum")
        if sum(ledger(row).values()) != row["handler_ns"]:
            problems.append(f"ledger is {sum(ledger(row).values()) - row['handler_ns']} ns off")
        if not 80 * MS <= ledger(row)["sleep"] <= row["handler_ns"]:
            problems.append(f"sleep {ledger(row)['sleep'] / MS:.2f} ms")
        answer = (row["method"], row["status"], row["bytes_out"], row["tid"], row["sent_tid"])
        if answer != ("GET", 200, 40, case["tid"], case["tid"]):
            problems.append(f"{answer}")
        detail = " + ".join(f"{phase / MS:.2f}" for phase in phases) + " ms"
        check(name, not problems, "; ".join([detail, *problems]))


def check_stacks(seen):
    """Samples have whole stacks, but for a program's first moments, which are long here."""
    stacks = {row["stack_id"]: row for row in seen["stacks"]}
    for table in ("off_cpu", "on_cpu"):
        found = [stacks[row["stack_id"]] for row in seen[table] if row["stack_id"] in stacks]
        whole = sum(not stack["truncated"] for stack in found)
        python = sum("python" in stack["kinds"] for stack in found)
        detail = f"{len(seen[table])} samples, {whole} whole, {python} with Python"
        check(f"stacks of {table}", whole and python, detail)


def check_lost(seen):
    # How walks ended is told of with the stacks.
    lost = [
        (row["tracker"], row["reason"], row["count"])
        for row in seen["lost_events"]
        if row["tracker"] not in ("stack", "offcpu")
    ]
    check("nothing lost", not lost, lost)


def main():
    said, seen = observe("workload.py")
    cases = {case["case"]: case for case in said}
    check_sums(seen)
    check_waits(cases, seen)
    check_python(cases, seen)
    check_quota(cases["quota"], seen)
    check_requests([case for case in said if case["case"] == "request"], seen)
    check_stacks(seen)
    check_lost(seen)


if __name__ == "__main__":
    main()
