#!/usr/bin/env python3
"""Plays two stories of slow requests on a real service and lets Underspan explain them. See README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from harness import report
from harness.processes import DemoError, Processes
from harness.progress import step
from harness.stack import Stack
from harness.stage import FAILED, FINE, INTERRUPTED, SIGNALS, interrupt
from harness.stories import STORIES, Story
from harness.underspan import Underspan


class Demo:
    """One run: a folder, the programs that run in it, the stories."""

    def __init__(self, folder: Path, watch: bool) -> None:
        self.folder = folder
        logs = folder / "logs"
        logs.mkdir()
        self.processes = Processes(logs)
        self.stack = Stack(folder, self.processes)
        self.underspan = Underspan(folder, self.processes) if watch else None

    def start(self) -> None:
        with step("starting PostgreSQL and nginx"):
            self.stack.start_database()
            self.stack.start_nginx()
        if self.underspan:
            with step("starting `underspan up`"):
                self.underspan.start()

    def play(self, number: int, story: Story) -> bool:
        """Play a story, broken and repaired. Returns whether it came out as it should."""
        before, after = story.scenes()
        report.heading(f"Story {number}: {story.title}")
        print("\n".join(f"  {line}" for line in story.setting.splitlines()), end="\n\n")
        before.play(self.folder, self.stack, self.processes, self.underspan)
        report.show(before)
        print(f"  The fix\n    {story.fix}\n")
        after.play(self.folder, self.stack, self.processes, self.underspan)
        report.compare(story, before, after)
        return report.verdict(story.judge(before, after))

    def keep(self) -> None:
        """Leave everything up until Ctrl-C, and say how to look around."""
        report.heading("Still up, until Ctrl-C")
        print(f"  the shop         curl http://127.0.0.1:{self.stack.port}/products/7/")
        if self.underspan:
            print(f"  Underspan        http://127.0.0.1:{self.underspan.port}/")
            for words in (["requests"], ["explain", "REQUEST_ID"], ["sql", "SELECT * FROM gc_pause"]):
                command = self.underspan.command(*words)
                print(f"  {'':<17}{' '.join(repr(word) if ' ' in word else word for word in command)}")
        print(f"  logs             {self.folder}/logs", flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                signal.pause()

    def stop(self) -> list[str]:
        """End everything. Returns what is still alive nevertheless."""
        with step("stopping everything"):
            self.processes.stop_all()
        return self.processes.leftovers()


def play_all(demo: Demo, keep: bool) -> bool:
    demo.start()
    verdicts = [demo.play(number, story) for number, story in enumerate(STORIES, 1)]
    if keep:
        demo.keep()
    return all(verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep everything up afterwards, until Ctrl-C")
    parser.add_argument("--unwatched", action="store_true", help="play the stories without Underspan")
    arguments = parser.parse_args()
    if os.geteuid() != 0 and not arguments.unwatched:
        print("The demo watches with BPF programs, which only root may load: run `sudo make demo`.", file=sys.stderr)
        return 2
    for name in SIGNALS:
        signal.signal(name, interrupt)
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="underspan-demo-"))
    folder.chmod(0o755)  # PostgreSQL and nginx run as users of their own
    demo = Demo(folder, watch=not arguments.unwatched)
    status = FAILED
    try:
        status = FINE if play_all(demo, arguments.keep) else FAILED
    except DemoError as error:
        print(f"\n  The demo stopped: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        print()
        leftovers = demo.stop()
    if leftovers:
        print("  still running:\n    " + "\n    ".join(leftovers), file=sys.stderr)
        status = FAILED
    if status == FAILED:
        print(f"  Not as it should be; the logs are in {folder}/logs", file=sys.stderr)
        return status
    shutil.rmtree(folder)
    if status == FINE:
        print(f"  Both stories came out as they should, in {time.monotonic() - start:.0f} s. Nothing is left running.")
    return status


if __name__ == "__main__":
    sys.exit(main())
