"""Chrome traces: what a viewer needs to draw every operation, counter and arrow."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.files import write_text
from minitrain.operations import COMM, RECV, SEND, STORE_NAMES, Event
from minitrain.view.exports import chrome_trace, write_chrome_trace
from tests.sample_logs import data_parallel, one_f_one_b

Json = dict[str, Any]


def _phase(trace: Json, phase: str) -> list[Json]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def _threads(trace: Json) -> dict[tuple[int, int], list[Json]]:
    threads: dict[tuple[int, int], list[Json]] = {}
    for event in _phase(trace, "X"):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    return threads


def test_every_operation_is_one_slice_with_its_facts() -> None:
    samples = frozenset([0, 1, 2, 5])
    log = [
        Event("forward", 3, 0, 0.5, 0.25, 8, samples, recomputed=True),
        Event("all_reduce", None, 0, 1.0, 0.125, 9, stream=COMM, size_bytes=64, launched=0.75, waited_for=1),
    ]
    forward, reduce = _phase(chrome_trace([log, []]), "X")
    assert (forward["name"], forward["cat"], forward["pid"]) == ("forward", "compute", 0)
    assert (forward["ts"], forward["dur"]) == (500000, 250000)
    assert forward["args"] == {
        "memory_bytes": 16,
        "layer": 3,
        "samples": "0-2,5",
        "recomputed": True,
        "idle_before": "warm-up bubble",
        "idle_for": "what comes before forward of layer 3",
    }
    assert reduce["cat"] == "communication"
    assert reduce["args"] == {
        "memory_bytes": 18,
        "bytes": 64,
        "waited_us": 250000,
        "reason": "waited for rank 1",
        "idle_before": "straggler",
        "idle_for": "what comes before all_reduce",
    }


def test_a_wait_for_the_own_stream_says_so() -> None:
    log = [Event("all_reduce", 0, 0, 1.0, 1.0, 0, stream=COMM, launched=0.0)]
    assert _phase(chrome_trace([log]), "X")[0]["args"]["reason"] == "waited for an earlier operation of its stream"


def test_processes_are_ranks_and_threads_are_streams_in_order() -> None:
    trace = chrome_trace(one_f_one_b(num_stages=3, num_microbatches=2))
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in _phase(trace, "M") if "name" in e["args"]}
    assert [names[rank, None] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    of_middle = [name for (rank, thread), name in sorted(names.items(), key=str) if rank == 1 and thread]
    assert of_middle == ["compute", "send to 0", "send to 2", "recv from 0", "recv from 2"]
    assert not {thread for _, thread in names if thread is not None} & {0, 1, 2}


def test_the_memory_counter_has_a_value_for_every_change() -> None:
    log = [Event("forward", 0, 0, t, 1.0, memory) for t, memory in enumerate([1, 1, 3])]
    counters = _phase(chrome_trace([log], bytes_per_element=4), "C")
    assert [(event["ts"], event["args"]["bytes"]) for event in counters] == [(0, 4), (2e6, 12)]


def test_an_arrow_leads_from_every_send_to_its_receive() -> None:
    trace = chrome_trace(one_f_one_b(num_stages=4, num_microbatches=6))
    starts = {event["id"]: event for event in _phase(trace, "s")}
    ends = {event["id"]: event for event in _phase(trace, "f")}
    assert len(starts) == len(_phase(trace, "s")) == 2 * 3 * 6
    assert starts.keys() == ends.keys()
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in _phase(trace, "X")}
    for ident, start in starts.items():
        sent = slices[start["pid"], start["tid"], start["ts"]]
        received = slices[ends[ident]["pid"], ends[ident]["tid"], ends[ident]["ts"]]
        assert (sent["name"], received["name"]) == ("send", "recv")
        assert sent["args"]["samples"] == received["args"]["samples"]
        assert abs(start["pid"] - ends[ident]["pid"]) == 1


def test_messages_match_first_in_first_out_within_a_tag() -> None:
    def message(kind: str, rank: int, time: float, tag: str) -> Event:
        return Event(kind, None, rank, time, 1.0, 0, stream=kind, peer=1 - rank, tag=tag)

    sends = [message(SEND, 0, 0, "a"), message(SEND, 0, 1, "b"), message(SEND, 0, 2, "a")]
    receives = [message(RECV, 1, 3, "b"), message(RECV, 1, 4, "a")]
    trace = chrome_trace([sends, receives])
    ends = {event["id"]: event["ts"] for event in _phase(trace, "f")}
    assert {(e["ts"], ends[e["id"]]) for e in _phase(trace, "s")} == {(0, 4e6), (1e6, 3e6)}


def test_one_arrow_runs_through_the_members_of_a_collective() -> None:
    trace = chrome_trace(data_parallel(world_size=3, num_layers=2))
    arrows = {e["id"] for e in _phase(trace, "s")}
    assert len(arrows) == 2
    for ident in arrows:
        chain = [(e["ph"], e["pid"]) for e in trace["traceEvents"] if e.get("id") == ident]
        assert chain == [("s", 0), ("t", 1), ("f", 2)]


def test_an_operation_that_takes_no_time_has_no_arrow() -> None:
    logs = [
        [Event("send", 0, 0, 1.0, 0.0, 0, stream=SEND, peer=1)],
        [Event("recv", 0, 1, 1.0, 0.0, 0, stream=RECV, peer=0)],
    ]
    assert not _phase(chrome_trace(logs), "s")


@given(st.lists(st.floats(0, 1e-3, allow_subnormal=False), min_size=2, max_size=30))
@example([9.571456174057883e-05, 1.192092896e-07, 0.0005414526711164377, 0.0])
def test_events_on_a_thread_never_overlap_for_any_reader(durations: list[float]) -> None:
    time, log = 0.0, []
    for duration in durations:
        log.append(Event("forward", 0, 0, time, duration, 0))
        time += duration
    for events in _threads(chrome_trace([log])).values():
        for event, following in pairwise(events):
            assert event["ts"] + event["dur"] <= following["ts"]
            assert int(event["ts"] * 1000) + int(event["dur"] * 1000) <= int(following["ts"] * 1000)
            assert abs(event["dur"] * 1e-6 - log[events.index(event)].duration) < 1.6e-9


@pytest.mark.parametrize("overlap", [False, True])
def test_no_slices_of_a_schedule_overlap_on_their_thread(overlap: bool) -> None:
    for events in _threads(chrome_trace(data_parallel(overlap=overlap))).values():
        assert all(event["ts"] + event["dur"] <= later["ts"] for event, later in pairwise(events))


@pytest.mark.parametrize("name", ["trace.json", "deeper/trace.json.gz"])
def test_a_written_trace_is_the_trace_and_nothing_is_left_beside_it(tmp_path: Path, name: str) -> None:
    logs = one_f_one_b(num_stages=2, num_microbatches=2)
    path = write_chrome_trace(tmp_path / name, logs)
    raw = path.read_bytes()
    text = gzip.decompress(raw) if name.endswith("gz") else raw
    assert json.loads(text) == chrome_trace(logs)
    assert [entry.name for entry in path.parent.iterdir() if entry.is_file()] == [path.name]
    assert write_chrome_trace(path, logs).read_bytes() == raw


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError, match="division"):
        write_text(path, (f"{1 // number}" for number in (1, 0)))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_trace_without_events_is_still_a_trace() -> None:
    trace = chrome_trace([[], []])
    assert [event["ph"] for event in trace["traceEvents"]] == ["M"] * 4


def test_a_trace_of_many_events_is_written_in_pieces_that_fit_together() -> None:
    log = [Event("forward", 0, 0, float(t), 1.0, t) for t in range(5000)]
    assert len(_phase(chrome_trace([log]), "X")) == 5000


def test_counters_by_kind_add_up_to_the_memory_counter() -> None:
    run = mt.simulate("1f1b", world_size=4, num_layers=8, global_batch_size=16, memory_by_kind=True)
    events = chrome_trace(run.timeline, 2, run.memory_journals)["traceEvents"]
    kinds = [event for event in events if event["ph"] == "C" and event["name"] == "memory of"]
    totals = {(event["pid"], event["ts"]): sum(event["args"].values()) for event in kinds}
    memory = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
    last = {(event["pid"], event["ts"]): event["args"]["bytes"] for event in memory}
    assert last
    assert all(totals.get(moment, size) == size for moment, size in last.items())
    assert {event["pid"] for event in kinds} == set(range(4))
    assert set(kinds[0]["args"]) <= set(STORE_NAMES.values())


def test_a_rank_without_changes_has_no_counter_by_kind() -> None:
    assert not [e for e in chrome_trace([[]], 2, [[]])["traceEvents"] if e["ph"] == "C"]
