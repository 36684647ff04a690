"""The dependencies of a run: they give its times back, its critical path, and its what-ifs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.given_durations import FixedPredictor
from minitrain.operations import COMM, Event
from minitrain.run.analysis.retiming import critical_path, make_graph, retimed_events, steps_without, what_ifs
from minitrain.run.analysis.timeline import as_timeline
from tests.sample_logs import data_parallel, one_f_one_b

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
_NAMES = sorted(set(mt.strategies()) - {"single"})


@pytest.mark.few(16)
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("slowdown", [{}, {1: 1.3, 2: 1.1}])
def test_the_dependencies_give_back_every_time_to_the_last_float(name: str, slowdown: dict[int, float]) -> None:
    line = mt.simulate(name, **_SIZES, slowdown=slowdown).timeline
    np.testing.assert_array_equal(retimed_events(make_graph(line), line.duration)[1], line.time)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", _NAMES)
def test_the_critical_path_is_as_long_as_the_step_and_never_waits(name: str) -> None:
    run = mt.simulate(name, **_SIZES, slowdown={1: 1.3})
    path = critical_path(make_graph(run.timeline))
    seconds = path.seconds()
    assert sum(seconds.values()) == pytest.approx(run.step_time, rel=1e-12)
    assert seconds["waiting"] == 0
    assert sum(path.by_typ().values()) == pytest.approx(run.step_time, rel=1e-12)
    times = run.timeline.time[path.event]
    assert all(earlier <= later for earlier, later in pairwise(times))


def test_the_critical_path_of_a_pipeline_goes_down_the_stages_and_back_up() -> None:
    run = mt.simulate("gpipe", **_SIZES, hardware=FixedPredictor(forward=1.0, backward=2.0), microbatch_size=4)
    path = critical_path(make_graph(run.timeline))
    ranks = run.timeline.rank[path.event]
    turns = [int(rank) for place, rank in enumerate(ranks) if not place or rank != ranks[place - 1]]
    assert turns == [0, 1, 2, 3, 2, 1, 0]


def test_where_all_come_at_once_the_critical_path_stays_on_its_rank() -> None:
    run = mt.simulate("zero3_prefetch", **_SIZES, slowdown={2: 1.5})
    path = critical_path(make_graph(run.timeline))
    assert set(run.timeline.rank[path.event].tolist()) == {2}


def test_time_that_nothing_explains_is_waiting_on_the_path() -> None:
    log = [Event("forward", 0, 0, 0.5, 1.0, 0), Event("backward", 0, 0, 2.0, 1.0, 0)]
    path = critical_path(make_graph(as_timeline([log, []])))
    assert path.seconds() == {"computing": 2.0, "communication": 0.0, "waiting": 1.0}
    assert path.wait.tolist() == [0.5, 0.5]
    assert len(critical_path(make_graph(as_timeline([[]]))).event) == 0


def test_a_class_of_operation_that_is_free_takes_no_time() -> None:
    fixed = FixedPredictor(forward=1.0, backward=2.0, all_reduce=0.5)
    line = mt.simulate("ddp", **_SIZES, hardware=fixed).timeline
    assert line.step_time == 8 * 3.5
    assert steps_without(make_graph(line), [["all_reduce"]]) == [24]
    found = what_ifs(make_graph(line))
    assert found == {"backward": 12, "forward": 20, "all communication": 24, "all_reduce": 24}
    assert list(found) == ["backward", "forward", "all communication", "all_reduce"]


def test_free_messages_leave_the_bubble_of_the_textbook() -> None:
    fixed = FixedPredictor(forward=1.0, backward=2.0, send=0.25)
    run = mt.simulate("1f1b", world_size=4, num_layers=4, global_batch_size=8, microbatch_size=1, hardware=fixed)
    assert what_ifs(make_graph(run.timeline))["messages"] == (8 + 3) * 3


@given(st.integers(1, 5), st.integers(1, 8), st.sampled_from(["forward", "send", "backward"]))
def test_making_an_operation_free_never_makes_a_step_longer(stages: int, microbatches: int, typ: str) -> None:
    line = as_timeline(one_f_one_b(stages, microbatches))
    without, same = steps_without(make_graph(line), [[typ], []])
    assert without <= line.step_time * (1 + 1e-12)
    assert same == pytest.approx(line.step_time, rel=1e-12)


def test_made_up_logs_have_the_same_dependencies() -> None:
    for logs in (one_f_one_b(4, 8), data_parallel(4, 8), data_parallel(4, 8, overlap=True)):
        line = as_timeline(logs)
        np.testing.assert_allclose(
            retimed_events(make_graph(line), line.duration)[1], line.time, rtol=1e-12, atol=1e-15
        )


def test_operations_that_wait_for_one_another_in_a_circle_are_refused() -> None:
    first = [
        Event("all_reduce", 0, 0, 0, 1, 0, stream=COMM),
        Event("barrier", 0, 0, 1, 1, 0, stream=COMM, group=(0, 1)),
    ]
    second = [
        Event("barrier", 0, 1, 0, 1, 0, stream=COMM, group=(0, 1)),
        Event("all_reduce", 0, 1, 1, 1, 0, stream=COMM),
    ]
    line = as_timeline([first, second])
    with pytest.raises(UsageError, match="wait for one another in a circle"):
        retimed_events(make_graph(line), line.duration)[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["1f1b", "zero3_prefetch", "hsdp"])
def test_several_cases_at_once_give_the_floats_of_each_alone(name: str) -> None:
    line = mt.simulate(name, world_size=16, num_layers=16, global_batch_size=32).timeline
    graph = make_graph(line)
    cases = [line.duration, *(np.where(line.of_types([typ]), 0.0, line.duration) for typ in line.typs)]
    together = retimed_events(graph, np.stack(cases, axis=1))
    for case, lasts in enumerate(cases):
        for times, alone in zip(together, retimed_events(graph, lasts), strict=True):
            np.testing.assert_array_equal(times[:, case], alone)


def test_a_circle_among_many_ranks_is_refused_too() -> None:
    everyone, logs = tuple(range(12)), []
    for rank in everyone:
        order = [("all_reduce", None), ("barrier", everyone)]
        both = order if rank else order[::-1]
        logs.append([Event(typ, 0, rank, t, 1, 0, stream=COMM, group=group) for t, (typ, group) in enumerate(both)])
    line = as_timeline(logs)
    with pytest.raises(UsageError, match="wait for one another in a circle"):
        what_ifs(make_graph(line))


def test_without_events_there_is_nothing_to_free() -> None:
    graph = make_graph(as_timeline([[], []]))
    assert steps_without(graph, [["forward"]]) == [0.0]
    assert what_ifs(graph) == {}
