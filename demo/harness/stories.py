"""The two stories: what is wrong, what repairs it, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.figures import duration
from harness.scene import Load, Scene

# One row of the table of before and after: its name, and how a scene fills it.
Row = tuple[str, Callable[[Scene], str]]


@dataclass(frozen=True)
class Check:
    """Something that has to be so, and whether it is."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Story:
    """One service, broken and repaired."""

    title: str
    setting: str
    load: Load
    broken: dict[str, str]
    fix: str
    fixed: dict[str, str]
    rows: tuple[Row, ...]
    judge: Callable[[Scene, Scene], list[Check]]

    def scenes(self) -> tuple[Scene, Scene]:
        """Before and after."""
        return Scene(self.broken, self.load), Scene({**self.broken, **self.fixed}, self.load)


def judge_queue(before: Scene, after: Scene) -> list[Check]:
    slowest = before.clients.slowest.latency_ns
    checks = [Check(slowest > 2e9, f"before: the slowest client waited {duration(slowest)} (over 2 s)")]
    if before.watched and after.watched:
        span = before.watched.explanation["spans"]["root"]["duration_ns"]
        share = before.watched.share_of_hidden("handoff")
        still = after.watched.finding("handoff")
        checks += [
            Check(span < slowest / 10, f"before: its server span says {duration(span)} (less than a tenth)"),
            Check(share >= 0.95, f"before: {share:.1%} of the slowest request's hidden time is handoff (95 % or more)"),
            Check(still is None, "after: Underspan finds no handoff in the slowest request"),
        ]
    return checks + faster(before, after)


def judge_pause(before: Scene, after: Scene) -> list[Check]:
    slowest = before.clients.slowest.latency_ns
    visible = before.memory["visible_objects"]
    checks = [
        Check(slowest > 1e9, f"before: the slowest client waited {duration(slowest)} (over 1 s)"),
        Check(visible > 1e6, f"before: the collector visits {visible:,} objects (over a million)"),
    ]
    if before.watched and after.watched:
        share = before.watched.share_of_hidden("gc_wait")
        culprit = (before.watched.finding("gc_wait") or {}).get("culprit") or {"thread": "nobody", "generation": -1}
        who, generation = culprit["thread"], culprit["generation"]
        named = who.startswith("report_") and generation == 2
        was, now = before.watched.longest_pause_ns, after.watched.longest_pause_ns
        still = after.watched.finding("gc_wait")
        checks += [
            Check(
                share >= 0.9, f"before: {share:.1%} of the slowest request's hidden time is a collection (90 % or more)"
            ),
            Check(named, f"before: it was made by thread {who}, generation {generation} (report_…, 2)"),
            Check(still is None, "after: Underspan finds no collection in the slowest request"),
            Check(
                now < was / 10,
                f"after: the longest pause is {duration(now)} instead of {duration(was)} (a tenth or less)",
            ),
        ]
    return checks + faster(before, after)


def faster(before: Scene, after: Scene) -> list[Check]:
    """What every repair must achieve."""
    failed = before.clients.failed + after.clients.failed
    was, now = before.clients.percentile(99), after.clients.percentile(99)
    return [
        Check(failed == 0, f"every request was answered ({failed} were not)"),
        Check(now < was / 2, f"after: P99 is {duration(now)} instead of {duration(was)} (less than half)"),
    ]


CLIENT_ROWS: tuple[Row, ...] = (
    ("client: P50", lambda scene: duration(scene.clients.percentile(50))),
    ("client: P95", lambda scene: duration(scene.clients.percentile(95))),
    ("client: P99", lambda scene: duration(scene.clients.percentile(99))),
    ("client: longest", lambda scene: duration(scene.clients.percentile(100))),
)


def watched(text: Callable[[Scene], str]) -> Callable[[Scene], str]:
    """A row that only Underspan can fill."""
    return lambda scene: text(scene) if scene.watched else "not watched"


QUEUE = Story(
    title="The queue",
    setting="One worker with 2 threads. Each request asks the database for 200 ms, and 50 a second come in.",
    load=Load(get="/checkout/", rate=50, seconds=2),
    broken={"SHOP_THREADS": "2"},
    fix="gunicorn.conf.py:  threads = 32",
    fixed={"SHOP_THREADS": "32"},
    rows=(
        *CLIENT_ROWS,
        ("longest server span", watched(lambda scene: duration(scene.watched.span_percentile(100)))),
        ("longest handoff", watched(lambda scene: duration(scene.watched.longest_handoff_ns))),
    ),
    judge=judge_queue,
)

PAUSE = Story(
    title="The pause",
    setting=(
        "A catalogue of 150,000 products lives in memory. Each request issues one quick query.\n"
        "Now and then a report is made on a background thread, which ends with gc.collect()."
    ),
    load=Load(get="/products/{n}/", rate=20, seconds=14, post="/reports/", post_at=(1.01, 8.01)),
    broken={"SHOP_THREADS": "8", "SHOP_CATALOGUE_PRODUCTS": "150000"},
    fix="gunicorn.conf.py:  def post_fork(server, worker): gc.freeze()",
    fixed={"SHOP_GC_FREEZE": "1"},
    rows=(
        *CLIENT_ROWS,
        ("longest pause", watched(lambda scene: duration(scene.watched.longest_pause_ns))),
        ("objects the collector sees", lambda scene: f"{scene.memory['visible_objects']:,}"),
    ),
    judge=judge_pause,
)

STORIES = (QUEUE, PAUSE)
