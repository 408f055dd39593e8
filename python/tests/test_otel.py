"""The span processor, with the real SDK."""

import os
import threading

import opentelemetry.sdk.trace as sdk
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from underspan import otel


@pytest.fixture
def provider():
    provider = sdk.TracerProvider()
    provider.exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(provider.exporter))
    return provider


def stamps(provider):
    return [
        (span.attributes.get(otel.PID), span.attributes.get(otel.TID))
        for span in provider.exporter.get_finished_spans()
    ]


def one_span(provider, name="work"):
    with provider.get_tracer("test").start_as_current_span(name):
        pass


def test_a_span_carries_the_thread_it_started_on(provider):
    assert otel.install(provider)
    one_span(provider)
    tids = []

    def work():
        tids.append(threading.get_native_id())
        one_span(provider)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert tids[0] != threading.get_native_id()
    assert stamps(provider) == [
        (os.getpid(), threading.get_native_id()),
        (os.getpid(), tids[0]),
    ]


def test_a_span_that_ends_elsewhere_keeps_the_stamp_of_its_start(provider):
    otel.install(provider)
    span = provider.get_tracer("test").start_span("work")
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    assert stamps(provider) == [(os.getpid(), threading.get_native_id())]


def test_installing_twice_adds_one_processor(provider):
    assert otel.install(provider)
    before = provider._active_span_processor._span_processors
    assert otel.install(provider)
    assert provider._active_span_processor._span_processors == before


def test_a_forked_child_stamps_itself(provider):
    otel.install(provider)
    one_span(provider)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            one_span(provider)
            pid, tid = stamps(provider)[-1]
            os.write(send, f"{pid} {tid}".encode())
            status = 0
        finally:
            os._exit(status)
    os.close(send)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(receive) as answer:
        # The main thread of a process has its pid.
        assert answer.read() == f"{child} {child}"


def test_a_provider_that_takes_no_processors_is_left_alone(caplog):
    assert not otel.install(trace.ProxyTracerProvider())
    assert "install()" in caplog.text


def test_a_provider_whose_processors_run_elsewhere_is_left_alone(caplog):
    concurrent = sdk.ConcurrentMultiSpanProcessor(num_threads=1)
    try:
        assert not otel.install(sdk.TracerProvider(active_span_processor=concurrent))
    finally:
        concurrent.shutdown()
    assert "SynchronousMultiSpanProcessor" in caplog.text


def test_a_span_that_refuses_attributes_does_not_fail_the_request():
    class Stubborn:
        def set_attributes(self, attributes):
            raise RuntimeError("no")

    otel.UnderspanSpanProcessor().on_start(Stubborn())
