"""Memory by kind, closed forms, and all of the explanation as data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations import Event
from minitrain.run.analysis.explanation import Explanation, closed_form
from minitrain.run.analysis.memory_over_time import curves_by_kind, high_water
from minitrain.run.analysis.timeline import NONE, as_timeline

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 32}
_NAMES = sorted(set(mt.strategies()) - {"single"})
_EVEN = FixedPredictor(forward=2.0, backward=4.0, backward_input=2.0, backward_weight=2.0, send=0.25)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", _NAMES)
def test_the_kinds_add_up_to_the_memory_of_every_event_and_to_the_peak(name: str) -> None:
    run = mt.simulate(name, **_SIZES, memory_by_kind=True)
    line = run.timeline
    marks = high_water(line, run.memory_journals)
    assert [mark.elements for mark in marks] == pytest.approx(run.peak_memory_per_rank, rel=1e-12)
    for rank, mark in enumerate(marks):
        assert sum(mark.held.values()) == pytest.approx(mark.elements, rel=1e-12)
        curves = curves_by_kind(line, run.memory_journals, rank, run.last_clock)
        time = next(iter(curves.values())).time
        total = sum(curve.memory for curve in curves.values())
        own = slice(line.starts[rank], line.starts[rank + 1])
        at_last = np.searchsorted(time, line.sampled[own], side="right") - 1
        assert np.all(np.diff(time) >= 0)
        moments = np.append(line.sampled[own][1:] != line.sampled[own][:-1], True)
        np.testing.assert_allclose(np.append(total, 0)[at_last][moments], line.memory[own][moments], rtol=1e-12)


def test_the_high_water_mark_says_when_after_what_and_of_what() -> None:
    run = mt.simulate("zero1", **_SIZES, memory_by_kind=True)
    mark = high_water(run.timeline, run.memory_journals)[0]
    text = mark.text(run.timeline, 2)
    assert "on rank 0 at " in text
    assert " after backward of layer 7, samples 0-7 (activations " in text
    assert (mark.grew, run.timeline.typs[run.timeline.typ[mark.event]]) == ("activation gradients", "backward")


def test_without_a_journal_the_mark_is_the_highest_logged_value() -> None:
    log = [Event("forward", 0, 0, t, 1.0, memory) for t, memory in enumerate([1.0, 5.0, 3.0])]
    mark, empty = high_water(as_timeline([log, []]))
    assert (mark.time, mark.elements, mark.held, mark.event, mark.grew) == (1.0, 5.0, {"all": 5.0}, 0, "")
    assert (empty.elements, empty.event) == (0.0, NONE)
    assert mark.text(as_timeline([log]), 2**30) == "5 GiB between operations on rank 0 at 1 s after forward of layer 0"
    assert mark.text(as_timeline([log]), 2**20).startswith("5 MiB between")
    assert high_water(as_timeline([[]]), [[]])[0].elements == 0.0


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "name",
    ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "interleaved_zero_bubble", "zb_h2", "zbv", "pp_dp"],
)
@pytest.mark.parametrize("microbatch_size", [1, 2, 4])
def test_with_free_communication_a_schedule_has_the_bubble_of_the_textbook(name: str, microbatch_size: int) -> None:
    run = mt.simulate(name, **_SIZES, microbatch_size=microbatch_size, hardware=_EVEN)
    form = closed_form(run.timeline, name, run.options)
    assert form is not None
    assert form.holds
    assert form.free_s == pytest.approx(form.textbook_s, rel=1e-12)
    assert form.measured_s == pytest.approx(run.makespan_bubble, rel=1e-12)
    assert form.measured_s > form.free_s


def test_the_bubble_of_1f1b_is_p_minus_1_of_m_plus_p_minus_1() -> None:
    run = mt.simulate("1f1b", **_SIZES, microbatch_size=2)
    form = closed_form(run.timeline, "1f1b (2)", run.options)
    assert form is not None
    assert form.fraction(form.textbook_s) == pytest.approx(3 / (16 + 3), rel=1e-12)


def test_a_form_says_where_it_does_not_hold() -> None:
    uneven = FixedPredictor(forward=2.0, backward_input=5.0, backward_weight=1.0)
    run = mt.simulate("zb_h2", **_SIZES, hardware=uneven)
    form = closed_form(run.timeline, "zb_h2", run.options)
    assert form is not None
    assert not form.holds
    assert form.condition == "tf = ti = tw and m >= 2p - 1"
    run = mt.simulate("dualpipe_v", **_SIZES)
    form = closed_form(run.timeline, "dualpipe_v", run.options)
    assert form is not None
    assert not form.holds


def test_strategies_without_a_pipeline_have_no_closed_form() -> None:
    assert closed_form(mt.simulate("ddp", **_SIZES).timeline, "ddp") is None
    assert closed_form([[]], "gpipe") is None


def test_an_explanation_is_data_whose_parts_add_up() -> None:
    run = mt.simulate("gpipe", **_SIZES, memory_by_kind=True)
    told = Explanation(run.timeline, 2, run.last_clock, "gpipe", run.options, run.memory_journals)
    data = json.loads(json.dumps(told.data(), allow_nan=False))
    for rank in data["ranks"]:
        parts = rank["computing_s"] + rank["exposed_communication_s"] + rank["waiting_s"]
        assert parts == pytest.approx(run.step_time, rel=1e-12)
        assert sum(rank["waiting_by_kind_s"].values()) == pytest.approx(rank["waiting_s"], rel=1e-9)
        assert rank["high_water"]["bytes"] == run.peak_memory_per_rank[rank["rank"]] * 2
    longest = [wait["duration_s"] for wait in data["longest_waits"]]
    assert longest == sorted(longest, reverse=True)
    path = data["critical_path"]
    assert path["computing_s"] + path["communication_s"] == pytest.approx(run.step_time, rel=1e-12)
    assert data["step_time_if_free_s"]["messages"] < run.step_time
    assert data["closed_form"]["formula"] == "(p - 1)(tf + tb)"
    assert list(data["ranks"][0]["waiting_by_kind_s"])[-2:] == ["steps_end", "recovery"]
