"""Who writes holds rows back, so that inserts are few and large. Who reads has them written first.

A writer asks again and again whether somebody reads (`wait`), each time saying up to which question
it has written everything. A reader asks (`ask`), and goes on once all writers have written, or is
out of patience.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

# Reads come in series. One so soon after another asks nobody: it sees what that saw.
FRESH_SECONDS = 0.5
# A reader waits no longer than this. Then it sees what there is.
PATIENCE_SECONDS = 3.0
# A writer that nobody asks is answered after this.
POLL_SECONDS = 20.0
# A writer that has not come back for so long is gone. Writing takes less.
GONE_SECONDS = 5.0


@dataclass
class _Writer:
    written: int = 0
    waiting: int = 0  # of its requests
    heard: float = 0.0
    # It did not write in time: nobody waits for it until it does.
    late: bool = False


class Writers:
    """Those who write to this store and hold rows back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._writers: dict[str, _Writer] = {}
        self._asked = 1  # 0: what a new writer has written; it is answered at once
        self._asked_at = -math.inf
        self._closed = False

    def wait(self, name: str, written: int) -> int:
        """For a writer that has written everything up to question `written`: the latest question,
        once there is a later one, or after a while."""
        with self._changed:
            writer = self._writers.setdefault(name, _Writer())
            writer.written = written
            writer.late = False
            writer.waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._closed or self._asked > written, POLL_SECONDS)
            finally:
                writer.waiting -= 1
                writer.heard = time.monotonic()
            return self._asked

    def ask(self) -> None:
        """For a reader: returns when what writers held back is in the store, or one is late."""
        with self._changed:
            now = time.monotonic()
            self._forget_gone(now)
            if not self._writers:
                return
            if now - self._asked_at >= FRESH_SECONDS:
                self._asked += 1
                self._asked_at = now
                self._changed.notify_all()
            asked = self._asked
            if not self._changed.wait_for(
                lambda: self._closed or not self._behind(asked), PATIENCE_SECONDS
            ):
                for writer in self._behind(asked):
                    writer.late = True

    def close(self) -> None:
        """Nobody waits any more: the store ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _behind(self, asked: int) -> list[_Writer]:
        writers = self._writers.values()
        return [writer for writer in writers if writer.written < asked and not writer.late]

    def _forget_gone(self, now: float) -> None:
        gone = [
            name
            for name, writer in self._writers.items()
            if not writer.waiting and now - writer.heard > GONE_SECONDS
        ]
        for name in gone:
            del self._writers[name]
