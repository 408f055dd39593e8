"""Writes the exports that the tests read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every export of the made-up service."""
    folder = tmp_path_factory.mktemp("exports")
    example = [
        "cargo",
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "underspan-flame",
        "--example",
        "exports",
    ]
    subprocess.run([*example, "--", folder], cwd=ROOT, check=True)
    return folder
