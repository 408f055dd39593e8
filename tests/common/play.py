"""A scene: services and clients under `underspan run`, and what it says of them afterwards."""

from __future__ import annotations

import json
import pathlib
import sys

MS = 1_000_000


class Play:
    """What the services measured, and what Underspan says of it."""

    def __init__(self, underspan, data, scene: pathlib.Path, *arguments: str, options=(), before=()) -> None:
        self.underspan, self.data = underspan, data
        # On a loaded machine, and unoptimized, the agent would leave out short waits.
        command = ["run", "--max-cpu", "100", *options, "--data", data, "--", sys.executable, scene, *arguments]
        said = underspan(*command, limit=240, before=before)
        assert said.status == 0, said
        self.measured = json.loads(said.out.splitlines()[-1])
        self.requests = underspan.sql(
            data, "SELECT request_id, path, process, pid FROM requests ORDER BY start_time"
        )

    def id_of(self, path: str, number: int = -1) -> str:
        """The request with this path: the last, unless told which."""
        return [row["request_id"] for row in self.requests if row["path"] == path][number]

    def explain(self, path: str, number: int = -1) -> dict:
        """The explanation of a request with this path: the last, unless told which."""
        said = self.underspan("explain", self.id_of(path, number), "--json", "--data", self.data)
        assert said.status == 0, said
        return json.loads(said.out)

    def finding(self, path: str, kind: str) -> tuple[dict, dict]:
        """The one finding of that kind, and the explanation it is from."""
        explained = self.explain(path)
        found = [finding for finding in explained["findings"] if finding["kind"] == kind]
        assert len(found) == 1, explained["findings"]
        return found[0], explained


def agree(found: float, measured: float) -> None:
    """Within 5 ms or 5 %."""
    assert abs(found - measured) <= max(5 * MS, measured * 0.05), (found / MS, measured / MS)
