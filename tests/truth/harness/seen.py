"""What the store holds after a run, as plain rows; the checks ask it and nothing else."""

MARGIN_NS = 50_000_000
TABLES = ("thread_states", "waits", "gil_wait", "gc_pause", "requests", "off_cpu", "loop_stall")
TEXT = frozenset(
    (
        "host",
        "thread",
        "process",
        "state",
        "peer",
        "local",
        "method",
        "path",
        "end",
        "rung",
        "request_id",
        "trace_id",
        "parent_span_id",
        "waker_thread",
        "holder_thread",
        "holder_process",
        "sent_thread",
        "start_time",
        "lock_kind",
        "kind",
        "culprit",
        "culprit_thread",
        "holder_reason",
    )
)


def numbers(row):
    """ClickHouse's JSON may carry 64-bit numbers as strings."""
    return {key: value if key in TEXT else int(value) for key, value in row.items()}


class Seen:
    """The rows of one run. Claims name processes and threads as these see themselves (`ns_pid`)."""

    def __init__(self, tables, explain=None, stacks=(), flame=None, untold=()):
        self.tables = {name: [numbers(row) for row in rows] for name, rows in tables.items()}
        self.explain = explain
        self.flame = flame
        self.stacks = {int(row["stack_id"]): row for row in stacks}
        self._untold = [numbers(row) for row in untold]
        self._own = {row["tid"]: row["ns_tid"] for row in self.tables["thread_states"]}

    def own_tid(self, tid):
        """A host's thread id, as the thread's own namespace has it."""
        return self._own.get(tid, tid)

    def untold(self, start, end):
        """How often a thread came on a CPU in that time, as far as is known, and the kernel did not
        tell: it is counted by the second."""
        return sum(
            row["count"]
            for row in self._untold
            if row["start"] < end and start < row["start"] + row["duration_ns"]
        )

    def of_case(self, table, case):
        """Everything that began while the case ran, except the driver's own."""
        return [
            row
            for row in self.tables[table]
            if case["start"] <= row["start"] <= case["end"] and row["ns_pid"] != case["driver"]
        ]

    def of_process(self, table, claim):
        case = claim["case"]
        return [row for row in self.of_case(table, case) if row["ns_pid"] == claim["pid"]]

    def of_thread(self, table, claim):
        return [row for row in self.of_process(table, claim) if row["ns_tid"] == claim["tid"]]

    @staticmethod
    def cells(rows):
        """States with their time, longest first, leaving out those that took none."""
        spans = ("duration_ns", "accept_queue_ns", "handoff_ns", "handler_ns", "accept_to_read_ns")
        total = {}
        for row in rows:
            for key, value in row.items():
                if key.endswith("_ns") and key not in spans:
                    total[key[:-3]] = total.get(key[:-3], 0) + value
        return sorted(((state, ns) for state, ns in total.items() if ns), key=lambda each: -each[1])
