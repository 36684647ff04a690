"""The split of the step time: closed forms, sums and the order of events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.price import Price
from minitrain.operations import COMM, NO_SAMPLES, ON_COMPUTE, RECV, SEND, Event, EventLog, Stream
from minitrain.run.analysis.breakdown import Breakdown, breakdown, pass_times
from minitrain.run.analysis.timeline import as_timeline

_INTERVAL = st.tuples(
    st.sampled_from(["compute", COMM, SEND, RECV]),
    st.floats(0, 1e3, allow_subnormal=False),
    st.floats(0, 1e2, allow_subnormal=False),
)


def _event(rank: int, stream: str, time: float, duration: float) -> Event:
    return Event("forward", 0, rank, time, duration, 0, stream=stream)


def test_a_rank_alone_splits_into_compute_exposed_communication_and_waiting() -> None:
    log = [_event(0, "compute", 0, 4), _event(0, COMM, 5, 2), _event(0, "compute", 7, 1)]
    split = breakdown([log], end=10)
    assert [*split.computing, *split.exposed, *split.waiting] == [5, 2, 3]
    assert split.overlapped.tolist() == [0]
    assert (split.bubble_fraction, split.exposed_comm_fraction, split.computing_fraction) == (0.3, 0.2, 0.5)


def test_communication_beside_compute_is_overlapped_and_no_part_of_the_sum() -> None:
    log = [_event(0, COMM, 1, 5), _event(0, "compute", 0, 4), _event(0, SEND, 2, 1)]
    split = breakdown([log])
    assert (split.computing[0], split.exposed[0], split.overlapped[0], split.waiting[0]) == (4, 2, 3, 0)
    assert split.communicating[0] == 5


def test_the_step_ends_with_the_slowest_rank_and_a_rank_without_events_waits() -> None:
    split = breakdown([[_event(0, "compute", 0, 3)], [], [_event(2, "compute", 0, 2)]])
    assert split.step_time_s == 3
    assert split.waiting.tolist() == [0, 3, 1]


def test_an_empty_log_has_no_shares() -> None:
    split = breakdown([[], []])
    assert split.bubble_fraction == 0
    assert split.waiting.tolist() == [0, 0]


def test_a_step_that_ends_before_its_log_is_refused() -> None:
    with pytest.raises(UsageError, match="must not end before its log: got an end at 1 s and events until 3"):
        breakdown([[_event(0, "compute", 0, 3)]], end=1)


@given(st.lists(st.lists(_INTERVAL, max_size=8), min_size=1, max_size=4))
def test_the_parts_add_up_to_the_step_time_and_none_is_negative(
    ranks: list[list[tuple[str, float, float]]],
) -> None:
    split = breakdown([[_event(rank, *row) for row in rows] for rank, rows in enumerate(ranks)])
    total = split.computing + split.exposed + split.waiting
    assert np.allclose(total, split.step_time_s, rtol=1e-12, atol=0)
    assert min(part.min() for part in (split.computing, split.exposed, split.overlapped, split.waiting)) >= 0


@given(st.lists(_INTERVAL, max_size=8))
def test_the_split_agrees_with_counting_moments(rows: list[tuple[str, float, float]]) -> None:
    whole = [(stream, round(time), round(duration)) for stream, time, duration in rows]
    split = breakdown([[_event(0, *row) for row in whole]], end=1200)
    busy: dict[bool, set[int]] = {True: set(), False: set()}
    for stream, time, duration in whole:
        busy[stream == "compute"].update(range(time, time + duration))
    assert split.computing[0] == len(busy[True])
    assert split.exposed[0] == len(busy[False] - busy[True])
    assert split.overlapped[0] == len(busy[False] & busy[True])
    assert split.waiting[0] == 1200 - len(busy[True] | busy[False])


def _flat(rank: int, rows: list[tuple[str, float, float]]) -> EventLog:
    log = EventLog(rank)
    for stream, time, duration in rows:
        on = ON_COMPUTE if stream == "compute" else Stream(stream)
        typ = "forward" if stream == "compute" else stream
        log._rows.extend((typ, 0, time, Price(duration), 0, NO_SAMPLES, on, None, time, None))
    return log


def _require_equal(left: Breakdown, right: Breakdown) -> None:
    for name in ("computing", "exposed", "overlapped", "waiting"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist()
    assert (left.bubble_fraction, left.exposed_comm_fraction) == (right.bubble_fraction, right.exposed_comm_fraction)


@given(st.lists(st.lists(_INTERVAL, max_size=8), max_size=4), st.sampled_from([{"forward"}, {"forward", SEND}, set()]))
def test_flat_logs_split_as_their_columns_do_to_the_last_float(
    ranks: list[list[tuple[str, float, float]]], typs: set[str]
) -> None:
    logs = [_flat(rank, rows) for rank, rows in enumerate(ranks)]
    timeline = as_timeline(logs)
    _require_equal(breakdown(logs), breakdown(timeline))
    assert pass_times(logs, typs) == pass_times(timeline, typs)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", [name for name in mt.strategies() if name != "single"])
def test_runs_split_as_their_columns_do_to_the_last_float(name: str) -> None:
    run = mt.simulate(name, world_size=4, num_layers=8, global_batch_size=32)
    _require_equal(run.breakdown, breakdown(run.timeline))
