"""Which CPythons are on this machine."""

import collections
import glob
import os
import shutil
import subprocess

from .underspan import Unusable

WANTED = ("3.8", "3.11", "3.13")

Interpreter = collections.namedtuple("Interpreter", "name path version")

_ASK = "import sys, ctypes; print('.'.join(map(str, sys.version_info[:3])))"


def _examine(path):
    """The interpreter at `path`, or None if it does not run or is not one that Underspan knows."""
    try:
        answer = subprocess.run(
            [path, "-c", _ASK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
    except OSError:
        return None
    version = answer.stdout.decode().strip()
    if answer.returncode or tuple(map(int, version.split(".")[:2])) < (3, 8):
        return None
    origin = (
        "Debian"
        if os.path.realpath(path).startswith("/usr/bin/")
        else "pyenv"
        if "/.pyenv/" in path
        else "local"
    )
    return Interpreter(f"{version} {origin}", path, version)


def found():
    """Every interpreter that can be used, each once: pyenv's, the system's, and those that
    UNDERSPAN_TEST_PYTHONS names (separated by colons)."""
    paths = sorted(glob.glob("/usr/bin/python3.*") + glob.glob("/usr/local/bin/python3.*"))
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    paths += sorted(glob.glob(pyenv + "/versions/*/bin/python3"))
    paths += [path for path in (shutil.which("python3"),) if path]
    paths += [path for path in os.environ.get("UNDERSPAN_TEST_PYTHONS", "").split(":") if path]
    interpreters = {}
    for path in paths:
        if path.endswith("-config"):
            continue
        interpreter = _examine(path)
        if interpreter:
            interpreters.setdefault(interpreter.name, interpreter)
    return sorted(
        interpreters.values(), key=lambda each: [int(part) for part in each.version.split(".")]
    )


def choose(available, asked):
    """Those of the versions asked for; `all` takes everything. To ask for one that is not here is
    an error."""
    if asked == ["all"]:
        return available
    chosen = []
    for version in asked or WANTED:
        fit = [
            each
            for each in available
            if each.version == version or each.version.startswith(version + ".")
        ]
        if asked and not fit:
            raise Unusable(
                f"no CPython {version} here, only {', '.join(each.name for each in available)}: "
                "install it, or choose others with --python"
            )
        chosen += [each for each in fit if each not in chosen]
    if not chosen:
        raise Unusable(
            f"no CPython {', '.join(WANTED)}: install one, or choose others with --python"
        )
    return chosen


def absent(chosen):
    """Which of the wanted versions this machine lacks."""
    return [
        want for want in WANTED if not any(each.version.startswith(want + ".") for each in chosen)
    ]
