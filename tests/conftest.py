"""What tests of the installed program share: which program that is."""

from __future__ import annotations

import os
import pathlib

import pytest
from common.command import ROOT, Underspan


def pytest_addoption(parser):
    """Which program."""
    default = str(ROOT / "target" / "release" / "underspan")
    parser.addoption("--underspan", metavar="PATH", default=default, help="the program to test")


@pytest.fixture(scope="session")
def program(request) -> pathlib.Path:
    """Where the program is."""
    path = pathlib.Path(request.config.getoption("--underspan")).resolve()
    if os.geteuid() != 0:
        pytest.exit("these tests load BPF programs: run them as root", 2)
    if not path.is_file():
        pytest.exit(f"{path} is not there: run `make build`, or name it with --underspan", 2)
    return path


@pytest.fixture(scope="session")
def underspan(program) -> Underspan:
    """The program under test."""
    return Underspan(str(program))
