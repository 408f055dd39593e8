"""Runs the workloads of a plan one after another. This is the command that `underspan run` watches.

The plan is a list of {"case", "argv", "claims", "log"}; the driver writes down when each ran and how it ended.
"""

import json
import os
import subprocess
import sys
import time

TIME_LIMIT_S = 90


def play(step):
    begin = time.time_ns()
    with open(step["log"], "wb") as log:
        process = subprocess.Popen(
            step["argv"],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, TRUTH_CLAIMS=step["claims"]),
        )
        try:
            status = process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = "ran longer than %d s" % TIME_LIMIT_S
    return {"case": step["case"], "pid": process.pid, "status": status, "start": begin, "end": time.time_ns()}


def main(plan_path, done_path):
    with open(plan_path) as plan:
        done = [play(step) for step in json.load(plan)]
    with open(done_path, "w") as out:
        json.dump(done, out)
    # Not 0 or 1, so that the harness can tell that `underspan run` passes on its command's own status.
    return 42


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
