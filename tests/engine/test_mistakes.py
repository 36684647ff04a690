"""A table of mistakes: each ends at once, in its own error, with a message of its own.

Every mistake is data parallelism on two ranks, two layers and four samples with one thing wrong, unless it says so.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.lib import Activation, Model, OptState, Weight, WeightGrad

Strategy = Callable[[Model], Awaitable[Model | None]]
SHARED: dict[Any, Any] = {}
MISTAKES: dict[str, tuple[type[Exception], str, Strategy]] = {}


def mistake(error: type[Exception], message: str) -> Callable[[Strategy], Strategy]:
    """Enter a strategy into the table."""

    def enter(strategy: Strategy) -> Strategy:
        MISTAKES[strategy.__name__] = error, message, strategy
        return strategy

    return enter


def begin(model: Model) -> None:
    """Load every layer."""
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.load_weights(layer)


def forward(model: Model, samples: Any = None) -> None:
    """Take this rank's samples through all layers."""
    half = model.global_batch_size // model.world_size
    here = range(model.rank * half, (model.rank + 1) * half) if samples is None else samples
    model.activations[0] = model.get_input_activation(here)
    for layer in range(model.num_layers):
        model.activations[layer + 1] = model.forward(layer, model.activations[layer], model.weights[layer])


def backward(model: Model) -> None:
    """Take the gradient of the loss back through all layers."""
    last = model.num_layers - 1
    model.grad_activations[last] = model.loss(model.activations[last + 1])
    for layer in reversed(range(model.num_layers)):
        model.grad_weights[layer], model.grad_activations[layer - 1] = model.backward(
            layer, model.activations[layer], model.grad_activations[layer], model.weights[layer]
        )


def both_passes(model: Model, samples: Any = None) -> None:
    """Load, and take this rank's samples forward and back."""
    begin(model)
    forward(model, samples)
    backward(model)


async def finish(model: Model) -> Model:
    """Sum the gradients, update, and hand the weights in."""
    for layer in range(model.num_layers):
        model.grad_weights[layer] = await model.all_reduce(model.grad_weights[layer], layer)
    update(model)
    return model


def update(model: Model) -> None:
    """Update every layer and hand the weights in."""
    for layer in range(model.num_layers):
        model.weights[layer], model.opt_states[layer] = model.update(
            layer, model.grad_weights[layer], model.weights[layer], model.opt_states[layer]
        )
        model.set_final_weight(layer, model.weights[layer])


async def correct(model: Model) -> Model:
    both_passes(model)
    return await finish(model)


# What is not what it seems to be


@mistake(mt.LawError, r"update on rank 0: WeightGrad\(layer 0.*was made by hand, .* is used at test_mistakes.py:\d+")
async def forged_gradient_without_communication(model: Model) -> Model:
    begin(model)
    for layer in range(model.num_layers):
        model.grad_weights[layer] = WeightGrad(layer, model.num_layers, frozenset(range(4)), 4)
    update(model)
    return model


@mistake(mt.LawError, r"forward on rank 0: Activation\(layer 1.*was made by hand, .* is used at test_mistakes.py:\d+")
async def forged_activation(model: Model) -> Model:
    begin(model)
    model.activations[1] = Activation(1, model.num_layers, frozenset([0, 1]), 4)
    model.forward(1, model.activations[1], model.weights[1])
    return model


@mistake(mt.LawError, r"forward on rank 0: Weight\(layer 0.*was made by hand, .* is used at test_mistakes.py:\d+")
async def forged_weight(model: Model) -> Model:
    model.weights[0] = Weight(0, model.num_layers, 0)
    model.forward(0, model.get_input_activation([0]), model.weights[0])
    return model


@mistake(mt.LawError, r"update on rank 0: OptState\(layer 0.*was made by hand, .* is used at test_mistakes.py:\d+")
async def forged_optimizer_state(model: Model) -> Model:
    both_passes(model, range(4))
    model.update(0, model.grad_weights[0], model.weights[0], OptState(0, model.num_layers, 0))
    return model


@mistake(mt.LawError, r"set_final_weight on rank 0: Weight\(layer 0, step 1.*was made by hand")
async def forged_final_weight(model: Model) -> Model:
    for layer in range(model.num_layers):
        model.set_final_weight(layer, Weight(layer, model.num_layers, 1))
    return model


@mistake(
    mt.LawError,
    r"update on rank 0: WeightGrad.*samples \{0, 1, 2, 3\}.*by dataclasses.replace, .* is used at test_mistakes.py:\d+",
)
async def replaced_gradient(model: Model) -> Model:
    both_passes(model)
    model.grad_weights[0] = dataclasses.replace(model.grad_weights[0], samples=frozenset(range(4)))
    update(model)
    return model


@mistake(
    mt.LawError, r"all_reduce on rank 0: WeightGrad.*was made by hand, by copy or .* is used at test_mistakes.py:\d+"
)
async def copied_gradient(model: Model) -> Model:
    both_passes(model)
    model.grad_weights[0] = copy.deepcopy(model.grad_weights[0])
    return await finish(model)


@mistake(mt.LawError, r"samples was \[0, 1\] when it was made at test_mistakes.py:\d+ and is \[0, 1, 2, 3\] now")
async def altered_gradient(model: Model) -> Model:
    both_passes(model)
    model.grad_weights[0].samples = frozenset(range(4))
    update(model)
    return model


@mistake(mt.LawError, r"set_final_weight on rank 0: .*was altered: step was 0 .* and is 1 now")
async def altered_weight(model: Model) -> Model:
    begin(model)
    model.weights[0].step = 1
    model.set_final_weight(0, model.weights[0])
    return model


@mistake(mt.LawError, r"final weight of layer 1 on rank 0 was altered after it was handed in")
async def final_weight_altered_later(model: Model) -> Model:
    await correct(model)
    model.final_weights[1].num_shards = 2
    return model


@mistake(mt.LawError, r"final weight of layer 0 on rank 0 was not handed in there")
async def final_weight_slipped_in(model: Model) -> Model:
    await correct(model)
    model.final_weights[0] = Weight(0, model.num_layers, 1)
    return model


@mistake(mt.LawError, r"belongs to rank 0, which made it at test_mistakes.py:\d+; send and receive it")
async def another_ranks_gradient(model: Model) -> Model:
    both_passes(model)
    if model.rank == 0:
        SHARED["grad"] = model.grad_weights[0]
    await model.barrier()
    if model.rank == 1:
        model.grad_weights[0] = SHARED.pop("grad")
    return await finish(model)


@mistake(mt.LawError, r"forward on rank 0: .* was handed in as the final weight and is no longer held")
async def final_weights_used_as_a_hiding_place(model: Model) -> Model:
    weight, _ = model.load_weights(0)
    model.set_final_weight(0, weight)
    model.weights[0] = model.final_weights[0]
    model.forward(0, model.get_input_activation([0]), model.weights[0])
    return model


# Samples


@mistake(mt.LawError, r"\+ on rank 0: samples 0, 1 are counted twice in the gradient of layer 0")
async def overlapping_microbatches(model: Model) -> Model:
    both_passes(model)
    before = model.grad_weights[0]
    backward(model)
    model.grad_weights[0] = before + model.grad_weights[0]
    return await finish(model)


@mistake(mt.LawError, r"all_reduce: sample 1 is counted twice in the gradient of layer 0, brought by rank 0 \(test_")
async def overlapping_samples_of_ranks(model: Model) -> Model:
    both_passes(model, [0, 1] if model.rank == 0 else [1, 2, 3])
    return await finish(model)


@mistake(mt.LawError, r"reduce_scatter: sample 0 is counted twice .* rank 0 .* and by rank 1")
async def overlapping_samples_scattered(model: Model) -> Model:
    both_passes(model, range(4))
    await model.reduce_scatter(model.grad_weights[0], 0)
    return model


@mistake(mt.LawError, r"was overwritten by all_reduce at test_mistakes.py:\d+, which works in place")
async def reduced_gradient_added_to_its_input(model: Model) -> Model:
    both_passes(model)
    model.grad_weights[0] += await model.all_reduce(model.grad_weights[0], 0)
    return await finish(model)


@mistake(mt.LawError, r"update on rank 0: the gradient of layer 0 must cover all 4 samples, \[2, 3\] are missing")
async def update_without_all_samples(model: Model) -> Model:
    both_passes(model)
    update(model)
    return model


@mistake(mt.LawError, r"get_input_activation on rank 0: samples must lie in 0..3 .*got \[4\]")
async def sample_out_of_range(model: Model) -> Model:
    model.get_input_activation([4])
    return model


@mistake(mt.LawError, r"backward on rank 0: inp and grad must be of the same samples")
async def gradient_of_other_samples(model: Model) -> Model:
    begin(model)
    forward(model, [0])
    model.grad_activations[1] = model.loss(model.activations[2])
    model.activations[1] = model.forward(0, other_input(model), model.weights[0])
    model.backward(1, model.activations[1], model.grad_activations[1], model.weights[1])
    return model


def other_input(model: Model) -> Activation:
    model.activations["other"] = model.get_input_activation([1])
    return model.activations["other"]


# Layers, steps and shards


@mistake(mt.LawError, r"forward on rank 0: weight must be of layer 0 for layer 0, got Weight\(layer 1")
async def weight_of_another_layer(model: Model) -> Model:
    begin(model)
    model.activations[0] = model.get_input_activation([0])
    model.forward(0, model.activations[0], model.weights[1])
    return model


@mistake(mt.LawError, r"forward on rank 0: inp must be of layer 1 for layer 1, got Activation\(layer 0")
async def layer_left_out(model: Model) -> Model:
    begin(model)
    model.activations[0] = model.get_input_activation([0])
    model.forward(1, model.activations[0], model.weights[1])
    return model


@mistake(mt.LawError, r"loss on rank 0: inp must be of layer 2")
async def loss_before_the_last_layer(model: Model) -> Model:
    begin(model)
    forward(model)
    model.loss(model.activations[1])
    return model


@mistake(mt.LawError, r"the weight must be complete, got Weight\(layer 0, step 0, shards \{0\} of 2\); all_gather")
async def forward_with_a_shard(model: Model) -> Model:
    model.weights[0], _ = model.load_weights(0, model.rank, 2)
    model.forward(0, model.get_input_activation([0]), model.weights[0])
    return model


@mistake(mt.LawError, r"forward on rank 0: weight must be in one of the rank's stores")
async def weight_kept_out_of_the_stores(model: Model) -> Model:
    weight, _ = model.load_weights(0)
    model.forward(0, model.get_input_activation([0]), weight)
    return model


@mistake(mt.LawError, r"forward on rank 0: the input stems from weights of step 1.* with weights of step 0")
async def weights_of_two_steps_in_one_pass(model: Model) -> Model:
    both_passes(model, range(4))
    model.weights[0], _ = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    forward(model)
    return model


@mistake(mt.LawError, r"backward on rank 0: the gradient stems from weights of step 0")
async def weights_gathered_after_the_update(model: Model) -> Model:
    both_passes(model, range(4))
    gradient = model.grad_activations[1]
    model.weights[1], _ = model.update(1, model.grad_weights[1], model.weights[1], model.opt_states[1])
    shard = model.weights[1].shard(model.rank, 2)
    model.weights["whole"] = await model.all_gather(shard, 1)
    model.backward(1, model.activations[1], gradient, model.weights["whole"])
    return model


@mistake(mt.LawError, r"update on rank 0: the gradient stems from weights of step 0.* with weights of step 1")
async def gradient_used_for_two_steps(model: Model) -> Model:
    both_passes(model, range(4))
    weight, state = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.update(0, model.grad_weights[0], weight, state)
    return model


@mistake(mt.LawError, r"update on rank 0: Weight\(layer 0, step 0, .*was updated already")
async def second_update_of_a_shard(model: Model) -> Model:
    both_passes(model, range(4))
    model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.update(0, model.grad_weights[0], *model.load_weights(0, 1, 4))
    return model


@mistake(mt.LawError, r"Weight\(layer 0.* was overwritten by update at test_mistakes.py:\d+")
async def old_weight_used_after_the_update(model: Model) -> Model:
    both_passes(model, range(4))
    old = model.weights[0]
    model.weights[0], model.opt_states[0] = model.update(0, model.grad_weights[0], old, model.opt_states[0])
    model.set_final_weight(0, old)
    return model


@mistake(mt.LawError, r"update on rank 0: weight_grad must hold the weight's shards, got .*shards \{0\} of 4")
async def quarter_gradient_for_a_whole_weight(model: Model) -> Model:
    both_passes(model, range(4))
    model.update(0, model.grad_weights[0].shard(0, 4), model.weights[0], model.opt_states[0])
    return model


@mistake(
    mt.LawError, r"the optimizer state must be of exactly the weight's shards, got OptState\(.*shards \{0\} of 1\)"
)
async def whole_state_for_a_shard(model: Model) -> Model:
    both_passes(model, range(4))
    model.update(0, model.grad_weights[0], model.weights[0].shard(0, 2), model.opt_states[0])
    return model


@mistake(mt.LawError, r"exactly the weight's shards, got OptState\(layer 0, step 0, shards \{1\} of 2\)")
async def state_of_another_shard(model: Model) -> Model:
    both_passes(model, range(4))
    model.update(0, model.grad_weights[0], model.weights[0].shard(0, 2), model.opt_states[0].shard(1, 2))
    return model


@mistake(mt.LawError, r"weight and optimizer state must have seen the same steps")
async def state_of_another_step(model: Model) -> Model:
    both_passes(model, range(4))
    _, state = model.update(0, model.grad_weights[0], model.weights[0], model.opt_states[0])
    model.update(0, model.grad_weights[0], model.load_weights(0)[0], state)
    return model


@mistake(mt.LawError, r"load_weights on rank 0: shard must lie in 0..num_shards-1, got shard 2 of 2")
async def shard_out_of_range(model: Model) -> Model:
    model.load_weights(0, 2, 2)
    return model


@mistake(mt.LawError, r"only a complete tensor can be sharded")
async def shard_of_a_shard(model: Model) -> Model:
    model.load_weights(0, 0, 2)[0].shard(0, 2)
    return model


@mistake(mt.LawError, r"all_gather: shard 1 of 2 of layer 0 comes twice, from rank 0 \(.*\) and from rank 1")
async def shard_gathered_twice(model: Model) -> Model:
    shard, _ = model.load_weights(0, 1, 2)
    await model.all_gather(shard if model.rank else model.load_weights(0, 0, 2)[0].combine(shard), 0)
    return model


@mistake(mt.LawError, r"the final weight of layer 0 is incomplete: shards \[1\] of 2 are on no rank")
async def one_shard_never_trained(model: Model) -> Model:
    await correct(model)
    for layer in range(model.num_layers):
        model.set_final_weight(layer, model.weights[layer].shard(0, 2))
    return model


@mistake(mt.LawError, r"layer 1 has no final weight on any rank")
async def final_weight_forgotten(model: Model) -> Model:
    await correct(model)
    del model.final_weights[1]
    return model


@mistake(mt.LawError, r"must have seen exactly one update, got Weight\(layer 0, step 0")
async def weights_never_updated(model: Model) -> Model:
    begin(model)
    for layer in range(model.num_layers):
        model.set_final_weight(layer, model.weights[layer])
    return model


# Ranks that do not fit together


@mistake(
    mt.CollectiveMismatchError, r"same layer, .*rank 0: .*\(layer 0.* \(test_mistakes.py:\d+\); rank 1: .*\(layer 1"
)
async def different_layers(model: Model) -> Model:
    both_passes(model)
    await model.all_reduce(model.grad_weights[model.rank], 0)
    return model


@mistake(
    mt.CollectiveMismatchError, r"rank 0: all_reduce of layer 0 \(test_.*; rank 1: reduce_scatter of layer 0 \(test_"
)
async def different_collectives(model: Model) -> Model:
    both_passes(model)
    await (model.all_reduce if model.rank == 0 else model.reduce_scatter)(model.grad_weights[0], 0)
    return model


@mistake(mt.CollectiveMismatchError, r"all ranks of all_reduce must bring the same kind of tensor.*layer 0.*layer 1")
async def wrong_order_of_collectives(model: Model) -> Model:
    both_passes(model)
    for layer in [0, 1] if model.rank == 0 else [1, 0]:
        model.grad_weights[layer] = await model.all_reduce(model.grad_weights[layer], layer)
    return model


@mistake(mt.CollectiveMismatchError, r"must bring the same kind .*num_shards; rank 0: .*of 2.*; rank 1: .*of 4")
async def wrong_shard_count(model: Model) -> Model:
    shard, _ = model.load_weights(0, model.rank, 2 if model.rank == 0 else 4)
    await model.all_gather(shard, 0)
    return model


@mistake(mt.CollectiveMismatchError, r"must together bring every shard")
async def incomplete_gather(model: Model) -> Model:
    shard, _ = model.load_weights(0, model.rank, 4)
    await model.all_gather(shard, 0)
    return model


@mistake(mt.CollectiveMismatchError, r"same kind of tensor.*rank 0: Weight\(.*rank 1: OptState\(")
async def different_kinds(model: Model) -> Model:
    await model.all_gather(model.load_weights(0, model.rank, 2)[model.rank], 0)
    return model


@mistake(mt.DeadlockError, r"rank 0 at .* s: all_reduce of layer 0 \(test_.*\n  not waiting, because finished: rank 1")
async def rank_that_skips_a_collective(model: Model) -> Model:
    both_passes(model)
    if model.rank == 0:
        await model.all_reduce(model.grad_weights[0], 0)
    return model


@mistake(mt.DeadlockError, r"rank 1 at 0 s: receive from rank 0 \(test_mistakes.py:\d+\)\n  not waiting.*: rank 0")
async def rank_that_returns_early(model: Model) -> Model:
    if model.rank == 1:
        await model.receive(0)
    return model


@mistake(mt.DeadlockError, r"rank 0 at 0 s: receive from rank 1 .*\n  rank 1 at 0 s: receive from rank 0")
async def crossed_receives(model: Model) -> Model:
    await model.receive(1 - model.rank)
    await model.send(1 - model.rank, model.get_input_activation([0]))
    return model


@mistake(mt.DeadlockError, r"rank 0 at .* s: send to rank 1 of layer 0, which has not received the one before")
async def crossed_sends(model: Model) -> Model:
    for _ in range(2):
        await model.send(1 - model.rank, model.get_input_activation([0]))
    for _ in range(2):
        await model.receive(1 - model.rank)
    return model


@mistake(mt.DeadlockError, r"receive from rank 0 with tag 'b'")
async def wrong_tag(model: Model) -> Model:
    if model.rank == 0:
        await model.send(1, model.get_input_activation([0]), tag="a")
    else:
        await model.receive(0, tag="b")
    return model


@mistake(mt.StrategyError, r"1 message was sent and never received; the first: rank 0 sent Activation\(layer=0")
async def missing_receive(model: Model) -> Model:
    if model.rank == 0:
        await model.send(1, model.get_input_activation([0]))
    return model


@mistake(mt.StrategyError, r"1 message was sent and never received; the first: rank 1 sent")
async def double_send(model: Model) -> Model:
    if model.rank == 0:
        await model.receive(1)
    else:
        for _ in range(2):
            await model.send(0, model.get_input_activation([0]))
    return model


@mistake(mt.UsageError, r"rank 0 cannot send to itself; keep the tensor, and receive from another rank")
async def receive_from_itself(model: Model) -> Model:
    await model.receive(model.rank)
    return model


@mistake(mt.LawError, r"a tensor cannot be scaled, got Weight and 2; leave the factor out: .* divided by the glob")
async def scaled_gradient(model: Model) -> Model:
    _ = model.load_weights(0)[0] / model.world_size
    return model


@mistake(mt.UsageError, r"rank 0 cannot send to itself; keep the tensor")
async def send_to_itself(model: Model) -> Model:
    await model.send(model.rank, model.get_input_activation([0]))
    return model


@mistake(mt.UsageError, r"dest must be a rank of 0..1, got 2")
async def send_to_nobody(model: Model) -> Model:
    await model.send(2, model.get_input_activation([0]))
    return model


@mistake(mt.StrategyError, r"rank 0 launched barrier and never awaited it")
async def launched_and_never_awaited(model: Model) -> Model:
    model.launch(model.barrier())
    return model


@mistake(mt.StrategyError, r"all_gather on rank 0 was awaited before and its result was freed since")
async def freed_result_awaited_again(model: Model) -> Model:
    work = model.launch(model.all_gather(model.load_weights(0, model.rank, 2)[0], 0))
    await work
    await work
    return model


@mistake(mt.LawError, r"update on rank 0: weight_grad must be a WeightGrad, got coroutine; `await` it, and use")
async def a_coroutine_for_a_tensor(model: Model) -> Model:
    both_passes(model, range(4))
    operation = model.all_reduce(model.grad_weights[0], 0)
    try:
        model.update(0, operation, model.weights[0], model.opt_states[0])  # type: ignore[arg-type]  # the mistake
    finally:
        operation.close()
    return model


@mistake(mt.LawError, r"weight must be a Weight, got tuple; unpack it, as in `weight, opt_state = model.load_weights")
async def a_tuple_for_a_tensor(model: Model) -> Model:
    model.forward(0, model.get_input_activation(range(4)), model.load_weights(0))  # type: ignore[arg-type]
    return model


@mistake(
    TypeError, r"unexpected keyword argument 'num_shard'(.|\n)*; did you mean \"num_shards\"\? There are layer, shard"
)
async def a_misspelt_parameter(model: Model) -> Model:
    model.load_weights(0, num_shard=2)  # type: ignore[call-arg]  # the mistake
    return model


@mistake(mt.StrategyError, r"must return the model of its rank, got None on rank 0; end it with `return model`")
async def returns_nothing(model: Model) -> None:
    begin(model)


# Behind the model's back


@mistake(mt.LawError, r"update on rank 0: WeightGrad.* did not come out of an operation of this run")
async def transport_called_directly(model: Model) -> Model:
    both_passes(model)
    model.grad_weights[0], _ = await model.dist.all_reduce(model.rank, model.grad_weights[0], int(model.time))
    update(model)
    return model


@mistake(
    mt.StrategyError, r"the transport carried out \d+ operations and the models asked for \d+; use the operations of"
)
async def free_barrier_by_the_transport(model: Model) -> Model:
    await model.dist.all_reduce(model.rank, 0, 0)
    return await correct(model)


@mistake(mt.StrategyError, r"the transport carried out 2 operations and the models asked for 1; .* which cost no time")
async def message_sent_by_the_transport(model: Model) -> Model:
    begin(model)
    if model.rank == 0:
        await model.dist.send(0, 1, model.get_input_activation([0]))
        return model
    model.activations[0] = await model.receive(0)
    model.forward(0, model.activations[0], model.weights[0])
    return model


@mistake(mt.LawError, r"forward on rank 1: .*came through the transport behind the sender's back; use model.send")
async def handmade_message_sent_by_the_transport(model: Model) -> Model:
    begin(model)
    if model.rank == 0:
        await model.dist.send(0, 1, Activation(0, model.num_layers, frozenset([0]), 4))
        return model
    model.activations[0] = await model.receive(0)
    model.forward(0, model.activations[0], model.weights[0])
    return model


@mistake(mt.StrategyError, r"model.log of rank 0 is for reading; only the operations of a model change it")
async def log_exchanged(model: Model) -> Model:
    await correct(model)
    model.log = copy.copy(model.log)
    return model


@mistake(mt.StrategyError, r"model.runtime_predictor of rank 0 is for reading; only the operations")
async def free_hardware(model: Model) -> Model:
    model.runtime_predictor = mt.FixedPredictor()
    return await correct(model)


def outcome(strategy: Any, **parameters: Any) -> Any:
    """Return the error that a mistake ends in."""
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4, "strict": True}
    try:
        return mt.simulate(strategy, **{**sizes, **parameters})
    except Exception as error:
        return error


def test_the_correct_version_is_accepted() -> None:
    assert outcome(correct).held_outside is not None


def test_the_table_holds_at_least_forty_mistakes() -> None:
    assert len(MISTAKES) >= 40
    assert len({message for _, message, _ in MISTAKES.values()}) == len(MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_at_once_in_its_own_error(name: str) -> None:
    kind, message, strategy = MISTAKES[name]
    begin_s = time.perf_counter()
    error = outcome(strategy)
    assert time.perf_counter() - begin_s < 1
    with pytest.raises(kind, match=message):
        raise error


@pytest.mark.ci
def test_every_law_holds_without_assertions() -> None:
    program = (
        "import test_mistakes as t\n"
        "print([name for name, (kind, _, wrong) in t.MISTAKES.items() if not isinstance(t.outcome(wrong), kind)])"
    )
    command = [sys.executable, "-O", "-W", "ignore", "-c", program]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env={**os.environ}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"  # the names of those that passed


def test_a_mistake_in_a_sub_task_is_the_runs_error() -> None:
    async def strategy(model: Model) -> Model:
        await asyncio.gather(model.barrier(), asyncio.create_task(forged_weight(model)))  # type: ignore[arg-type]
        return model

    assert "was made by hand" in str(outcome(strategy))
