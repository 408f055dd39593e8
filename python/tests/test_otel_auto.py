"""`opentelemetry-instrument` finds the span processor by itself."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

APP = """
import os, threading
from opentelemetry import trace

print("IDS", os.getpid(), threading.get_native_id(), flush=True)
with trace.get_tracer("app").start_as_current_span("work"):
    pass
"""


def dev_install(target):
    spec = importlib.util.spec_from_file_location("dev_install", PYTHON / "dev_install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(target)


@pytest.fixture
def run(tmp_path):
    command = shutil.which(
        "opentelemetry-instrument", path=f"{BIN}{os.pathsep}{os.environ['PATH']}"
    )
    if command is None:
        pytest.fail("opentelemetry-instrument is missing: pip install opentelemetry-distro")
    dev_install(tmp_path)
    (tmp_path / "app.py").write_text(APP)

    def run(**env):
        # The `.pth` file of a development install counts only in site-packages; name the path.
        path = os.pathsep.join([str(tmp_path), str(PYTHON)])
        return subprocess.run(
            [command, sys.executable, str(tmp_path / "app.py")],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": path,
                "OTEL_TRACES_EXPORTER": "console",
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "none",
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    return run


def ids(result):
    line = next(line for line in result.stdout.splitlines() if line.startswith("IDS"))
    return line.split()[1:]


def test_spans_are_stamped_without_a_change_to_the_program(run):
    result = run()
    pid, tid = ids(result)
    assert f'"underspan.pid": {pid}' in result.stdout, result.stderr
    assert f'"underspan.tid": {tid}' in result.stdout


def test_a_sampler_of_the_users_choice_stays(run):
    result = run(OTEL_TRACES_SAMPLER="always_off")
    assert "underspan" not in result.stdout
    assert "rror" not in result.stderr


def test_a_disabled_sdk_is_no_error(run):
    result = run(OTEL_SDK_DISABLED="true")
    assert "underspan" not in result.stdout
    assert "rror" not in result.stderr
