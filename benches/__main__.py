"""Measures what Underspan costs and writes docs/benchmarks.md. `make bench` runs it; see README.md."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import machine

# The demo's harness starts the stack that is measured here.
sys.path.insert(1, str(machine.ROOT / "demo"))

from harness.processes import DemoError  # noqa: E402

from bench.observers import BenchError  # noqa: E402
from bench.report import Part, write  # noqa: E402
from bench.settings import FULL, QUICK, Settings  # noqa: E402

# Each is a module with TITLE, NOTES and run(folder, settings), in the order of the document.
PARTS = ["programs", "gil", "stack", "saturation", "stacks", "agent", "ring", "netstack", "scale"]
RESULTS = machine.ROOT / "target" / "bench"
TOOLS = {
    "bpftool": "bpftool",
    "bpftrace": "bpftrace",
    "wrk": "wrk",
    "cc": "build-essential",
    "offcputime": "libbpf-tools",
}


def preflight() -> str:
    """Why nothing can be measured here, or nothing."""
    if os.geteuid() != 0:
        return "BPF programs can be loaded by root only: run `sudo make bench`"
    path = os.environ["PATH"] + ":/usr/sbin"
    os.environ["PATH"] = path
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return f"missing: run `apt-get install {' '.join(missing)}`" if missing else ""


def measure(name: str, settings: Settings, folder: Path) -> Part:
    """Run one part and tell its rows."""
    module = importlib.import_module(f"bench.{name}")
    load = machine.await_quiet(settings.quiet_s)
    print(f"\n{module.TITLE} (load average {load:.2f})", flush=True)
    start, busy, own = time.monotonic(), machine.busy_s(), machine.own_s()
    rows = module.run(folder, settings)
    seconds = time.monotonic() - start
    others = ((machine.busy_s() - busy) - (machine.own_s() - own)) / seconds / (os.cpu_count() or 1) * 100
    for row in rows:
        print(f"  {row.what}: {row.figure}" + (f"  [{row.target}: {row.verdict}]" if row.target else ""), flush=True)
    print(f"  ({seconds:.0f} s; others used {others:.0f} % of the machine meanwhile)", flush=True)
    return Part(name, module.TITLE, machine.facts(), load, others, rows, module.NOTES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benches", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see whether everything works; the figures mean nothing")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be given again")
    parser.add_argument("--report", type=Path, help="write the document here (a quick run never does)")
    arguments = parser.parse_args()
    problem = preflight()
    if problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 2
    settings = QUICK if arguments.quick else FULL
    results = RESULTS / ("quick" if arguments.quick else "full")
    results.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="underspan-bench-"))
    folder.chmod(0o755)  # PostgreSQL and nginx run as users of their own
    failed = []
    try:
        for name in arguments.only or PARTS:
            try:
                measure(name, settings, folder / name).save(results)
            except (BenchError, DemoError) as error:
                failed.append(name)
                print(f"  {name} failed: {error}", file=sys.stderr, flush=True)
    finally:
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)
    if failed:
        print(f"bench: no figures of {', '.join(failed)}; logs are in {folder}", file=sys.stderr)
    if arguments.report and not arguments.quick:
        write(results, PARTS, arguments.report)
        print(f"\nwritten: {arguments.report}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
