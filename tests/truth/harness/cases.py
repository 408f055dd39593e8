"""The one list of cases. A case is a workload; what must be found, it says itself."""

import collections
import pathlib

WORKLOADS = pathlib.Path(__file__).resolve().parent.parent / "workloads"

# every_python: what is tested depends on the interpreter, so even --quick runs it on each.
# attach: the process is alive before it is watched, with `agent --pid` instead of `run`.
# part: `--only` plays one part; stacks are looked at on every interpreter there is.
# needs: what is compiled for it; its path is the workload's argument.
Case = collections.namedtuple(
    "Case", "name every_python attach part needs", defaults=(False, False, "times", None)
)
PARTS = ("times", "stacks")

CASES = (
    Case("sleep", every_python=True),
    Case("lock", every_python=True),
    Case("gil", every_python=True),
    Case("collection", every_python=True),
    Case("ipc"),
    Case("sockets"),
    Case("files"),
    Case("cpu"),
    Case("quota"),
    Case("storm"),
    Case("lives"),
    Case("queueing"),
    Case("exchanges", every_python=True),
    Case("syscalls"),
    Case("prefork"),
    Case("quiet", every_python=True),
    Case("attach", every_python=True, attach=True),
    Case("stacks", part="stacks", needs="callback.c"),
    Case("stacks_c", part="stacks"),
    Case("stacks_rust", part="stacks"),
    Case("stacks_go", part="stacks"),
    Case("patterns", part="stacks"),
    Case("loop", part="stacks"),
)


def source(case):
    """The workload: Python, or what Python cannot be exact about or is not about Python."""
    paths = [WORKLOADS / (case.name + suffix) for suffix in (".py", ".c", ".rs", ".go")]
    return next(path for path in paths if path.exists())


def is_python(case):
    return source(case).suffix == ".py"
