"""The stages of a pipeline: contiguous, and the costliest as cheap as it can be."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.engine.stages import balanced, balanced_all
from minitrain.lib import Model
from minitrain.machine.predictor import RuntimePredictor
from minitrain.machine.price import RankPredictors
from minitrain.workloads.transformer_workload import find_workload

COSTS = st.lists(st.floats(0, 1e3, allow_subnormal=False), min_size=1, max_size=9)


def model_of(name: str, *, slowdown: float = 1.0) -> Model:
    workload: Any = find_workload(name)
    predictor = RuntimePredictor(4, workload=workload).slowed(slowdown)
    return Model(0, None, workload.num_layers, runtime_predictor=predictor)


@settings(max_examples=200, deadline=None)
@given(costs=COSTS, num_stages=st.integers(1, 9))
def test_no_other_cut_has_a_cheaper_costliest_stage(costs: list[float], num_stages: int) -> None:
    num_stages = min(num_stages, len(costs))
    cuts = ([0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), num_stages - 1))
    least = min(max(sum(costs[start:stop]) for start, stop in pairwise(cut)) for cut in cuts)
    found = balanced(costs, num_stages)
    assert [layer for stage in found for layer in stage] == list(range(len(costs)))
    assert all(found)
    assert max(sum(costs[layer] for layer in stage) for stage in found) == pytest.approx(least, rel=1e-9, abs=1e-9)


@given(costs=st.lists(st.tuples(*[st.sampled_from([0.1, 0.25, 1.0, 3.0])] * 3), min_size=3, max_size=9))
def test_machines_are_cut_side_by_side_as_each_alone(costs: list[tuple[float, ...]]) -> None:
    assert balanced_all(costs, 3) == [balanced(own, 3) for own in zip(*costs, strict=True)]


def test_equal_layers_go_in_equal_shares() -> None:
    assert Model(num_layers=12).stages(4) == tuple(range(start, start + 3) for start in (0, 3, 6, 9))
    with pytest.raises(mt.UsageError, match=r"num_layers \(10\) must be a multiple of num_stages \(4\).* use 8 or 12"):
        Model(num_layers=10).stages(4)


def test_embedding_and_head_count_by_their_price() -> None:
    model = model_of("gpt2")
    stages = model.stages(4)
    sizes = [len(stage) for stage in stages]
    assert sizes[0] > sizes[-1]  # a lookup is cheap, the head is not
    price = [
        sum(model.runtime_predictor.compute(typ, 1, layer).seconds for typ in ("forward", "backward"))
        for layer in range(26)
    ]
    price[-1] += model.runtime_predictor.compute("loss", 1, 26).seconds
    worst = max(sum(price[layer] for layer in stage) for stage in stages)
    equal = max(sum(price[round(26 * k / 4) : round(26 * (k + 1) / 4)]) for k in range(4))
    assert worst < equal


def test_all_ranks_find_the_same_stages_whatever_their_speed() -> None:
    assert model_of("llama3-8b", slowdown=1.37).stages(8) == model_of("llama3-8b").stages(8)
    slow_first = [RuntimePredictor(4, hw) for hw in ("a100_80g", "h100_80g_nvl8", "h100_80g_nvl8", "a100_80g")]
    run = mt.simulate(
        "1f1b", world_size=4, workload="gpt2", global_batch_size=8, hardware=RankPredictors(slow_first), slowdown={2: 3}
    )
    updated = [event.layer for log in run.logs for event in log if event.typ == "update"]
    assert updated == list(range(26))


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "zb_h1", "zb_h2", "pp_zero1"])
def test_the_user_may_say_how_many_layers_a_stage_has(strategy: str) -> None:
    options: dict[str, Any] = {"pp": 4} if strategy in ("zb_h2", "pp_zero1") else {}
    run = mt.simulate(
        strategy, world_size=4, num_layers=7, global_batch_size=16, layers_per_stage=[1, 2, 3, 1], **options
    )
    assert [len({event.layer for event in log if event.typ == "update"}) for log in run.logs] == [1, 2, 3, 1]


@pytest.mark.parametrize("wrong", [[1, 2, 3], [1, 2, 3, 2], [0, 3, 3, 1], [True, 2, 3, 1], "1231", 7])
def test_layers_per_stage_must_add_up(wrong: Any) -> None:
    with pytest.raises(mt.UsageError, match=r"must be 4 counts of at least 1 that add up to num_layers \(7\), got"):
        mt.simulate("gpipe", world_size=4, num_layers=7, global_batch_size=16, layers_per_stage=wrong)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"num_layers \(6\) must be at least num_stages \(8\); use 6 stages"):
        mt.simulate("gpipe", world_size=8, workload="tiny", global_batch_size=8)
