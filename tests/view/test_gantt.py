"""What a Gantt chart draws over or in place of its bars: the critical path, and the heat map of many bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.operations import COMM, Event
from minitrain.run.analysis.timeline import as_timeline
from minitrain.view.bars import make_bars
from minitrain.view.gantt import BANDS, CRITICAL_PATH, STEPS, heat, path_points, scale

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}


def _run(name: str = "1f1b", **more: Any) -> mt.Run:
    return mt.simulate(name, **{**_SIZES, **more}, memory_by_kind=True)


def _named(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_the_critical_path_can_be_switched_on() -> None:
    run = _run()
    trace = _named(run.figure(), CRITICAL_PATH)
    assert trace.visible == "legendonly"
    assert trace.x[0] == pytest.approx(run.load_time * 1e3)


def test_the_line_of_the_critical_path_goes_from_the_steps_begin_to_its_end_without_a_jump_back() -> None:
    run = _run("zero3_prefetch")
    bars = make_bars(run.timeline)
    time, row = path_points(bars, np.zeros(4))
    assert (time[0], time[-1]) == (run.load_time, run.last_clock)
    assert np.all(np.diff(time) >= 0)
    assert set(row.tolist()) <= set(range(4))
    assert not np.any((row[1:-1] == row[:-2]) & (row[1:-1] == row[2:]))


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), max_size=6), st.integers(1, 7))
@example([(0.0, 2.225e-311)], 1)  # whose reciprocal is no finite number
def test_shares_of_the_heat_map_add_up_to_the_bars(spans: list[tuple[float, float]], num_bins: int) -> None:
    log, time = [], 0.0
    for gap, length in spans:
        log.append(Event("forward", 0, 0, time + gap, length, 0))
        time += gap + length
    bars = make_bars(as_timeline([log]))
    shares = heat(bars, num_bins)
    computing = shares.computing.sum() * bars.step_end / num_bins
    assert computing == pytest.approx(sum(length for _, length in spans), abs=1e-6 * max(time, 1))


def test_the_heat_map_averages_neighbouring_ranks_where_they_are_many() -> None:
    logs = [[Event("forward", 0, rank, 0, 1, 0)] if rank % 2 else [] for rank in range(1100)]
    shares = heat(make_bars(as_timeline(logs)), 4)
    assert shares.ranks_per_row == 3
    assert shares.computing.shape == (367, 4)
    assert np.allclose(shares.computing[0], 1 / 3)
    assert np.allclose(shares.waiting[0], 2 / 3)
    assert not shares.exposed.any()


def test_a_cell_has_the_colour_of_what_its_rank_mostly_does() -> None:
    log = [
        Event("forward", 0, 0, 0.0, 1.0, 0),
        Event("all_reduce", 0, 0, 1.0, 0.7, 0, stream=COMM),
        Event("backward", 0, 0, 1.7, 0.3, 0),
        Event("all_reduce", 0, 0, 2.0, 1.0, 0, stream=COMM, launched=2.0, awaited=5),
        Event("forward", 0, 0, 2.0, 0.8, 0),
        Event("update", 0, 0, 3.8, 0.2, 0),
    ]
    shares = heat(make_bars(as_timeline([log])), 4)
    use, strength = np.divmod(shares.codes()[0], STEPS)
    assert [BANDS[place].name for place in use] == ["computing", "exposed communication", "computing", "waiting"]
    assert np.allclose(shares.exposed[0], [0, 0.7, 0.2, 0])
    assert strength.tolist() == [66, 36, 46, 46]
    assert np.allclose(shares.computing + shares.exposed + shares.waiting, 1)


def test_every_code_has_its_place_on_the_scale_of_colours() -> None:
    places = [place for place, _ in scale()]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)
    assert [color for _, color in scale()][1::2] == [use.color for use in BANDS]
