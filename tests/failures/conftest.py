"""What several tests share."""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile

import pytest
from common.command import Underspan
from common.services import service

# A shell's background jobs ignore Ctrl-C, and so would what is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def folder_for_all():
    """A folder that everybody may enter."""
    folder = tempfile.TemporaryDirectory(prefix="underspan-")
    os.chmod(folder.name, 0o755)
    return folder


@pytest.fixture(scope="session")
def underspan(program) -> Underspan:
    """The program under test, where also those who are not root can run it."""
    with folder_for_all() as folder:
        copy = pathlib.Path(folder, "underspan")
        if os.stat(folder).st_dev == program.stat().st_dev:
            os.link(program, copy)
        else:
            copy.write_bytes(program.read_bytes())
        os.chmod(copy, 0o755)
        yield Underspan(str(copy))


@pytest.fixture
def place():
    """A folder that everybody may enter."""
    with folder_for_all() as folder:
        yield pathlib.Path(folder)


@pytest.fixture(scope="session")
def recorded(underspan):
    """A data folder with a few requests in it."""
    with folder_for_all() as folder:
        data = pathlib.Path(folder, "data")
        said = underspan("run", "--data", data, "--", *service("service.py", "--requests", 5), limit=120)
        assert said.status == 0, said
        yield data
