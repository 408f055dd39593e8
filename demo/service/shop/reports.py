"""Reports, made on a background thread so that no request has to wait for one. Or so its author thought."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from shop import catalogue

EXECUTOR = ThreadPoolExecutor(max_workers=1, thread_name_prefix="report")


class Line:
    """One line of a report. It knows its neighbours, so lines are garbage that only the collector can free."""

    def __init__(self, text: str, previous: Line | None) -> None:
        self.text = text
        self.previous = previous
        self.next: Line | None = None
        if previous is not None:
            previous.next = self


def start() -> None:
    """Have a report made."""
    EXECUTOR.submit(make)


def make() -> int:
    """Price the first 5,000 products, then hand the memory back. Returns how many objects were garbage."""
    line = None
    for product in islice(catalogue.PRODUCTS.values(), 5_000):
        line = Line(f"{product.sku} {product.price_cents / 100:.2f}", line)
    del line
    return gc.collect()
