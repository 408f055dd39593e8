"""What the BPF programs of one process cost, as the kernel counts it while BPF statistics are on."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """Run time and runs of one program."""

    ns: int
    runs: int

    def __sub__(self, earlier: Cost) -> Cost:
        return Cost(self.ns - earlier.ns, self.runs - earlier.runs)

    @property
    def each(self) -> float:
        """Nanoseconds a run."""
        return self.ns / self.runs if self.runs else 0.0


def costs(pid: int) -> dict[str, Cost]:
    """By name, of the programs that this process holds open."""
    listed = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, check=True).stdout
    names = {program["id"]: program.get("name", "") for program in json.loads(listed)}
    found = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except FileNotFoundError:
            continue  # closed meanwhile
        if "run_time_ns" in lines:
            name = names.get(int(lines["prog_id"]), "")
            found[name] = Cost(int(lines["run_time_ns"]), int(lines["run_cnt"]))
    return found


def difference(before: dict[str, Cost], after: dict[str, Cost]) -> dict[str, Cost]:
    """What was added, by name, without programs that did not run."""
    added = {name: cost - before.get(name, Cost(0, 0)) for name, cost in after.items()}
    return {name: cost for name, cost in added.items() if cost.runs}
