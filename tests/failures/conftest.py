"""Options and what several tests share."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from harness import HERE, ROOT, Underspan

# A shell's background jobs ignore Ctrl-C, and so would what is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    """Which program."""
    default = str(ROOT / "target" / "release" / "underspan")
    parser.addoption("--underspan", metavar="PATH", default=default, help="the program to test")


@pytest.fixture(scope="session")
def underspan(request):
    """The program under test."""
    program = pathlib.Path(request.config.getoption("--underspan")).resolve()
    if os.geteuid() != 0:
        pytest.exit("the tests of failures load BPF programs and change users: run them as root", 2)
    if not program.is_file():
        pytest.exit(f"{program} is not there: run `make build`, or name it with --underspan", 2)
    # Also those who are not root must be able to run it.
    with tempfile.TemporaryDirectory(prefix="underspan-") as folder:
        copy = pathlib.Path(folder, "underspan")
        os.link(program, copy) if os.stat(folder).st_dev == program.stat().st_dev else copy.write_bytes(
            program.read_bytes()
        )
        os.chmod(folder, 0o755)
        os.chmod(copy, 0o755)
        yield Underspan(str(copy))


@pytest.fixture
def place():
    """A folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="underspan-") as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@pytest.fixture(scope="session")
def recorded(underspan):
    """A data folder with a few requests in it."""
    with tempfile.TemporaryDirectory(prefix="underspan-") as folder:
        os.chmod(folder, 0o755)
        data = pathlib.Path(folder, "data")
        said = underspan(
            "run", "--data", data, "--", sys.executable, HERE / "service.py", "--requests", "5", limit=120
        )
        assert said.status == 0, said
        yield data
