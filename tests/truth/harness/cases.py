"""The one list of cases. A case is a workload; what must be found, it says itself."""

import collections
import pathlib

WORKLOADS = pathlib.Path(__file__).resolve().parent.parent / "workloads"

# every_python: what is tested depends on the interpreter, so even --quick runs it on each.
# attach: the process is alive before it is watched, with `agent --pid` instead of `run`.
Case = collections.namedtuple("Case", "name every_python attach", defaults=(False, False))

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
)


def source(case):
    """The workload: Python, or C where Python cannot be exact."""
    python = WORKLOADS / (case.name + ".py")
    return python if python.exists() else WORKLOADS / (case.name + ".c")
