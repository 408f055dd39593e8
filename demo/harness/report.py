"""Prints what came out of a scene and of a story."""

from __future__ import annotations

from harness.figures import duration
from harness.scene import Scene, Watched
from harness.stories import Check, Story
from harness.underspan import Span

PERCENTILES = ((50, "P50"), (95, "P95"), (99, "P99"), (100, "longest"))


def heading(text: str) -> None:
    print(f"\n━━ {text} {'━' * max(0, 90 - len(text))}\n")


def show(scene: Scene) -> None:
    """The three accounts of a scene."""
    slowest = scene.clients.slowest
    print("\n  What the clients saw")
    print(f"    {figures(scene.clients.percentile)}")
    print(f"    the slowest: {slowest.method} {slowest.path} took {duration(slowest.latency_ns)}")
    if scene.watched:
        show_spans(scene.watched)
        print("\n  What Underspan explains")
        print("\n".join(f"    {line}".rstrip() for line in scene.watched.text.rstrip().splitlines()))
    print()


def show_spans(watched: Watched) -> None:
    print("\n  What OpenTelemetry saw")
    print(f"    {figures(watched.span_percentile)}")
    print("    the slowest client's trace:")
    known = {span.span_id for span in watched.slowest_spans}
    for span in watched.slowest_spans:
        if span.parent_id not in known:
            show_tree(span, watched.slowest_spans, depth=1)


def show_tree(span: Span, spans: list[Span], depth: int) -> None:
    name = "    " + "  " * depth + span.name
    print(f"{name:<52}{duration(span.duration_ns):>10}")
    for child in spans:
        if child.parent_id == span.span_id:
            show_tree(child, spans, depth + 1)


def figures(percentile) -> str:
    return "   ".join(f"{name} {duration(percentile(percent))}" for percent, name in PERCENTILES)


def compare(story: Story, before: Scene, after: Scene) -> None:
    """Before and after, side by side."""
    print(f"\n  {'':<30}{'before':>14}{'after':>14}")
    for name, text in story.rows:
        print(f"  {name:<30}{text(before):>14}{text(after):>14}")
    print()


def verdict(checks: list[Check]) -> bool:
    """What had to be so, and whether all of it is."""
    for check in checks:
        print(f"  {'ok  ' if check.holds else 'FAIL'}  {check.text}")
    return all(check.holds for check in checks)
