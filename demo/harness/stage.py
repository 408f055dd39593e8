"""What every demo needs around its scenes: a folder, an orderly end, and an exit status."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .processes import DemoError, Processes
from .progress import step

FINE, FAILED, INTERRUPTED = 0, 1, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt(_signum: int, _frame: object) -> None:
    """The first signal ends the demo; more of them must not disturb the end."""
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    raise KeyboardInterrupt


def stay_up() -> None:
    """Leave everything as it is, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()


def run(name: str, play: Callable[[Path, Processes], bool]) -> int:
    """Play in a folder of its own, end every process, and say what is wrong. Returns the exit status."""
    for number in SIGNALS:
        signal.signal(number, interrupt)
    folder = Path(tempfile.mkdtemp(prefix=f"underspan-{name}-"))
    folder.chmod(0o755)  # services run as users of their own
    (folder / "logs").mkdir()
    processes = Processes(folder / "logs")
    status = FAILED
    try:
        status = FINE if play(folder, processes) else FAILED
    except DemoError as error:
        print(f"\n  The demo stopped: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        print()
        with step("stopping everything"):
            processes.stop_all()
    leftovers = processes.leftovers()
    if leftovers:
        print("  still running:\n    " + "\n    ".join(leftovers), file=sys.stderr)
        status = FAILED
    if status == FAILED:
        print(f"  Not as it should be; the logs are in {folder}/logs", file=sys.stderr)
        return status
    shutil.rmtree(folder)
    return status
