"""A proof tells wrong arithmetic and wrong strategies from right ones: each mutant here must fail for its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from autograd.tracer import getval  # type: ignore[import-untyped]

import minitrain as mt
from minitrain.proof import arithmetic, attention, attention_core, experts, units
from minitrain.proof.attention import Attention
from minitrain.proof.partial_gradients import Border, PartGrad
from minitrain.proof.units import Embedding, Logits, Statistics, UnitArithmetic
from tests.small_transformers import DEEPSEEK_LIKE, GPT_LIKE, LLAMA_LIKE, SWITCH_LIKE

Patch = tuple[Any, str, Any]


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """Return a patch: the function's result goes through `change`."""
    right = getattr(owner, name)

    def wrong(*args: Any, **named: Any) -> Any:
        return change(right(*args, **named))

    return owner, name, wrong


def held_fast(found: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return what a border has made, with a second part through which no gradient goes back."""
    return found[0], getval(found[1])


MUTANTS: dict[str, tuple[Any, Patch]] = {
    "a query sees the next key": (
        LLAMA_LIKE,
        (attention_core, "visible", lambda queries, keys, _=None: queries[:, None] - keys >= -1),
    ),
    "rotary keys are turned without a gradient": (
        LLAMA_LIKE,
        (attention, "rotate", lambda heads, positions: getval(attention_core.rotate(heads, positions))),
    ),
    "a norm has no gradient": (LLAMA_LIKE, changed(UnitArithmetic, "normed", getval)),
    "a gelu is a relu": (
        GPT_LIKE,
        (units, "activated", lambda inputs, _: arithmetic.activated(inputs, "relu")),
    ),
    "positions have no gradient": (GPT_LIKE, changed(Embedding, "border", held_fast)),
    "a bias after the sum has no gradient": (GPT_LIKE, changed(Attention, "border", held_fast)),
    "a bias of keys is an eighth larger": (
        GPT_LIKE,
        changed(
            Attention,
            "project",
            lambda found: (found[0], replace(found[1], values=found[1].values * 1.125)),
        ),
    ),
    "a router has no gradient": (
        DEEPSEEK_LIKE,
        (experts, "softmax", lambda logits: getval(arithmetic.softmax(logits))),
    ),
    "experts are not weighted": (DEEPSEEK_LIKE, (experts.Routing, "weights", property(lambda r: r.taken * 1.0))),
    "weights are not divided by their sum": (
        DEEPSEEK_LIKE,
        (experts.Routing, "_divisor", lambda r: np.ones((*r.chosen.shape[:2], 1))),
    ),
    "an expert of many is forgotten": (
        SWITCH_LIKE,
        changed(experts.Routing, "rows_of", lambda rows: {**rows, 0: rows[0] * 0}),
    ),
    "the loss sees the sum of its own logits alone": (GPT_LIKE, (Logits, "mine", lambda mine, total: mine)),
    "statistics are not taken relative to a common maximum": (
        GPT_LIKE,
        (
            Statistics,
            "merge",
            lambda left, right: Statistics(left.highest, left.total + right.total, left.target + right.target),
        ),
    ),
    "every part thinks that it has the target": (
        GPT_LIKE,
        (
            units,
            "rows_of",
            lambda numbers, rows, part: (np.asarray(numbers, dtype=int) % rows, np.full(numbers.shape, True)),
        ),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_arithmetic_is_not_proven(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (owner, attribute, wrong) = MUTANTS[name]
    sizes: dict[str, Any] = {"workload": model, "world_size": 2, "global_batch_size": 8, "tp": 2}
    assert mt.prove("megatron", **sizes).largest_relative < 1e-9
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(
        mt.ProofError, match=r"layer \d \(\w+( \d)?\) on rank 0 differs from single-device training: its"
    ):
        mt.prove("megatron", **sizes)


def test_a_norm_that_sees_every_shard_of_the_sequence_twice_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"workload": LLAMA_LIKE, "world_size": 2, "global_batch_size": 8, "tp": 2}
    right = Border.cross

    def whole(border: Border, total: Any) -> Any:
        border.own = total.positions[:1]
        return right(border, total)

    monkeypatch.setattr(Border, "cross", whole)
    with pytest.raises(mt.ProofError, match=r"its first moment of norm.weight by|norm.weight by"):
        mt.prove("megatron", sequence_parallel=True, **sizes)


def test_the_sum_over_parts_takes_what_all_hold_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"workload": LLAMA_LIKE, "world_size": 2, "global_batch_size": 8, "tp": 2}
    monkeypatch.setattr(PartGrad, "mine", lambda mine, total: total)
    with pytest.raises(mt.ProofError, match=r"layer 1 \(attention 0\) on rank 0"):
        mt.prove("megatron", sequence_parallel=True, **sizes)
    monkeypatch.setattr(PartGrad, "mine", lambda mine, total: mine)
    with pytest.raises(mt.ProofError, match=r"its .*norm.weight by"):
        mt.prove("megatron", sequence_parallel=True, **sizes)


async def no_sum(model: Any, out: Any, k: int) -> Any:
    """Forget the sum over the parts of a layer."""
    return out if k == 1 else await model.all_reduce(out, k + 1)


async def one_loss(model: Any, grad: Any) -> Any:
    """Let rank 0 alone compute the loss."""
    return await model.broadcast(grad, 0)


async def early_update(model: Any, new: tuple[Any, Any], k: int) -> Any:
    """Update a layer before the gradient of its input is summed."""
    model.update(k, new[0], model.weights[k], model.opt_states[k])


async def scattered(model: Any, new: tuple[Any, Any], k: int) -> Any:
    """Sum the gradient of an input along the sequence, which was never cut."""
    model.grad_activations["shard"] = await model.reduce_scatter(new[1], k)
    return await model.all_gather(model.grad_activations.pop("shard"), k)


async def sum_of_outputs(model: Any, out: Any, k: int) -> Any:
    """Sum over the parts of a layer."""
    return await model.all_reduce(out, k + 1)


async def sum_of_gradients(model: Any, new: tuple[Any, Any], k: int) -> Any:
    """Sum over the parts of a layer, but for the embedding."""
    return await model.all_reduce(new[1], k) if k > 0 else new[1]


async def same(_: Any, value: Any) -> Any:
    """Leave a value as it is."""
    return value


async def in_halves(model: Any, k: int) -> Any:
    """Take a gradient back to the input, sum it, and only then compute that of the weights."""
    inp, grad, weight = model.activations[k], model.grad_activations[k], model.weights[k]
    model.grad_activations["new"] = model.backward_input(k, inp, grad, weight)
    total = await sum_of_gradients(model, (None, model.grad_activations.pop("new")), k)
    model.grad_weights[k] = model.backward_weight(k, inp, grad, weight)
    return total


async def train(
    model: Any,
    forward: Any = sum_of_outputs,
    loss: Any = same,
    backward: Any = sum_of_gradients,
    twice: bool = False,
    halves: bool = False,
) -> Any:
    """Train with tensor parallelism over all ranks, with something done otherwise."""
    weights, opt_states, activations, grads, grad_weights = model.storage()
    last = model.num_layers
    for k in range(last):
        weights[k], opt_states[k] = model.load_weights(k, part=model.rank, num_parts=model.world_size)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for k in range(last):
        activations[k + 1] = await forward(model, model.forward(k, activations[k], weights[k]), k)
    grads[last - 1] = await loss(model, model.loss(activations.pop(last)))
    for k in reversed(range(last)):
        if halves:
            grads[k - 1] = await in_halves(model, k)
            continue
        new = grad_weights[k], grads["new"] = model.backward(k, activations[k], grads[k], weights[k])
        grads[k - 1] = await (backward if k == 2 else sum_of_gradients)(model, new, k)
        del new, grads["new"]
    for k in range(last):
        if twice and k == 3:
            grad_weights[k] = grad_weights[k] + grad_weights[k]
        weights[k], opt_states[k] = model.update(k, grad_weights[k], weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no sum": ({"forward": no_sum}, "inp must be a complete sum, .* part 1 is missing: all_reduce it"),
    "one loss": ({"loss": one_loss}, "part 1 of 2 of the logits is on the ranks that made them; .* call loss on every"),
    "early update": ({"backward": early_update}, "what all parts of mlp 0 hold .* is not known before the gradient"),
    "scattered": ({"backward": scattered}, "what all parts of mlp 0 hold .* is not known before the gradient"),
    "twice": ({"twice": True}, "counted twice"),
}


@pytest.mark.parametrize("halves", [False, True])
def test_the_strategy_that_is_made_wrong_is_right(halves: bool) -> None:
    strategy = partial(train, halves=halves)
    assert mt.prove(strategy, workload=LLAMA_LIKE, world_size=2, global_batch_size=8).largest_relative < 1e-9


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_strategy_is_told_what_is_wrong(name: str) -> None:
    wrong, message = WRONG[name]
    with pytest.raises(mt.LawError, match=message):
        mt.prove(partial(train, **wrong), workload=LLAMA_LIKE, world_size=2, global_batch_size=8)


def test_a_gradient_weighted_wrongly_is_found_by_its_numbers_alone() -> None:
    message = r"^layer 3 \(attention 1\) on rank 0 differs .*: its second moment of .* by 3 of the largest element"
    with pytest.raises(mt.ProofError, match=message):
        mt.prove(partial(train, twice=True), workload=LLAMA_LIKE, world_size=2, global_batch_size=8, strict=False)


async def forgets_norms(model: Any) -> Any:
    """Train on shards of the sequence, and leave norms with the gradient of one of them."""
    weights, opt_states, activations, grads, grad_weights = model.storage()
    last = model.num_layers - 1
    for k in range(model.num_layers):
        weights[k], opt_states[k] = model.load_weights(k, part=model.rank, num_parts=model.world_size)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    for k in range(model.num_layers):
        whole = activations[k] if k == 0 else await model.all_gather(activations[k], k)
        summed = model.all_reduce if k == last else model.reduce_scatter
        activations[k + 1] = await summed(model.forward(k, whole, weights[k]), k + 1)
    grads["whole"] = model.loss(activations.pop(last + 1))
    for k in reversed(range(1, model.num_layers)):
        activations["whole"] = await model.all_gather(activations[k], k)
        grad_weights[k], grads["new"] = model.backward(k, activations["whole"], grads["whole"], weights[k])
        grads[k - 1] = await model.reduce_scatter(grads.pop("new"), k)
        grads["whole"] = await model.all_gather(grads.pop(k - 1), k)
        weights[k], opt_states[k] = model.update(k, grad_weights[k], weights[k], opt_states[k])


def test_norms_that_have_seen_one_shard_of_the_sequence_are_not_updated() -> None:
    message = r"what all parts of layer 5 hold .* must cover the whole sequence, shards 1 of 2 are missing; all_reduce"
    with pytest.raises(mt.LawError, match=message):
        mt.prove(forgets_norms, workload=LLAMA_LIKE, world_size=2, global_batch_size=2)


async def weights_first(model: Any) -> Any:
    """Ask for the gradient of a weight before that of the input."""
    weights, opt_states, activations, grads, grad_weights = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    model.forward(0, activations[0], weights[0])
    grads[0] = mt.lib.ActivationGrad(0, model.num_layers, activations[0].samples, model.global_batch_size)
    grads[0]._content = activations[0]._content
    grad_weights[0] = model.backward_weight(0, activations[0], grads[0])


def test_the_gradient_of_a_weight_comes_after_that_of_the_input() -> None:
    with pytest.raises(mt.LawError, match=r"backward_weight of layer 0 \(embedding\) needs what backward_input made"):
        mt.prove(weights_first, workload=LLAMA_LIKE, world_size=1, global_batch_size=2, strict=False)
