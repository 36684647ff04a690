"""Exports for other tools, checked with the tools' own readers where they are installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.run.analysis.timeline import Timeline
from minitrain.view.exports import pb_number, pb_numbers, pb_present, pb_varint, write_chakra, write_hta

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
_NAMES = ["ddp", "zero3_prefetch", "1f1b", "pp_dp", "zbv"]
_COMP, _SEND, _RECV, _COLL = 4, 5, 6, 7


def _line(name: str) -> Timeline:
    return mt.simulate(name, **_SIZES).timeline


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Read the fields of a message of whole numbers and bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        value, place = _varint(data, place)
        if key & 7 == 2:
            yield key >> 3, data[place : place + value]
            place += value
        else:
            yield key >> 3, value


def _messages(path: Path) -> list[bytes]:
    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        size, place = _varint(data, place)
        found.append(data[place : place + size])
        place += size
    return found


def _nodes(path: Path) -> list[dict[str, Any]]:
    """Read the nodes of one rank's file as id, name, type, deps, start, duration and attributes."""
    nodes = []
    for message in _messages(path)[1:]:
        node: dict[str, Any] = {"id": 0, "deps": [], "start": 0, "duration": 0}
        for field, value in _fields(message):
            if field == 10:
                parts = dict(_fields(value))
                name = parts.pop(1).decode()
                node[name] = next(iter(parts.values()))
            elif field == 5:
                place = 0
                while place < len(value):
                    number, place = _varint(value, place)
                    node["deps"].append(number)
            else:
                names = {1: "id", 2: "name", 3: "type", 6: "start", 7: "duration"}
                node[names[field]] = value.decode() if field == 2 else value
        nodes.append(node)
    return nodes


@pytest.mark.parametrize(("value", "written"), [(0, "00"), (127, "7f"), (300, "ac02"), (2**40, "808080808020")])
def test_whole_numbers_are_written_seven_bits_a_byte(value: int, written: str) -> None:
    assert pb_varint(value).hex() == written
    assert _varint(pb_varint(value), 0) == (value, len(written) // 2)


def test_a_number_that_is_0_is_left_out_unless_it_must_be_seen() -> None:
    assert (pb_number(3, 0), pb_present(3, 0), pb_numbers(3, [])) == (b"", b"\x18\x00", b"")


@pytest.mark.parametrize("name", _NAMES)
def test_a_chakra_file_has_a_node_for_every_operation(tmp_path: Path, name: str) -> None:
    line = _line(name)
    *files, groups = write_chakra(tmp_path, line)
    assert [path.name for path in files] == [f"minitrain.{rank}.et" for rank in range(4)]
    known = json.loads(groups.read_text())
    for rank, path in enumerate(files):
        assert dict(_fields(_messages(path)[0])) == {1: b"0.0.4"}
        nodes = _nodes(path)
        own = slice(line.starts[rank], line.starts[rank + 1])
        assert [node["id"] for node in nodes] == list(range(len(nodes)))
        assert sum(node["type"] == _COMP for node in nodes) == line.computes[own].sum()
        np.testing.assert_allclose([node["duration"] for node in nodes], line.duration[own] * 1e6, atol=1)
        assert all(rank in known[node["pg_name"].decode()] for node in nodes if node["type"] == _COLL)


@pytest.mark.parametrize("name", _NAMES)
def test_what_a_node_waits_for_came_before_it_and_ended_before_it_began(tmp_path: Path, name: str) -> None:
    for path in write_chakra(tmp_path, _line(name))[:-1]:
        nodes = _nodes(path)
        assert sum(not node["deps"] for node in nodes) < len(nodes) / 2
        for node in nodes:
            for other in node["deps"]:
                assert other < node["id"]
                assert nodes[other]["start"] + nodes[other]["duration"] <= node["start"] + 1


def test_sends_and_receives_of_chakra_files_match_one_to_one(tmp_path: Path) -> None:
    nodes = [node for path in write_chakra(tmp_path, _line("zbv"))[:-1] for node in _nodes(path)]
    keys = ("comm_src", "comm_dst", "comm_tag", "comm_size")
    sent, received = ([tuple(n[key] for key in keys) for n in nodes if n["type"] == typ] for typ in (_SEND, _RECV))
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent) > 0


def test_the_chakra_library_reads_the_same_nodes(tmp_path: Path) -> None:
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="mlc-chakra is not installed")
    reader = pytest.importorskip("chakra.src.third_party.utils.protolib", reason="mlc-chakra is not installed")
    for path in write_chakra(tmp_path, _line("pp_dp"))[:-1]:
        with reader.openFileRd(str(path)) as file:
            head, read = schema.GlobalMetadata(), []
            assert reader.decodeMessage(file, head)
            while reader.decodeMessage(file, node := schema.Node()):
                read.append(node)
        assert head.version == "0.0.4"
        for mine, theirs in zip(_nodes(path), read, strict=True):
            assert (mine["id"], mine["name"], mine["type"]) == (theirs.id, theirs.name, theirs.type)
            assert (mine["deps"], mine["duration"]) == (list(theirs.data_deps), theirs.duration_micros)
            attributes = {attr.name: getattr(attr, attr.WhichOneof("value")) for attr in theirs.attr}
            assert attributes.pop("is_cpu_op") is False
            if theirs.type == schema.COMM_COLL_NODE:
                assert isinstance(attributes["pg_name"], str)
                assert attributes["comm_type"] == mine["comm_type"]
            assert all(attributes[name] == mine[name] for name in attributes if name != "pg_name")


@pytest.mark.parametrize("name", _NAMES)
def test_an_hta_file_names_its_rank_and_has_whole_microseconds_on_streams(tmp_path: Path, name: str) -> None:
    line = _line(name)
    for rank, path in enumerate(write_hta(tmp_path, line)):
        text = path.read_text()
        assert re.search(r'"rank":\s+(\d+)', text[:200])
        data = json.loads(text)
        assert data["distributedInfo"] == {"rank": rank, "world_size": 4}
        streams: dict[int, int] = {}
        for event in data["traceEvents"]:
            assert event["args"]["stream"] >= 1
            assert event["name"].startswith("nccl") == (event["args"]["stream"] != 7)
            assert type(event["ts"]) is type(event["dur"]) is int
        for event in sorted(data["traceEvents"], key=lambda event: (event["ts"], event["dur"])):
            stream = event["args"]["stream"]
            assert event["ts"] >= streams.get(stream, 0)
            streams[stream] = event["ts"] + event["dur"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["1f1b", "zero3_prefetch"])
def test_idle_time_and_overlap_of_holistic_trace_analysis_agree_with_ours(tmp_path: Path, name: str) -> None:
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    run = mt.simulate(name, **{**_SIZES, "num_layers": 16}, hardware="a100_80g")
    line, split = run.timeline, run.breakdown
    write_hta(tmp_path, line)
    theirs = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    idle = theirs.get_temporal_breakdown(visualize=False).sort_values("rank")
    rounding = 1.0 * np.diff(line.starts)  # µs, one an operation at most
    ends = np.array([line.end[line.rank == rank].max() for rank in range(4)])
    waiting = (split.waiting - (run.step_time - ends)) * 1e6
    assert np.all(np.abs(idle["idle_time(us)"].to_numpy() - waiting) <= rounding)
    assert np.all(np.abs(idle["compute_time(us)"].to_numpy() - split.computing * 1e6) <= rounding)
    overlap = theirs.get_comm_comp_overlap(visualize=False).sort_values("rank")["comp_comm_overlap_pctg"].to_numpy()
    ours = 100 * split.overlapped / (split.exposed + split.overlapped)
    np.testing.assert_allclose(overlap, ours, atol=1.0)
