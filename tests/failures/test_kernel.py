"""Kernels and containers that lack something: played in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

NO_BTF = "mount -t tmpfs none /sys/kernel/btf"
# Where it was mounted by somebody else, and where systemd would mount it on demand.
NO_TRACEFS = """
umount -l /sys/kernel/tracing
for mount in /sys/kernel/debug/tracing /sys/kernel/debug; do umount -l $mount 2>/dev/null || true; done
test ! -e /sys/kernel/tracing/events
"""


def namespace(script: str) -> list[str]:
    """Words that run what follows them after a script, in a mount namespace of its own."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", script + '\nexec "$@"', "sh"]


@pytest.mark.parametrize("words", [["up"], ["agent"], ["run", "--", "touch", "mark"]])
def test_no_btf(underspan, place, words):
    said = underspan("--data", place / "data", *words, before=namespace(NO_BTF), cwd=place)
    said.failed("this kernel has no BTF (/sys/kernel/btf/vmlinux)", "CONFIG_DEBUG_INFO_BTF")
    assert list(place.iterdir()) == []


def test_doctor_without_btf(underspan):
    said = underspan("doctor", before=namespace(NO_BTF))
    assert said.status == 1
    assert "this kernel has no BTF" in said.out, said
    said = underspan("doctor", "--json", before=namespace(NO_BTF))
    assert said.status == 1
    assert "this kernel has no BTF" in json.loads(said.out)["error"]


def test_tracefs_is_mounted_where_it_is_not(underspan, place):
    said = underspan("run", "--data", place / "data", "--", "true", before=namespace(NO_TRACEFS))
    assert said.status == 0, said


def test_tracefs_that_cannot_be_mounted(underspan, place):
    """Without CAP_SYS_ADMIN, as in many containers."""
    before = [*namespace(NO_TRACEFS), "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all", "--"]
    said = underspan("run", "--data", place / "data", "--", "true", before=before)
    said.failed("tracefs is not mounted", "mount -t tracefs tracefs /sys/kernel/tracing")


def test_the_namespaces_are_what_they_seem():
    done = subprocess.run([*namespace(NO_BTF), "ls", "/sys/kernel/btf"], capture_output=True, check=True)
    assert done.stdout == b""
    assert os.path.exists("/sys/kernel/btf/vmlinux")
