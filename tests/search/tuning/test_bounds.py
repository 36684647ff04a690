"""Pruning never loses the best configuration, nor one of the front: against exhaustive search on small spaces."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.search.tuning.bounds import bound_of, least_times
from minitrain.search.tuning.layouts import Columns
from minitrain.search.tuning.problem import Candidate, TuningProblem, axes_of, candidates
from minitrain.search.tuning.search import OF_FRONT, simulate_each
from minitrain.search.tuning.step_figures import steps_of
from tests.search.tuning.models import SMALL, layouts, problem

_AXES: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "pp": [1, 2, 4],
    "num_chunks": [1, 2],
    "microbatch_size": [1, 2, 4],
    "zero": [0, 1],
    "recompute": ["none", "full"],
    "sequence_parallel": [False, True],
    "overlap_replicas": [False, True],
    "overlap_parts": [False, True],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(50))
def test_pruning_keeps_the_best_of_a_random_space(seed: int) -> None:
    rng = random.Random(seed)
    space = {
        name: sorted(rng.sample(values, rng.randint(1, min(2, len(values)))), key=str) for name, values in _AXES.items()
    }
    given: dict[str, Any] = {
        "world_size": 8,
        "global_batch_size": 16,
        "strategies": "megatron",
        "space": space,
        "jobs": 1,
    }
    head_room = rng.choice([0.0, 0.999])
    every = mt.tune(SMALL, prune="none", head_room=head_room, **given)
    pruned = mt.tune(SMALL, prune="best", head_room=head_room, **given)
    assert [row["step_time_s"] for row in pruned.ranked[:1]] == [row["step_time_s"] for row in every.ranked[:1]]
    assert len(pruned.rows) == len(every.rows)


@pytest.mark.ci
def test_pruning_for_the_front_keeps_all_of_it() -> None:
    space = {"tp": [1, 2], "microbatch_size": [1, 2], "recompute": ["none", "full"], "offload": [None, "activations"]}
    given: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "strategies": "fsdp", "space": space, "jobs": 1}
    every, pruned = (mt.tune(SMALL, prune=prune, **given) for prune in ("none", "front"))
    figures = [[[row[name] for name in OF_FRONT] for row in found.front] for found in (every, pruned)]
    assert figures[0] == figures[1]
    assert every.best.row["step_time_s"] == pruned.best.row["step_time_s"]


def test_no_layout_is_quicker_than_its_bound() -> None:
    chosen = [one.pipeline for one in layouts(problem(16, 32), 9, 40) if one.pipeline is not None]
    by_structure: dict[Any, list[Any]] = {}
    for one in chosen:
        by_structure.setdefault(one.structure, []).append(one)
    for group in by_structure.values():
        columns = Columns(problem(16, 32).machine.pieces, group)
        steps, (least, busy) = steps_of(columns), least_times(columns)
        assert (least <= steps.step_time).all()
        assert (busy <= steps.busy_s).all()


@pytest.mark.parametrize("more", [{}, {"platform": "compiled-fsdp"}, {"contention": True}])
def test_no_step_of_fsdp_takes_less_than_its_bound(more: dict[str, Any]) -> None:
    of = replace(problem(8, 16), more=more)
    found = [one for one in candidates("fsdp", of.machine, axes_of("fsdp", of.machine, {}), 1) if not one.illegal]
    for one in random.Random(3).sample(found, 12):
        bound, (figures,) = bound_of(one, of.machine), simulate_each(of, [(one.strategy, dict(one.options))])
        assert figures.step_time_s is not None
        assert figures.peak_memory_bytes is not None
        assert figures.busy_s is not None
        assert bound.step_time_s <= figures.step_time_s
        assert bound.peak_memory_bytes <= figures.peak_memory_bytes
        assert bound.busy_s <= figures.busy_s


def test_activations_of_one_layer_are_not_bound_by_the_moves_of_all() -> None:
    system = mt.hw.load_config("h100_80g_nvl8")
    slow = replace(system, mem2=replace(system.mem2, GBps=0.1))
    of = TuningProblem(SMALL, slow, 8, 16, {})
    options = {"microbatch_size": 2, "offload": "activations", "offloaded_layers": 1}
    (figures,) = simulate_each(of, [("fsdp", options)])
    assert figures.step_time_s is not None
    assert bound_of(Candidate(of, "fsdp", options), of.machine).step_time_s <= figures.step_time_s


def test_other_orders_are_bounded_by_their_passes_and_may_win() -> None:
    of = problem(8, 8).by("megatron")
    space: dict[str, Any] = {
        "pp": [4],
        "tp": [1, 2],
        "num_chunks": [1, 2],
        "microbatch_size": [1],
        "recompute": ["none"],
    }
    space |= {"schedule": ["1f1b", "zb_h1"], "zero": [0], "overlap_replicas": [False]}
    found = list(candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1))
    legal = [one for one in found if one.illegal is None]
    assert all((one.pipeline is None) == ("schedule" in one.options) for one in legal)
    for one in [one for one in legal if one.in_usual_order is not None]:
        run = mt.simulate("megatron", **{**of.parameters, **one.options, "fold": True, "check": False})
        assert 0 < bound_of(one, of.machine).step_time_s <= run.step_time
