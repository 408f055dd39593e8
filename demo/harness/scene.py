"""A scene: the service set up in one way, under one load, and what each observer says of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness.figures import Clients, percentile
from harness.processes import Processes
from harness.progress import step
from harness.stack import DEMO, Stack
from harness.underspan import Span, Underspan


@dataclass(frozen=True)
class Load:
    """Which requests the clients send, and when (seconds after the start)."""

    get: str
    rate: float
    seconds: float
    post: str = ""
    post_at: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return int(self.rate * self.seconds)

    def arguments(self) -> list[str]:
        words = ["--get", self.get, "--rate", str(self.rate), "--seconds", str(self.seconds)]
        if self.post:
            words += ["--post", self.post, "--post-at", ",".join(map(str, self.post_at))]
        return words


@dataclass(frozen=True)
class Watched:
    """What the store holds of a scene."""

    # Of the shop's own server spans, one for each request.
    span_durations: list[int]
    slowest_spans: list[Span]
    # `underspan explain` of the slowest request, for people and as data.
    text: str
    explanation: dict
    longest_handoff_ns: int
    longest_pause_ns: int

    def finding(self, kind: str) -> dict | None:
        """The finding of this kind about the slowest request, if there is one."""
        return next((one for one in self.explanation["findings"] if one["kind"] == kind), None)

    def share_of_hidden(self, kind: str) -> float:
        """How much of the slowest request's hidden time this finding explains, from 0 to 1.

        Hidden is what no child span covers, and what one covers while the thread was in truth held up.
        """
        finding, spans = self.finding(kind), self.explanation["spans"]
        hidden = spans["hidden_ns"] + spans["masked_ns"]
        return (finding["hidden_ns"] + finding["in_spans_ns"]) / hidden if finding and hidden else 0.0

    def span_percentile(self, percent: float) -> int:
        return percentile(self.span_durations, percent)


@dataclass
class Scene:
    """One way to run the service."""

    settings: dict[str, str]
    load: Load
    clients: Clients = field(init=False)
    memory: dict[str, int] = field(init=False)
    watched: Watched | None = None

    def play(self, folder: Path, stack: Stack, processes: Processes, underspan: Underspan | None) -> None:
        """Start the service, let the clients in, ask the observers."""
        with step("starting gunicorn anew"):
            stack.stop_gunicorn()
            gunicorn = stack.start_gunicorn(self.settings, underspan.otlp_port if underspan else None)
            if underspan:
                underspan.await_watched(stack.worker(gunicorn))
        out = folder / f"clients-{gunicorn.pid}.jsonl"
        with step(f"{self.load.count} requests, {self.load.rate:g} a second, until each has its answer"):
            clients = [sys.executable, "-m", "harness.load", "--port", str(stack.port), "--out", out]
            processes.run([*clients, *self.load.arguments()], cwd=DEMO, timeout=180)
        self.clients = Clients.read(out)
        self.memory = json.loads(stack.get("/memory/"))
        if underspan:
            with step("asking Underspan"):
                self.watched = watch(underspan, self.clients, stack.worker(gunicorn))


def watch(underspan: Underspan, clients: Clients, worker: int) -> Watched:
    """Collect what the store holds of these clients' requests."""
    trace_ids = [one.trace_id for one in clients.seen]
    underspan.await_requests(trace_ids, worker)
    slowest = clients.slowest.trace_id
    request_id = underspan.request_id(slowest, worker)
    return Watched(
        span_durations=underspan.span_durations(trace_ids),
        slowest_spans=underspan.spans(slowest),
        text=underspan.ask("explain", request_id),
        explanation=underspan.explain(request_id),
        longest_handoff_ns=underspan.maximum("handoff_ns", "requests", worker),
        longest_pause_ns=underspan.maximum("duration_ns", "gc_pause", worker),
    )
