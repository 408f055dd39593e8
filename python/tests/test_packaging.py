"""What `pip install underspan` brings."""

import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is new in Python 3.11")
def test_the_stores_requirements_are_dependencies():
    import tomllib

    project = tomllib.loads((PYTHON / "pyproject.toml").read_text())["project"]
    dependencies = {text.split(";")[0].strip() for text in project["dependencies"]}
    lines = (PYTHON / "requirements-store.txt").read_text().splitlines()
    wanted = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    assert dependencies == wanted
