"""Columns of event logs: the same facts as the events, one array a field."""

from __future__ import annotations

import numpy as np

from minitrain.operations import COMM, RECV, SEND, Event
from minitrain.run.analysis.explanation import Explanation
from minitrain.run.analysis.timeline import NO_LAYER, NONE, Stream, as_timeline


def _logs() -> list[list[Event]]:
    half = frozenset([0, 1])
    first = [
        Event("forward", 3, 0, 0.0, 2.0, 10, half),
        Event("send", 4, 0, 2.0, 1.0, 11, half, SEND, peer=2, tag="grad", size_bytes=8, launched=1.5),
        Event("all_reduce", None, 0, 4.0, 1.0, 12, stream=COMM, group=(0, 2), waited_for=2, awaited=5),
    ]
    third = [Event("recv", 4, 2, 2.0, 1.0, 5, half, RECV, peer=0, tag="grad")]
    return [first, [], third]


def test_columns_hold_every_field_of_every_event() -> None:
    line = as_timeline(_logs())
    assert line.starts.tolist() == [0, 3, 3, 4]
    assert line.rank.tolist() == [0, 0, 0, 2]
    assert line.index.tolist() == [0, 1, 2, 0]
    assert line.layer.tolist() == [3, 4, NO_LAYER, 4]
    assert [line.typs[code] for code in line.typ] == ["forward", "send", "all_reduce", "recv"]
    assert [len(line.sample_sets[code]) for code in line.samples] == [2, 2, 0, 2]
    assert [line.tags[code] for code in line.tag] == [None, "grad", None, "grad"]
    assert line.waited_for.tolist() == [NONE, NONE, 2, NONE]
    assert line.end.tolist() == [2.0, 3.0, 5.0, 3.0]
    assert line.launched.tolist() == [0.0, 1.5, 4.0, 2.0]
    assert line.step_time == 5.0


def test_a_timeline_and_an_explanation_show_themselves_in_a_line() -> None:
    line = as_timeline(_logs())
    assert repr(line) == "<Timeline: 4 events on 3 ranks>"
    assert repr(Explanation(line, 2)).startswith("Explanation(timeline=<Timeline: 4 events on 3 ranks>, bytes_per_el")


def test_every_group_and_every_peer_has_a_stream_of_its_own() -> None:
    line = as_timeline(_logs())
    assert line.streams == (
        Stream("compute"),
        Stream("comm", (0, 2)),
        Stream("send", peer=2),
        Stream("recv", peer=0),
    )
    assert [line.streams[code].kind for code in line.stream] == ["compute", "send", "comm", "recv"]
    assert line.computes.tolist() == [True, False, False, False]


def test_only_an_operation_awaited_later_than_at_once_overlaps() -> None:
    line = as_timeline(_logs())
    assert line.overlaps.tolist() == [False, False, True, False]
    assert line.sampled.tolist() == [0.0, 1.5, 4.0, 2.0]


def test_equal_groups_are_one_group_whoever_made_them() -> None:
    groups = [tuple(range(first, 2)) for first in (0, 0)]
    logs = [[Event("barrier", None, 0, 0, 0, 0, stream=COMM, group=group)] for group in groups]
    assert as_timeline(logs).groups == ((0, 1),)


def test_columns_are_not_converted_again() -> None:
    line = as_timeline(_logs())
    assert as_timeline(line) is line


def test_a_log_without_events_has_columns_without_rows() -> None:
    line = as_timeline([[], []])
    assert (line.num_ranks, line.num_events, line.step_time) == (2, 0, 0.0)
    assert not line.computes.any()
    assert not np.any(line.overlaps)
