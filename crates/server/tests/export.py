"""Sends spans with the real OpenTelemetry SDK: `export.py grpc|http ENDPOINT`. Prints their ids."""

import sys

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

import underspan.otel

protocol, endpoint = sys.argv[1:]
if protocol == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
else:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import Compression, OTLPSpanExporter

    exporter = OTLPSpanExporter(endpoint=endpoint, compression=Compression.Gzip)

provider = TracerProvider(resource=Resource({"service.name": "shop", "n": 7, "list": ["a", "b"]}))
provider.add_span_processor(BatchSpanProcessor(exporter))
underspan.otel.install(provider)
tracer = provider.get_tracer("io.example", "1.2.3")
with tracer.start_as_current_span("parent", kind=SpanKind.SERVER) as parent:
    context = parent.get_span_context()
    with tracer.start_as_current_span(
        "child",
        kind=SpanKind.CLIENT,
        links=[Link(context, {"why": "test"})],
        attributes={"ok": True, "ratio": 0.5, "bytes": 12, "names": ["x", "y"]},
    ) as child:
        child.add_event("cache miss", {"key": "k"})
        child.set_status(Status(StatusCode.ERROR, "boom"))
assert provider.force_flush(), "the export failed"
provider.shutdown()
print(f"{context.trace_id:032x}", f"{context.span_id:016x}")
