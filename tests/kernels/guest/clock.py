"""Has the machine's clock set while the whole agent watches (`steps.py`), and compares. Prints one
JSON object a line."""

import collections
import time

from smoke import MS, check, check_lost, ledger, observe

# So long after a step rows have the new time at the latest: the agent reads the clock ten times a
# second.
LATEST = 250 * MS


def check_times(seen, begin, end):
    """No duration is longer than all of it, or less than nothing. Nothing begins elsewhere."""
    longest, absurd = end - begin, []
    now = time.time_ns()
    for table, rows in seen.items():
        for row in rows:
            times = {name: value for name, value in row.items() if name.endswith("_ns")}
            absurd += [(table, *time) for time in times.items() if not 0 <= time[1] <= longest]
            if not now - longest - 2_000 * MS <= row.get("start_time", now) <= now + 2_000 * MS:
                absurd.append((table, "start_time", row["start_time"] - now))
    rows = sum(map(len, seen.values()))
    check("clock: times", rows and not absurd, f"{rows} rows, absurd: {absurd[:5]}")
    wrong = sum(sum(ledger(row).values()) != row["duration_ns"] for row in seen["thread_states"])
    check("clock: ledger sums", not wrong, f"{len(seen['thread_states'])} rows, {wrong} wrong")


def check_across(name, said, seen):
    """What was in the middle of something when the clock was set."""
    lengths = collections.defaultdict(list)
    for row in seen["waits"]:
        slept = row["duration_ns"] - row["runnable_ns"]
        lengths[row["tid"], row["state"]].append(slept / MS)
    for call, state in (("sleep", "sleep"), ("serve", "sleep"), ("ask", "net_read")):
        longest = max(lengths[said[f"{call}_tid"], state], default=0)
        # Nobody else wants a CPU, but one's turn may come late: at the end, or between a timer's
        # start and the thread's leaving its CPU: the other's turn may be ten milliseconds and more.
        check(f"clock {name}: {call}", 280 < longest < 320, f"{longest:.1f} of 300 ms")
    rows = [row for row in seen["requests"] if row["path"] == f"/{name}"]
    (row,) = rows if len(rows) == 1 else (None,)
    phases = ("accept_queue_ns", "handoff_ns", "handler_ns")
    right = row and row["duration_ns"] == sum(row[phase] for phase in phases)
    right = right and 290 * MS < row["handler_ns"] < 320 * MS
    check(f"clock {name}: request", right, row and [row[phase] / MS for phase in phases])


def check_afterwards(name, said, seen):
    """When rows began to have the new time. Each wait is found in it, or in the old one."""
    step, at = said["set", name]["by"], said["set", name]["start"]
    cases = said[f"after {name}"]
    sleeps = [row for row in seen["waits"] if row["state"] == "sleep"]
    rows = [row["start_time"] for row in sleeps if row["tid"] == cases[0]["tid"]]
    old, new = [], []
    for case in cases:
        for times, shift in ((new, 0), (old, step)):
            begin, end = case["start"] - shift - MS, case["end"] - shift
            times += [case["end"] - at for row in rows if begin <= row <= end]
    last = max(old, default=0)
    later = sum(time > LATEST for time in new)
    detail = f"{len(new)} in the new time, {len(old)} in the old, until {last / MS:.0f} ms after"
    # The emulator makes none of some sleeps.
    check(f"clock {name}: rows after", last <= LATEST and later >= 5, detail)


def main():
    begin = time.monotonic_ns()
    said, seen = observe("steps.py")
    end = time.monotonic_ns()
    cases = collections.defaultdict(list)
    for case in said:
        cases[case["case"]].append(case)

    check_times(seen, begin, end)
    for case in cases["set"]:
        name = case["name"]
        cases["set", name] = case
        check_across(name, case, seen)
        check_afterwards(name, cases, seen)
    check("clock: no stalls", not seen["tcp_loss"], seen["tcp_loss"][:2])
    check_lost(seen)


if __name__ == "__main__":
    main()
