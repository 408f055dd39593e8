"""Underspan: every millisecond your APM cannot see, accounted for.

`underspan.otel` stamps OpenTelemetry spans with the process and thread they ran on.
`underspan.store` hosts the embedded store.
"""

__version__ = "0.1.0"
