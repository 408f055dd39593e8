"""The checks themselves: a right store passes, and each wrong one is caught. No root, no kernel."""

import copy
import pathlib
import tempfile
import unittest

from harness import checks, report, requests, stacks
from harness.runner import Line
from harness.seen import TABLES, Seen
from harness.stacks import StackVerdict
from harness.underspan import spooled
from harness.verdict import statement

CASE = {"start": 0, "end": 10_000_000_000, "driver": 1}
WAIT = {
    "label": "lock",
    "thread": "waiter",
    "pid": 10,
    "tid": 11,
    "case": CASE,
    "state": "lock_wait",
    "start": 1_000_000_000,
    "end": 1_210_000_000,
    "ns": 200_000_000,
    "delay": 100_000,
    "at_least": 150_000_000,
    "culprit": {"holder_tid": 12, "holder_thread": "holder"},
}
WAIT_ROW = {
    "ns_pid": 10,
    "ns_tid": 11,
    "tid": 111,
    "start": 1_005_000_000,
    "duration_ns": 200_100_000,
    "runnable_ns": 100_000,
    "state": "lock_wait",
    "holder_tid": 112,
    "holder_thread": "holder",
}
LIFE = {
    "label": "whole life",
    "thread": "waiter",
    "pid": 10,
    "tid": 11,
    "case": CASE,
    "start": 1_000_000_000,
    "ns": 300_000_000,
    "ns_max": 300_500_000,
    "cpu": 100_000_000,
    "delay": 0,
    "slices": 2,
}
LIFE_ROWS = [
    {
        "ns_pid": 10,
        "ns_tid": 11,
        "tid": 111,
        "thread": "waiter",
        "process": "python3",
        "start": 1_000_000_000,
        "duration_ns": 100_000_000,
        "running_ns": 100_000_000,
        "gc_run_ns": 0,
        "runnable_ns": 0,
        "throttled_ns": 0,
        "lock_wait_ns": 0,
        "other_ns": 0,
    },
    {
        "ns_pid": 10,
        "ns_tid": 11,
        "tid": 111,
        "thread": "waiter",
        "process": "python3",
        "start": 1_100_000_000,
        "duration_ns": 200_000_000,
        "running_ns": 0,
        "gc_run_ns": 0,
        "runnable_ns": 0,
        "throttled_ns": 0,
        "lock_wait_ns": 200_000_000,
        "other_ns": 0,
    },
]
OTHER_THREAD = {
    "ns_pid": 10,
    "ns_tid": 12,
    "tid": 112,
    "thread": "holder",
    "start": 1_000_000_000,
    "duration_ns": 0,
    "other_ns": 0,
}


def seen(**tables):
    filled = {name: [] for name in TABLES}
    filled.update(copy.deepcopy(tables))
    filled["thread_states"] = filled["thread_states"] + [OTHER_THREAD]
    return Seen(filled)


def changed(row, **fields):
    return dict(row, **fields)


class Waits(unittest.TestCase):
    def problems(self, *rows, claim=WAIT):
        return checks.wait(claim, seen(waits=list(rows)))[0].problems

    def test_the_right_row_agrees(self):
        self.assertEqual(self.problems(WAIT_ROW), [])

    def test_numbers_may_come_as_strings(self):
        self.assertEqual(
            self.problems(changed(WAIT_ROW, duration_ns="200100000", holder_tid="112")), []
        )

    def test_each_wrong_row_is_caught(self):
        for wrong in (
            {"duration_ns": 203_000_000},
            {"duration_ns": 197_000_000},
            {"state": "sleep"},
            {"holder_tid": 111},
            {"holder_thread": "waiter"},
            {"ns_tid": 12},
            {"start": 1_020_000_000},
        ):
            with self.subTest(wrong):
                self.assertNotEqual(self.problems(changed(WAIT_ROW, **wrong)), [])

    def test_a_wait_told_in_two_rows_is_caught(self):
        half = changed(WAIT_ROW, duration_ns=100_000_000)
        self.assertNotEqual(self.problems(half, changed(half, start=1_105_000_000)), [])

    def test_a_workload_that_injected_too_little_is_caught(self):
        little = changed(WAIT, ns=1_000_000)
        self.assertNotEqual(
            self.problems(changed(WAIT_ROW, duration_ns=1_000_000), claim=little), []
        )


class Lives(unittest.TestCase):
    def problems(self, *rows):
        return checks.life(LIFE, seen(thread_states=list(rows)))[0].problems

    def test_a_whole_life_agrees(self):
        self.assertEqual(self.problems(*LIFE_ROWS), [])

    def test_a_hole_is_caught(self):
        first, second = LIFE_ROWS
        self.assertNotEqual(
            self.problems(first, changed(second, start=second["start"] + 5_000)), []
        )

    def test_a_missing_row_is_caught(self):
        self.assertNotEqual(self.problems(LIFE_ROWS[1]), [])

    def test_unknown_time_is_caught(self):
        first, second = LIFE_ROWS
        self.assertNotEqual(
            self.problems(first, changed(second, lock_wait_ns=196_000_000, other_ns=4_000_000)), []
        )

    def test_a_wrong_name_is_caught(self):
        first, second = LIFE_ROWS
        self.assertNotEqual(self.problems(first, changed(second, thread="Thread-1")), [])

    def test_cpu_time_must_be_the_kernels(self):
        first, second = LIFE_ROWS
        self.assertNotEqual(
            self.problems(changed(first, running_ns=95_000_000, runnable_ns=5_000_000), second), []
        )


class Sums(unittest.TestCase):
    ROW = {
        "ns_pid": 10,
        "ns_tid": 11,
        "tid": 111,
        "path": "/",
        "start": 5,
        "duration_ns": 60,
        "accept_queue_ns": 10,
        "handoff_ns": 20,
        "handler_ns": 30,
        "accept_to_read_ns": 20,
        "running_ns": 10,
        "sleep_ns": 20,
    }

    def problems(self, row):
        return requests.sums(CASE, seen(requests=[row], thread_states=LIFE_ROWS))[0].problems

    def test_a_row_that_sums_agrees(self):
        self.assertEqual(self.problems(self.ROW), [])

    def test_a_row_that_does_not_is_caught(self):
        self.assertNotEqual(self.problems(changed(self.ROW, sleep_ns=2_000)), [])
        self.assertNotEqual(self.problems(changed(self.ROW, duration_ns=61)), [])
        self.assertNotEqual(self.problems(changed(self.ROW, handoff_ns=21)), [])


class Untold(unittest.TestCase):
    """A sample may lack its stack where the kernel did not tell of the wait's end, only there."""

    TREE = {"frames": [["f", "a.py", 1]], "ns": 100 * 12_000_000, "native": None}
    CLAIM = {
        "label": "sleep",
        "thread": "waiter",
        "pid": 10,
        "tid": 11,
        "case": CASE,
        "start": 0,
        "end": 2_000_000_000,
        "states": ["sleep"],
        "trees": [TREE],
    }
    STACK = {
        "stack_id": 7,
        "truncated": "",
        "kinds": ["python", "kernel"],
        "functions": ["f", "sleep"],
        "files": ["a.py", ""],
        "lines": [1, 0],
        "modules": ["", ""],
    }

    def problems(self, without, untold):
        row = {"ns_pid": 10, "ns_tid": 11, "state": "sleep", "stack_id": 7}
        rows = [
            dict(row, start=at * 12_000_000, duration_ns=12_000_000, weight_ns=12_000_000)
            for at in range(100)
        ]
        for each in rows[:without]:
            each["stack_id"] = 0
        life = changed(OTHER_THREAD, ns_tid=11, sleep_ns=self.TREE["ns"])
        tables = {name: [] for name in TABLES}
        tables.update(off_cpu=rows, thread_states=[life])
        found = Seen(tables, stacks=[self.STACK], untold=untold)
        return stacks.stack(self.CLAIM, found)[0].problems

    def test_each_one_needs_a_reason(self):
        told = {"start": 1_000_000_000, "duration_ns": 1_000_000_000, "count": "3"}
        before = {"start": -2_000_000_000, "duration_ns": 1_000_000_000, "count": "3"}
        self.assertEqual(self.problems(0, []), [])
        self.assertEqual(self.problems(4, [told]), [])
        self.assertNotEqual(self.problems(5, [told]), [])
        self.assertNotEqual(self.problems(4, [before]), [])


class Spool(unittest.TestCase):
    def test_rows_that_wait_are_noticed(self):
        with tempfile.TemporaryDirectory() as data:
            self.assertEqual(spooled(data), 0)
            spool = pathlib.Path(data, "spool")
            spool.mkdir()
            (spool / "cursor").write_text("1")
            self.assertEqual(spooled(data), 0)
            (spool / "00000000000000000001.segment").write_text("rows")
            self.assertEqual(spooled(data), 4)


class Report(unittest.TestCase):
    def test_the_end_of_a_log_says_what_is_wrong(self):
        right, wrong = statement("goes well", []), statement("goes wrong", ["it is 1 instead of 0"])
        stack = StackVerdict("lock", 125, 100, 100, 100, 100, 0, ["2 samples have no stack"])
        lines = [Line(case, "3.11", each) for case, each in zip("abc", (right, wrong, stack))]
        said = report.conclusion(lines)
        self.assertNotIn("goes well", said)
        for about in ("goes wrong", "it is 1 instead of 0", "lock", "2 samples have no stack"):
            self.assertIn(about, said)
        self.assertTrue(said.endswith("3 checks, 2 wrong."))

    def test_a_log_without_a_wrong_line_ends_with_the_summary(self):
        lines = [Line("a", "3.11", statement("goes well", []))]
        self.assertEqual(report.conclusion(lines), "1 checks, 0 wrong.")


if __name__ == "__main__":
    unittest.main()
