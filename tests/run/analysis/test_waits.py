"""Why ranks are idle: every gap has a reason and a kind, and the gaps add up to the waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations import Event
from minitrain.run.analysis.explanation import (
    COMMUNICATION,
    COOLDOWN,
    GAP_KINDS,
    STEADY,
    STEP_END,
    STRAGGLER,
    WARMUP,
    find_gaps,
)
from minitrain.run.analysis.timeline import NONE, as_timeline

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
_NAMES = sorted(set(mt.strategies()) - {"single"})


def _gaps(name: str, **more: Any) -> Any:
    return find_gaps(mt.simulate(name, **{**_SIZES, **more}).timeline)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", _NAMES)
def test_the_gaps_of_every_rank_add_up_to_its_waiting(name: str) -> None:
    run = mt.simulate(name, **_SIZES, slowdown={1: 1.25})
    seconds = find_gaps(run.timeline).seconds()
    assert seconds.shape == (4, len(GAP_KINDS))
    np.testing.assert_allclose(seconds.sum(axis=1), run.breakdown.waiting, atol=1e-12 * run.step_time, rtol=1e-9)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", _NAMES)
def test_what_a_gap_waited_for_came_from_another_rank_just_as_it_ended(name: str) -> None:
    gaps = _gaps(name, slowdown={1: 1.25})
    line, waits = gaps.timeline, gaps.event != NONE
    assert np.all(gaps.source[waits] != NONE)
    assert np.all(line.rank[gaps.source[waits]] != gaps.rank[waits])
    assert np.all(line.rank[gaps.source[waits]] == line.waited_for[gaps.event[waits]])
    assert np.all(line.time[gaps.event[waits]] == gaps.end[waits])


def test_a_pipeline_fills_before_its_first_backward_and_drains_after_its_last_forward() -> None:
    fixed = FixedPredictor(forward=1.0, backward=2.0)
    gaps = _gaps("1f1b", hardware=fixed, microbatch_size=2)
    seconds = gaps.seconds() / 2  # two layers a stage
    first, last = seconds[0], seconds[3]
    assert (first[WARMUP], first[STEADY], first[COOLDOWN], first[STEP_END]) == (6.0, 0.0, 3.0, 0.0)
    assert (last[WARMUP], last[STEP_END]) == (3.0, 6.0)
    assert np.all(seconds.sum(axis=1) == 9.0)


def test_who_waits_for_a_slow_rank_in_a_collective_waits_for_a_straggler() -> None:
    gaps = _gaps("ddp", slowdown={2: 1.5})
    assert set(gaps.kind.tolist()) == {STRAGGLER, STEP_END}
    assert set(gaps.rank.tolist()) == {0, 1, 3}
    reasons = {gaps.reason(gap) for gap in range(len(gaps))}
    assert reasons == {"rank 2, the last to come to all_reduce of layer 7", "the step's end, which rank 2 sets"} or (
        "the step's end, which rank 2 sets" in reasons and all("rank 2" in reason for reason in reasons)
    )


def test_a_gap_filled_with_a_neighbours_transfers_is_communication() -> None:
    gaps = _gaps("gpipe", hardware=FixedPredictor(forward=1.0, backward=1.0, send=100.0))
    seconds = gaps.seconds().sum(axis=0)
    assert seconds[COMMUNICATION] > 0.9 * seconds[:STEP_END].sum()


def test_a_reason_names_the_rank_and_the_layer() -> None:
    gaps = _gaps("gpipe")
    of_last = np.flatnonzero((gaps.rank == 3) & (gaps.start < gaps.timeline.step_time / 4))
    assert gaps.reason(int(of_last[0])) == "rank 2's send of layer 6"


def test_a_gap_that_nothing_explains_says_what_came_next() -> None:
    log = [Event("forward", 0, 0, 0.0, 1.0, 0), Event("backward", None, 0, 2.0, 1.0, 0)]
    gaps = find_gaps(as_timeline([log, []]))
    assert [gaps.reason(gap) for gap in range(2)] == ["what comes before backward", "the step's end, which rank 0 sets"]
    assert gaps.kind.tolist() == [WARMUP, STEP_END]
    assert len(find_gaps(as_timeline([[]]))) == 0
