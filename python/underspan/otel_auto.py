"""What `opentelemetry-instrument` calls once its provider is configured.

It is an entry point, not a distro or a configurator: there can be only one of those, and it is the
user's. An error raised here would end auto-instrumentation as a whole, so none is.
"""

import logging

_logger = logging.getLogger(__name__)


def pre_instrument():
    """Before the instrumentors: one of them may fail, and what follows would not be called."""
    _install()


def post_instrument():
    """After the instrumentors, for those that set the provider."""
    _install()


def _install():
    try:
        from opentelemetry import trace

        # No SDK, or not configured (yet): the user's code may set a provider and install by hand.
        if hasattr(trace.get_tracer_provider(), "add_span_processor"):
            from underspan.otel import install

            install()
    except Exception:
        _logger.warning("Underspan does not stamp spans", exc_info=True)
