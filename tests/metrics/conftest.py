"""The program under test, where there is a Prometheus to ask about it."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def underspan(underspan):
    """The program under test."""
    for needed in ("prometheus", "promtool"):
        if shutil.which(needed) is None:
            pytest.exit(f"no {needed}: run `tools/setup.sh system`, or install Prometheus", 2)
    return underspan
