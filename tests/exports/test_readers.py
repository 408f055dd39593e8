"""Every export, read by what it is for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / ".cache/readers/speedscope/dist/release/file-format-schema.json"
WHOLE_MS, ON_CPU_MS = 733, 40


def pprof(*arguments: object) -> str:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    assert go, "Go is not installed: run tools/setup.sh system"
    command = [go, "tool", "pprof", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cumulated(text: str) -> dict[str, float]:
    """Milliseconds by function, of `-top`."""
    rows = re.findall(r"^ +\S+ +\S+% +\S+% +(-?[0-9.]+)ms +\S+% +(.*)$", text, re.MULTILINE)
    return {name: float(ms) for ms, name in rows}


def test_pprof_sums_what_threads_waited_for(exports: Path) -> None:
    text = pprof(
        "-top",
        "-cum",
        "-unit=ms",
        "-nodefraction=0",
        "-sample_index=off-cpu",
        exports / "wall.pb.gz",
    )
    assert f"Total samples = {WHOLE_MS - ON_CPU_MS}ms" in text
    by_function = cumulated(text)
    # 180 ms for a lock, 12 ms for a CPU after it, 60 ms for the database.
    assert by_function["export"] == 252
    assert by_function["futex_wait"] == 192
    assert by_function["tcp_recvmsg"] == 60
    assert by_function["[not sampled: sleep]"] == 33


def test_pprof_sums_what_ran(exports: Path) -> None:
    text = pprof("-top", "-cum", "-unit=ms", "-nodefraction=0", "-sample_index=cpu", exports / "wall.pb.gz")
    assert f"Total samples = {ON_CPU_MS}ms" in text
    assert cumulated(text)["encoder_listencode_dict"] == 20


def test_pprof_knows_lines_and_labels(exports: Path) -> None:
    raw = pprof("-raw", exports / "wall.pb.gz")
    assert "cpu/nanoseconds off-cpu/nanoseconds" in raw
    assert re.search(r"export /srv/shop/reports\.py:88", raw)
    assert "thread:[worker_3]" in raw and "state:[lock_wait]" in raw and "request_id:[00f1a2b3c4d5e6f7]" in raw
    rooted = pprof(
        "-top",
        "-cum",
        "-unit=ms",
        "-tagroot=state",
        "-sample_index=off-cpu",
        exports / "wall.pb.gz",
    )
    assert cumulated(rooted)["lock_wait"] == 180


def test_pprof_reads_a_difference(exports: Path) -> None:
    text = pprof("-top", "-cum", "-unit=ms", "-nodefraction=0", exports / "diff.pb.gz")
    # The idle loop and the wait for the lock went away.
    assert cumulated(text)["do_epoll_wait"] == -400
    assert cumulated(text)["export"] == -180


def test_folded_stacks_sum_to_the_whole(exports: Path) -> None:
    lines = [line.rpartition(" ") for line in (exports / "wall.folded").read_text().splitlines()]
    assert sum(int(ns) for _, _, ns in lines) == WHOLE_MS * 1_000_000
    # Semicolons separate, so none is left in a name.
    assert all(stack.count(";") == len(re.findall(r"[^;]+", stack)) - 1 for stack, _, _ in lines)
    both = [line.split(" ")[-2:] for line in (exports / "diff.folded").read_text().splitlines()]
    assert sum(int(before) - int(after) for before, after in both) == 580 * 1_000_000


def test_speedscope_accepts_the_file(exports: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    file = json.loads((exports / "wall.speedscope.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(file, schema)
    # The schema does say something.
    del file["profiles"][0]["weights"]
    assert list(jsonschema.Draft7Validator(schema).iter_errors(file))


def unknown_fields(message: Message, path: str = "trace") -> list[str]:
    found = [f"{path}: field {field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                found += unknown_fields(each, f"{path}.{field.name}")
    return found


def test_perfetto_knows_every_field(exports: Path) -> None:
    trace = perfetto.Trace.FromString((exports / "wall.pftrace").read_bytes())
    assert trace.IsInitialized()
    assert unknown_fields(trace) == []


def test_perfetto_has_tracks_slices_and_stacks(exports: Path) -> None:
    trace = perfetto.Trace.FromString((exports / "wall.pftrace").read_bytes())
    kind = perfetto.TrackEvent
    tracks, threads, stacks, frames, names = {}, {}, {}, {}, {}
    open_slices, slices, weight = Counter(), Counter(), Counter()
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert not descriptor.parent_uuid or descriptor.parent_uuid in tracks
            tracks[descriptor.uuid] = descriptor
            if descriptor.HasField("thread"):
                threads[descriptor.uuid] = descriptor.thread.thread_name
        data = packet.interned_data
        names.update({name.iid: name.str.decode() for name in data.function_names})
        frames.update({frame.iid: frame for frame in data.frames})
        stacks.update({stack.iid: stack for stack in data.callstacks})
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        if event.type == kind.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid] += 1
            slices[event.name] += 1
        elif event.type == kind.TYPE_SLICE_END:
            open_slices[event.track_uuid] -= 1
            assert open_slices[event.track_uuid] == 0, "slices of a track follow each other"
        else:
            functions = [names[frames[iid].function_name_id] for iid in stacks[event.callstack_iid].frame_ids]
            assert functions
            weight[threads[event.track_uuid]] += event.callstack_weight
            weight["all"] += event.callstack_weight
    assert not +open_slices
    assert slices == {
        "lock_wait": 1,
        "runnable": 1,
        "net_read": 1,
        "GET /export": 1,
        "GET /health": 2,
    }
    assert set(threads.values()) == {"MainThread", "worker_3", "pool;<1>"}
    assert weight["all"] == WHOLE_MS * 1e6
    assert weight["worker_3"] == 272e6


def test_firefox_tables_refer_to_what_is_there(exports: Path) -> None:
    file = json.loads((exports / "wall.firefox.json").read_text())
    assert {
        "interval",
        "startTime",
        "processType",
        "product",
        "stackwalk",
        "version",
        "categories",
    } <= set(file["meta"])
    whole = 0.0
    for thread in file["threads"]:
        strings = thread.get("stringArray") or file.get("shared", {}).get("stringArray")
        assert all(0 <= name < len(strings) for name in thread["funcTable"]["name"])
        for table in (
            "samples",
            "stackTable",
            "frameTable",
            "funcTable",
            "resourceTable",
            "markers",
        ):
            columns = [column for column in thread[table].values() if isinstance(column, list)]
            assert all(len(column) == thread[table]["length"] for column in columns), table
        assert all(parent is None or parent < at for at, parent in enumerate(thread["stackTable"]["prefix"]))
        whole += sum(thread["samples"]["weight"])
    assert abs(whole - WHOLE_MS) < 1e-6


def test_svg_is_xml_and_every_box_says_what_it_is(exports: Path) -> None:
    svg = "{http://www.w3.org/2000/svg}"
    for name in ("wall.svg", "ipc.svg", "diff.svg"):
        root = ElementTree.parse(exports / name).getroot()
        boxes = root.findall(f".//{svg}g[@id='boxes']/{svg}g")
        assert len(boxes) > 10
        assert all(box.findtext(f"{svg}title") for box in boxes)
