"""Options, and the program under test."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "failures"))
sys.path.insert(0, str(HERE))
from harness import ROOT, Underspan


def pytest_addoption(parser):
    """Which program."""
    default = str(ROOT / "target" / "release" / "underspan")
    parser.addoption("--underspan", metavar="PATH", default=default, help="the program to test")


@pytest.fixture(scope="session")
def underspan(request):
    """The program under test."""
    program = pathlib.Path(request.config.getoption("--underspan")).resolve()
    if os.geteuid() != 0:
        pytest.exit("these tests load BPF programs: run them as root", 2)
    if not program.is_file():
        pytest.exit(f"{program} is not there: run `make build`, or name it with --underspan", 2)
    return Underspan(str(program))
