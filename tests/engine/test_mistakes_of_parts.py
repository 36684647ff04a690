"""A table of mistakes with parts of layers, shards of the sequence and units of FSDP; each message is read aloud here.

Mistakes with host memory are in test_host_memory.py. Every mistake is of two ranks with a part each of a small
transformer, unless it says so.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import CollectiveMismatchError, TensorTypeError
from minitrain.lib import Activation, ActivationGrad, Model

GPT = mt.Transformer(num_layers=2, hidden_size=64, num_heads=4, vocab_size=128, seq_len=32)
Strategy = Callable[[Model], Awaitable[Model]]
MISTAKES: dict[str, tuple[type[Exception], str, Strategy, dict[str, Any]]] = {}


def mistake(error: type[Exception], message: str, **options: Any) -> Callable[[Strategy], Strategy]:
    """Enter a strategy into the table."""

    def enter(strategy: Strategy) -> Strategy:
        MISTAKES[strategy.__name__] = error, message, strategy, options
        return strategy

    return enter


def embed(model: Model, part: int | None = None, samples: Any = (0, 1)) -> Any:
    """Load a part of the first two layers, and take samples through the part of the first one."""
    mine = model.rank if part is None else part
    for layer in (0, 1):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer, part=mine, num_parts=2)
    model.activations[0] = model.get_input_activation(samples)
    return model.forward(0, model.activations[0], model.weights[0])


def go_back(model: Model, inp: Any) -> Any:
    """Take a gradient back through the part of layer 1, and return that of its weight."""
    grad = ActivationGrad(1, model.num_layers, frozenset([0, 1]), 2)
    model.activations["inp"], model.grad_activations[1] = inp, grad
    return model.backward(1, inp, grad, model.weights[1])[0]


@mistake(
    mt.LawError,
    "forward on rank 0: inp must be a complete sum, got PartialActivation(layer 1, samples {0, 1}, parts {0} of 2); "
    "part 1 is missing: all_reduce it over the ranks that hold the parts (or reduce_scatter it, for shards of the "
    "sequence) (layer 1 is attention 0)",
)
async def an_all_reduce_is_forgotten_after_a_row_parallel_layer(model: Model) -> Model:
    model.activations[1] = embed(model)
    model.forward(1, model.activations[1], model.weights[1])
    return model


@mistake(
    mt.LawError,
    "loss on rank 0: inp must be a complete sum, got PartialActivation(layer 6, samples {0, 1}, parts {0} of 2); part "
    "1 is missing: all_reduce it",
)
async def the_loss_takes_a_part_of_the_vocabulary(model: Model) -> Model:
    x: Any = model.get_input_activation([0, 1])
    for layer in range(model.num_layers):
        model.activations[layer] = x
        model.weights[layer], _ = model.load_weights(layer, part=model.rank, num_parts=2)
        x = model.forward(layer, x, model.weights[layer])
        if layer < model.num_layers - 1:
            x = await model.all_reduce(x, layer)
    model.loss(x)
    return model


@mistake(mt.LawError, "partial sums that add: part 0 of 2 is in both (layer 1); add each part once")
async def a_part_is_added_twice(model: Model) -> Model:
    partial = embed(model)
    partial + partial
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of all_reduce must bring different parts of one sum, so that each is added once; ranks 0, 1: "
    "PartialActivation(layer 1, samples {0, 1}, parts {0} of 2)",
)
async def all_ranks_hold_the_same_part(model: Model) -> Model:
    await model.all_reduce(embed(model, part=0), 1)
    return model


@mistake(mt.LawError, "partial sums that add: layer must be equal, got 1 and 2 (layers 1 and 2)")
async def parts_of_different_layers_are_added(model: Model) -> Model:
    first = embed(model)
    model.activations[1] = await model.all_reduce(first, 1)
    of_first: Any = model.forward(0, model.activations[0], model.weights[0])
    of_second: Any = model.forward(1, model.activations[1], model.weights[1])
    of_first + of_second
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of reduce_scatter must together bring every part; 2-3 is missing; rank 0: PartialActivation(layer 1, "
    "samples {0, 1}, parts {0} of 4)",
    world_size=4,
)
async def a_group_has_half_of_the_parts(model: Model) -> Model:
    pair = model.mesh(dp=2, tp=2).group("tp")
    model.weights[0], _ = model.load_weights(0, part=model.rank % 2, num_parts=4)
    model.activations[0] = model.get_input_activation([0, 1])
    await model.reduce_scatter(model.forward(0, model.activations[0], model.weights[0]), 1, group=pair)
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of all_reduce must bring the same kind of tensor with the same layer, samples, num_parts, and differ in "
    "samples; rank 0: PartialActivation(layer 1, samples {0}, parts {0} of 2)",
)
async def the_parts_see_different_samples(model: Model) -> Model:
    await model.all_reduce(embed(model, samples=[model.rank]), 1)
    return model


@mistake(TensorTypeError, "all_gather needs values that combine (a Weight, WeightGrad or OptState), got PartialAct")
async def a_partial_sum_is_gathered(model: Model) -> Model:
    await model.all_gather(embed(model), 1)
    return model


@mistake(TensorTypeError, "all_reduce needs values that add (a WeightGrad), got Activation")
async def a_whole_layers_output_is_summed(model: Model) -> Model:
    model.weights[0], _ = model.load_weights(0)
    model.activations[0] = model.get_input_activation([0, 1])
    await model.all_reduce(model.forward(0, model.activations[0], model.weights[0]), 1)
    return model


@mistake(
    mt.LawError,
    "forward on rank 0: inp must hold the whole sequence, got ActivationShard(layer 1, samples {0, 1}, shards {0} of "
    "2); all_gather it over the ranks that hold the shards (layer 1 is attention 0)",
)
async def a_shard_of_the_sequence_goes_into_a_layer(model: Model) -> Model:
    model.activations[1] = await model.reduce_scatter(embed(model), 1)
    model.forward(1, model.activations[1], model.weights[1])
    return model


@mistake(
    mt.LawError,
    "update on rank 0: the gradient of what all parts of layer 1 hold (norms, biases) must cover the whole sequence, "
    "shards 1 of 2 are missing; all_reduce the gradient over the ranks that hold the parts (layer 1 is attention 0)",
)
async def a_norms_gradient_is_not_summed_over_the_sequence(model: Model) -> Model:
    shard = model.activations[1] = await model.reduce_scatter(embed(model), 1)
    grad = go_back(model, await model.all_gather(shard, 1))
    model.update(1, grad, model.weights[1], model.opt_states[1])
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of all_reduce must bring gradients of one part, or of parts that have each seen other shards of the "
    "sequence; parts that have seen all of it have nothing to add; rank 0: WeightGradPart(layer 1, ",
)
async def gradients_of_different_parts_are_summed(model: Model) -> Model:
    grad = go_back(model, await model.all_reduce(embed(model), 1))
    await model.all_reduce(grad, 1)
    return model


@mistake(
    mt.LawError,
    "update on rank 0: opt_state must be of the weight's part, got OptStatePart(layer 1, step 0, shards {0} of 1, "
    "parts {1} of 2) for WeightPart(layer 1, step 0, shards {0} of 1, parts {0} of 2) (layer 1 is attention 0)",
)
async def an_update_takes_another_parts_state(model: Model) -> Model:
    grad = go_back(model, await model.all_reduce(embed(model), 1))
    _, state = model.load_weights(1, part=1 - model.rank, num_parts=2)
    model.update(1, grad, model.weights[1], state)
    return model


@mistake(
    mt.LawError,
    "update on rank 0: the gradient of layer 1 must cover all 4 samples, [2, 3] are missing (2 are there); add up all "
    "microbatches and reduce over the ranks (layer 1 is attention 0)",
    global_batch_size=4,
)
async def replicas_of_a_part_are_not_summed(model: Model) -> Model:
    inp = await model.all_reduce(embed(model), 1)
    grad = model.grad_activations[1] = ActivationGrad(1, model.num_layers, frozenset([0, 1]), 4)
    model.activations[1] = inp
    weight_grad, _ = model.backward(1, inp, grad, model.weights[1])
    model.update(1, weight_grad, model.weights[1], model.opt_states[1])
    return model


@mistake(
    mt.LawError,
    "forward on rank 0: the weight must be complete, got WeightPart(layer 1, step 0, shards {0} of 2, parts {0} of 2); "
    "all_gather it first (layer 1 is attention 0)",
)
async def a_shard_of_a_part_computes(model: Model) -> Model:
    model.weights[1], _ = model.load_weights(1, model.rank, 2, part=0, num_parts=2)
    model.forward(1, Activation(1, model.num_layers, frozenset([0]), 2), model.weights[1])
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of all_gather must bring the same kind of tensor with the same layer, step, num_shards, parts, "
    "num_parts, and differ in parts; rank 0: WeightPart(layer 1, step 0, shards {0} of 1, parts {0} of 2)",
)
async def parts_are_gathered_like_shards(model: Model) -> Model:
    await model.all_gather(model.load_weights(1, part=model.rank, num_parts=2)[0], 1)
    return model


@mistake(
    CollectiveMismatchError,
    "all ranks of all_gather must bring the same kind of tensor with the same layer, step, num_shards, and differ in "
    "layer; rank 0: [Weight(layer 2, step 0, shards {0} of 2), Weight(layer 1, step 0, shards {0} of 2)]",
)
async def ranks_gather_a_unit_in_different_orders(model: Model) -> Model:
    unit = [model.load_weights(layer, model.rank, 2)[0] for layer in (1, 2)]
    await model.all_gather(unit if model.rank else unit[::-1], 1)
    return model


@mistake(
    mt.LawError,
    "forward on rank 0: the weight must be complete, got Weight(layer 1, step 0, shards {0} of 2); all_gather it first "
    "(layer 1 is attention 0)",
)
async def a_unit_is_at_work_before_it_is_gathered(model: Model) -> Model:
    model.weights[1], _ = model.load_weights(1, model.rank, 2)
    model.launch(model.all_gather([model.weights[1]], 1))
    model.forward(1, Activation(1, model.num_layers, frozenset([0]), 2), model.weights[1])
    return model


@mistake(mt.LawError, "load_weights on rank 0: part must lie in 0..num_parts-1, got part 2 of 2")
async def a_part_is_counted_from_one(model: Model) -> Model:
    model.load_weights(1, part=model.rank + 2, num_parts=2)
    return model


@mistake(mt.UsageError, "num_heads (4) must be a multiple of tp (3); use tp=2, or a model with num_heads=6")
async def heads_do_not_divide(model: Model) -> Model:
    model.load_weights(1, part=0, num_parts=3)
    return model


def test_the_table_holds_at_least_twenty_mistakes() -> None:
    assert len(MISTAKES) >= 20
    assert len({message for _, message, _, _ in MISTAKES.values()}) == len(MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_a_message_that_names_rule_values_and_remedy(name: str) -> None:
    error, message, strategy, options = MISTAKES[name]
    sizes: dict[str, Any] = {"workload": GPT, "world_size": 2, "global_batch_size": 2, "check": False}
    with pytest.raises(error, match=re.escape(message)):
        mt.simulate(strategy, **sizes | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 8}, "num_heads (4) must be a multiple of tp (8); use tp=4, or a model with num_heads=8"),
        ({"tp": 4, "sequence_parallel": True, "seq_len": 30}, "seq_len (30) must be a multiple of cp x tp (4)"),
    ],
)
@pytest.mark.parametrize("strategy", ["megatron", "fsdp"])
def test_what_does_not_divide_is_told_by_every_strategy(strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=re.escape(message)):
        mt.simulate(strategy, workload=GPT, world_size=8, global_batch_size=8, **options)
