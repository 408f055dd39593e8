"""Stamps OpenTelemetry spans with the process and the kernel's thread they started on.

With that, Underspan can say what the thread of a span was doing or waiting for. OpenTelemetry's own
`thread.id` cannot serve: in Python it is `threading.get_ident()`, an address.

`opentelemetry-instrument` finds this by itself once Underspan is installed. Elsewhere::

    import underspan.otel

    underspan.otel.install()
"""

from __future__ import annotations

import logging
import threading
import weakref
from os import getpid
from threading import get_native_id
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, SpanProcessor

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

__all__ = ["PID", "TID", "UnderspanSpanProcessor", "install"]

PID = "underspan.pid"
"""Attribute: the process id, as the process itself sees it."""
TID = "underspan.tid"
"""Attribute: the kernel's thread id, as the process itself sees it."""

_logger = logging.getLogger(__name__)
_installed: weakref.WeakSet[trace.TracerProvider] = weakref.WeakSet()
_lock = threading.Lock()


class UnderspanSpanProcessor(SpanProcessor):
    """Stamps each span as it starts. Exports nothing."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        # Both are asked anew each time: they cost about 0.4 us of a span's ten, and a cache would
        # be wrong after a fork that Python was not told of.
        try:
            span.set_attributes({PID: getpid(), TID: get_native_id()})
        except Exception:  # A span without a stamp is better than a request that fails.
            _logger.debug("cannot stamp a span", exc_info=True)


def install(provider: trace.TracerProvider | None = None) -> bool:
    """Adds the processor to `provider`, or to the global one. Calling it again does no harm.

    Call it once the provider is set. Returns whether the provider stamps its spans from now on;
    where it does not, a warning says why.
    """
    if provider is None:
        provider = trace.get_tracer_provider()
    add = getattr(provider, "add_span_processor", None)
    if add is None:
        _logger.warning(
            "spans are not stamped: %s takes no span processors; call underspan.otel.install() "
            "after trace.set_tracer_provider(), or pass the provider",
            type(provider).__name__,
        )
        return False
    if isinstance(getattr(provider, "_active_span_processor", None), ConcurrentMultiSpanProcessor):
        _logger.warning(
            "spans are not stamped: this provider runs its processors on threads of their own, "
            "which hides the span's thread; use the default SynchronousMultiSpanProcessor"
        )
        return False
    with _lock:
        if provider not in _installed:
            add(UnderspanSpanProcessor())
            _installed.add(provider)
    return True
