"""Network namespaces with a name."""

from __future__ import annotations

import contextlib
import subprocess


def ip(*words: str) -> None:
    """`ip`, which must succeed."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def namespace(name: str):
    """A namespace of that name, in which `lo` is up. It may have been deleted before the end."""
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def inside(name: str) -> list[str]:
    """Words before a command that put it there. What is mounted stays, unlike with `ip netns exec`."""
    return ["nsenter", f"--net=/run/netns/{name}", "--"]
