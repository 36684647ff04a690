"""Columns read straight from the engine's flat logs: equal to those of its events, and much faster."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.operations import EventLog
from minitrain.run.analysis.timeline import Timeline, as_timeline, timeline_of_events, timeline_of_rows

_LARGE: Any = {"world_size": 8, "num_layers": 16, "global_batch_size": 16}


def _require_same(left: Timeline, right: Timeline) -> None:
    for field in fields(Timeline):
        if field.name in ("price", "prices"):  # which events do not have
            continue
        mine, theirs = getattr(left, field.name), getattr(right, field.name)
        assert type(mine) is type(theirs), field.name
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype, field.name
            np.testing.assert_array_equal(mine, theirs, field.name)
        else:
            assert mine == theirs, field.name


@pytest.mark.parametrize("name", ["ddp", "zero3_prefetch", "1f1b", "interleaved_1f1b", "pp_dp", "zbv"])
def test_rows_and_events_give_the_same_columns(name: str) -> None:
    run = mt.simulate(name, **_LARGE)
    assert all(isinstance(log, EventLog) for log in run.logs)
    _require_same(as_timeline(run.logs), timeline_of_events([list(log) for log in run.logs]))


def test_copies_of_logs_say_the_same() -> None:
    logs = mt.simulate("zero3_prefetch", **_LARGE).logs
    assert pickle.loads(pickle.dumps(logs)) == copy.deepcopy(logs) == logs


def _forwards(*samples: list[int], layer: int = 0) -> EventLog:
    async def program(model: Any) -> Any:
        for numbers in samples:
            model.log_event("forward", layer, frozenset(numbers))
        return model

    return mt.simulate(program, check=False, world_size=1, num_layers=1, global_batch_size=1).logs[0]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("samples", "again"),
    [
        ([[0], [1], [0]], [False, False, True]),
        ([[0, 1], [1, 2], [3]], [False, True, False]),
        ([[], [], [0], [0]], [False, False, False, True]),
    ],
)
def test_a_forward_of_samples_that_passed_before_is_recomputed(samples: list[list[int]], again: list[bool]) -> None:
    log = _forwards(*samples)
    assert as_timeline([log]).recomputed.tolist() == again
    _require_same(timeline_of_rows([log]), timeline_of_events([list(log)]))


def test_logs_without_events_have_columns_without_rows() -> None:
    _require_same(timeline_of_rows([EventLog(0), EventLog(1)]), timeline_of_events([[], []]))
    assert as_timeline([]).num_ranks == 0
