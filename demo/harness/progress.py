"""Tells whoever waits what is being waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what begins now and, once it is done, how long it took."""
    print(f"  {what} … ", end="", flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        print("stopped", flush=True)
        raise
    print(f"{time.monotonic() - start:.1f} s", flush=True)
