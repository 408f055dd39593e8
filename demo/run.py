#!/usr/bin/env python3
"""Plays two stories of slow requests on a real service and lets Underspan explain them. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from harness import report, stage
from harness.processes import Processes
from harness.progress import step
from harness.stack import Stack
from harness.stories import STORIES, Story
from harness.underspan import Underspan


class Demo:
    """One run: the programs that run in a folder, and the stories."""

    def __init__(self, folder: Path, processes: Processes, watch: bool) -> None:
        self.folder = folder
        self.processes = processes
        self.stack = Stack(folder, processes)
        self.underspan = Underspan(folder, processes) if watch else None

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
        stage.stay_up()


def play(folder: Path, processes: Processes, arguments: argparse.Namespace) -> bool:
    demo = Demo(folder, processes, watch=not arguments.unwatched)
    demo.start()
    verdicts = [demo.play(number, story) for number, story in enumerate(STORIES, 1)]
    if arguments.keep:
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
    start = time.monotonic()
    status = stage.run("demo", lambda folder, processes: play(folder, processes, arguments))
    if status == stage.FINE:
        print(f"  Both stories came out as they should, in {time.monotonic() - start:.0f} s. Nothing is left running.")
    return status


if __name__ == "__main__":
    sys.exit(main())
