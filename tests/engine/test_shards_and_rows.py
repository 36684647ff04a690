"""No layer is cut into more shards than it has rows: less than a row would cost nothing."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Model

ONE: dict[str, Any] = {"world_size": 1, "num_layers": 1, "global_batch_size": 1, "check": False}
TOO_MANY = "a layer of 4096 rows cannot be cut into 4097 shards, each of which needs a row; use at most 4096 shards"


async def loads(model: Model, num_shards: int) -> Model:
    """Load one shard."""
    model.load_weights(0, 0, num_shards)
    return model


async def updates(model: Model, num_shards: int) -> Model:
    """Update one shard, which was cut from the whole."""
    model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.activations[0] = model.get_input_activation([0])
    model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    weight, opt_state = model.weights[0].shard(0, num_shards), model.opt_states[0].shard(0, num_shards)
    model.update(0, grad.shard(0, num_shards), weight, opt_state)
    return model


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("strategy", [loads, updates])
def test_more_shards_than_rows_break_a_law(strategy: Any, strict: bool) -> None:
    op = "load_weights" if strategy is loads else "update"
    with pytest.raises(mt.LawError, match=f"{op} on rank 0: {TOO_MANY}") as refused:
        mt.simulate(strategy, options={"num_shards": 4097}, strict=strict, **ONE)
    assert (refused.value.rank, refused.value.layer, refused.value.num_shards) == (0, 0, 4097)


def test_a_shard_of_one_row_costs_time() -> None:
    run = mt.simulate(updates, options={"num_shards": 4096}, **ONE)
    assert run.logs[0][-1].typ == "update"
    assert run.logs[0][-1].duration > 0


def test_the_workload_says_how_many_shards_there_can_be() -> None:
    class Narrow(type(mt.FixedPredictor.workload)):  # type: ignore[misc]  # the default workload's class
        def max_shards(self, layer: int) -> int:
            return 4

    predictor = mt.FixedPredictor(load_weights=1)
    predictor.workload = Narrow()
    assert mt.simulate(loads, options={"num_shards": 4}, hardware=predictor, **ONE).load_time == 1
    with pytest.raises(mt.LawError, match="a layer of 4 rows cannot be cut into 5 shards"):
        mt.simulate(loads, options={"num_shards": 5}, hardware=predictor, **ONE)


def test_zero_on_more_ranks_than_rows_is_refused_folded_too() -> None:
    with pytest.raises(mt.LawError, match="use at most 4096 shards, for example within groups of ranks, as hsdp does"):
        mt.simulate("zero3", world_size=8192, num_layers=1, global_batch_size=8192, fold=True)
