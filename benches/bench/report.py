"""docs/benchmarks.md: the latest results of each part; what was not measured here stays as it stands."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.figures import Row
from bench.machine import QUIET_PERCENT

HEAD = """\
# Benchmarks

What Underspan costs, and how much it can take. Every figure here was written by `make bench`; the command above a table
makes that table again (root; `QUICK=1` for a smoke test of some minutes, whose figures mean nothing). How each is
measured: [benches/README.md](../benches/README.md).

Figures are medians of interleaved runs, with the smallest and the largest in brackets. A target that is missed says so.
"""


@dataclass
class Part:
    """One table."""

    name: str
    title: str
    machine: str
    load: float  # load average of the last minute, just before
    others: float  # CPU that other programs used meanwhile, in percent of the machine
    rows: list[Row]
    notes: list[str]

    def save(self, folder: Path) -> None:
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1))

    @classmethod
    def load_from(cls, path: Path) -> Part:
        values = json.loads(path.read_text())
        return cls(**{**values, "rows": [Row(**row) for row in values["rows"]]})

    def text(self) -> str:
        noise = "" if self.others < QUIET_PERCENT else ": **the machine was not quiet**"
        lines = [f"## {self.title}", "", f"`make bench ONLY={self.name}`", ""]
        others = f"meanwhile other programs used {max(0, self.others):.0f} % of the machine"
        lines += [f"{self.machine}. Load average before the run {self.load:.2f}, {others}{noise}.", ""]
        lines += ["| what | figure | target | verdict |", "|---|---|---|---|"]
        lines += [f"| {row.what} | {row.figure} | {row.target or '–'} | {row.verdict} |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"


def tables(document: str) -> dict[str, str]:
    """The text of each part, by name."""
    sections = re.split(r"^(?=## )", document, flags=re.MULTILINE)[1:]
    named = ((re.search(r"^`make bench ONLY=(\w+)`$", text, re.MULTILINE), text) for text in sections)
    return {found[1]: text.rstrip("\n") + "\n" for found, text in named if found}


def write(results: Path, names: list[str], document: Path) -> None:
    """The document: parts that have results, and of the others what it says already."""
    texts = tables(document.read_text()) if document.exists() else {}
    for name in names:
        if (path := results / f"{name}.json").exists():
            texts[name] = Part.load_from(path).text()
    document.write_text("\n".join([HEAD, *(texts[name] for name in names if name in texts)]))
