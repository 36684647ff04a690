"""Every law of training, with its message; a broken one leaves neither a trace in the log nor on the clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from minitrain.errors import LawError, TensorTypeError
from minitrain.lib import Activation, ActivationGrad, Model, OptState, Weight, WeightGrad

ALL = frozenset(range(4))
W, O = Weight(1, 4, 0), OptState(1, 4, 0)  # noqa: E741  (as the issue's formulas name them)
G = WeightGrad(1, 4, ALL, 4)
A, A2 = Activation(1, 4, frozenset([0]), 4), Activation(2, 4, frozenset([0]), 4)
DA = ActivationGrad(1, 4, frozenset([0]), 4)


def stored(*tensors: Any) -> Model:
    """Return a model of 4 layers and 4 samples that holds some tensors."""
    model = Model(num_layers=4, global_batch_size=4)
    store: Any = model.weights
    for number, tensor in enumerate(tensors):
        store[number] = tensor
    return model


BROKEN: list[tuple[list[Any], Callable[[Model], Any], type[Exception], str]] = [
    ([W], lambda m: m.forward(1, A, 3), TensorTypeError, "forward on rank 1: weight must be a Weight, got int"),  # type: ignore[arg-type]
    ([W], lambda m: m.forward(1, DA, W), TensorTypeError, "inp must be a Activation, got ActivationGrad"),  # type: ignore[arg-type]
    ([W], lambda m: m.forward(2, A2, W), LawError, "weight must be of layer 2 for layer 2, got Weight.layer 1, step 0"),
    ([W], lambda m: m.forward(1, A2, W), LawError, "inp must be of layer 1 for layer 1, got Activation.layer 2"),
    ([W.shard(0, 2)], lambda m: m.forward(1, A, W.shard(0, 2)), LawError, r"must be complete.*shards \{0\} of 2\)"),
    ([], lambda m: m.forward(1, A, W), LawError, "weight must be in one of the rank's stores.*model.storage"),
    ([W, A, DA], lambda m: m.backward(1, W, DA, W), TensorTypeError, "inp must be a Activation, got Weight"),  # type: ignore[arg-type]
    ([W, A, DA], lambda m: m.backward(1, A, A, W), TensorTypeError, "grad must be a ActivationGrad, got Activation"),  # type: ignore[arg-type]
    ([W, A, DA], lambda m: m.backward(1, A, DA, G), TensorTypeError, "weight must be a Weight, got WeightGrad"),  # type: ignore[arg-type]
    ([W, A2, DA], lambda m: m.backward(1, A2, DA, W), LawError, "backward on rank 1: inp must be of layer 1"),
    ([W, A2, DA], lambda m: m.backward(2, A2, DA, W), LawError, "grad must be of layer 2 for layer 2"),
    ([A, DA, Weight(0, 4, 0)], lambda m: m.backward(1, A, DA, Weight(0, 4, 0)), LawError, "weight must be of layer 1"),
    (
        [W, Activation(1, 4, ALL, 4), DA],
        lambda m: m.backward(1, Activation(1, 4, ALL, 4), DA, W),
        LawError,
        r"inp and grad must be of the same samples, got Activation\(layer 1, samples \{0, 1, 2, 3\}\)",
    ),
    ([W, DA], lambda m: m.backward(1, A, DA, W), LawError, "inp must be in one of the rank's stores"),
    ([W, A], lambda m: m.backward(1, A, DA, W), LawError, "grad must be in one of the rank's stores"),
    ([A, DA], lambda m: m.backward(1, A, DA, W), LawError, "weight must be in one of the rank's stores"),
    ([A, DA, W.shard(1, 2)], lambda m: m.backward(1, A, DA, W.shard(1, 2)), LawError, "weight must be complete"),
    ([A, DA], lambda m: m.backward_input(1, A, DA, W), LawError, "backward_input on rank 1: weight must be in one"),
    ([A], lambda m: m.backward_weight(1, A, DA), LawError, "backward_weight on rank 1: grad must be in one"),
    ([], lambda m: m.loss(A), LawError, "loss on rank 1: inp must be of layer 4, the model's output, got"),
    ([], lambda m: m.loss(DA), TensorTypeError, "loss on rank 1: inp must be a Activation"),  # type: ignore[arg-type]
    ([], lambda m: m.update(1, W, W, O), TensorTypeError, "weight_grad must be a WeightGrad, got Weight"),  # type: ignore[arg-type]
    ([], lambda m: m.update(1, G, G, O), TensorTypeError, "weight must be a Weight, got WeightGrad"),  # type: ignore[arg-type]
    ([], lambda m: m.update(1, G, W, W), TensorTypeError, "opt_state must be a OptState, got Weight"),  # type: ignore[arg-type]
    ([], lambda m: m.update(2, G, W, O), LawError, "weight_grad must be of layer 2 for layer 2"),
    ([], lambda m: m.update(1, G, Weight(2, 4, 0), O), LawError, "weight must be of layer 1 for layer 1"),
    ([], lambda m: m.update(1, G, W, OptState(2, 4, 0)), LawError, "opt_state must be of layer 1 for layer 1"),
    (
        [],
        lambda m: m.update(1, WeightGrad(1, 4, frozenset([0, 2]), 4), W, O),
        LawError,
        r"layer 1 must cover all 4 samples, \[1, 3\] are missing \(2 are there\); add up all microbatches",
    ),
    ([], lambda m: m.update(1, WeightGrad(1, 4, ALL - {3}, 4), W, O), LawError, r"\[3\] is missing \(3 are there\)"),
    (
        [],
        lambda m: m.update(1, WeightGrad(1, 4, frozenset([0, 1, 2, 9]), 4), W, O),
        LawError,
        r"must cover all 4 samples, \[3\] is missing",
    ),
    ([], lambda m: m.update(1, G, W, OptState(1, 4, 1)), LawError, "must have seen the same steps, got Weight"),
    ([], lambda m: m.update(1, G.shard(0, 2), W, O), LawError, "weight_grad must hold the weight's shards"),
    ([], lambda m: m.update(1, G, W, O.shard(0, 2)), LawError, "opt_state must hold the weight's shards, got OptState"),
    ([], lambda m: m.update(1, G.shard(0, 2), W.shard(1, 2), O), LawError, "weight_grad must hold the weight's shards"),
    ([], lambda m: m.update(1, G.shard(0, 4), W.shard(0, 2), O), LawError, "weight_grad must hold the weight's shards"),
    ([], lambda m: m.get_input_activation([0, 4]), LawError, r"samples must lie in 0\.\.3 .*, got \[0, 4\]"),
    ([], lambda m: m.get_input_activation([-1]), LawError, r"samples must lie in 0\.\.3 .*, got \[-1\]"),
    ([], lambda m: m.get_input_activation(7), TensorTypeError, "samples must be integers, got 7"),  # type: ignore[arg-type]
    ([], lambda m: m.get_input_activation(["a"]), TensorTypeError, "samples must be integers"),  # type: ignore[list-item]
    ([], lambda m: m.set_final_weight(1, G), TensorTypeError, "set_final_weight on rank 1: weight must be a Weight"),  # type: ignore[arg-type]
    ([], lambda m: m.set_final_weight(2, W), LawError, "weight must be of layer 2 for layer 2, got Weight"),
    ([], lambda m: m.load_weights(4), LawError, r"load_weights on rank 1: layer must be an int in 0\.\.3, got 4"),
    ([], lambda m: m.load_weights(-1), LawError, r"layer must be an int in 0\.\.3, got -1"),
    ([], lambda m: m.load_weights("a"), LawError, r"layer must be an int in 0\.\.3, got 'a'"),  # type: ignore[arg-type]
    ([], lambda m: m.load_weights(0, 2, 2), LawError, r"shard must lie in 0\.\.num_shards-1, got shard 2 of 2"),
    ([], lambda m: m.load_weights(0, 0, 0), LawError, r"shard must lie in 0\.\.num_shards-1, got shard 0 of 0"),
]


@pytest.mark.parametrize(("held", "operation", "kind", "message"), BROKEN)
def test_a_broken_law_says_rule_values_and_rank_and_leaves_no_trace(
    held: list[Any], operation: Callable[[Model], Any], kind: type[Exception], message: str
) -> None:
    model = stored(*held)
    memory = model.memory()
    with pytest.raises(LawError, match=message) as caught:
        operation(model)
    assert type(caught.value) is kind
    assert isinstance(caught.value, AssertionError)
    assert caught.value.facts["rank"] == 1
    assert (len(model.log), model.time, model.memory(), model.final_weights) == (0, 0, memory, {})


def test_long_sets_of_samples_are_told_in_short() -> None:
    wide = Activation(0, 4, frozenset(range(50)), 50)
    sparse = Activation(0, 4, frozenset(range(0, 50, 2)), 50)
    for inp, told in ((wide, r"samples \{0..49\}"), (sparse, r"samples \{0, 2, 4, 6, 8, 10, 12, 14, ...\}")):
        with pytest.raises(LawError, match=told):
            stored(W).forward(1, inp, W)


def test_an_error_carries_its_facts() -> None:
    with pytest.raises(LawError, match="must cover all 4 samples") as caught:
        stored().update(1, WeightGrad(1, 4, frozenset([0, 2]), 4), W, O)
    error = caught.value
    assert (error.op, error.rank, error.layer, error.missing) == ("update", 1, 1, [1, 3])
    assert error.nothing_of_that_name is None


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
def test_an_update_takes_a_gradient_and_state_that_cover_the_weights_shards(pieces: int) -> None:
    model = stored()
    grad, state = WeightGrad(1, 4, ALL, 4), OptState(1, 4, 0)
    held = frozenset(range(pieces // 2)) if pieces > 1 else frozenset([0])
    for tensor in (grad, state):
        tensor.shards, tensor.num_shards = held, pieces
    weight, new = model.update(1, grad, W if pieces == 1 else W.shard(0, 2), state)
    assert (weight.step, new.step) == (1, 1)
    assert (weight.num_shards, new.shards) == (1 if pieces == 1 else 2, held)


def test_an_equal_tensor_in_storage_is_as_good_as_the_same_one() -> None:
    model = stored(W, A, DA)
    model.backward(1, Activation(1, 4, frozenset([0]), 4), ActivationGrad(1, 4, frozenset([0]), 4), Weight(1, 4, 0))
    assert [event.typ for event in model.log] == ["backward"]


def test_what_has_left_storage_is_not_held_any_more() -> None:
    model = stored(W)
    del model.weights[0]
    with pytest.raises(LawError, match="weight must be in one of the rank's stores"):
        model.forward(1, A, W)


def test_empty_sample_sets_are_legal() -> None:
    model = stored(W)
    inp = model.get_input_activation([])
    assert (len(inp.samples), inp.memory(), len(model.log), model.time) == (0, 0, 0, 0)


def test_layers_and_steps_run_as_specified() -> None:
    model = stored(W, A, DA)
    out = model.forward(1, A, W)
    assert out == A2
    assert model.loss(Activation(4, 4, ALL, 4)) == ActivationGrad(3, 4, ALL, 4)
    assert model.log[-1].layer == 4
    assert model.backward(1, A, DA, W) == (
        WeightGrad(1, 4, frozenset([0]), 4),
        ActivationGrad(0, 4, frozenset([0]), 4),
    )
    assert model.backward_input(1, A, DA, W) == ActivationGrad(0, 4, frozenset([0]), 4)
    assert model.backward_weight(1, A, DA) == WeightGrad(1, 4, frozenset([0]), 4)
    assert model.update(1, G, W, O) == (Weight(1, 4, 1), OptState(1, 4, 1))
    assert model.load_weights(3, 1, 2) == (Weight(3, 4, 0).shard(1, 2), OptState(3, 4, 0).shard(1, 2))


def test_each_half_of_a_split_backward_costs_half_of_it() -> None:
    model = stored(W, A, DA)
    model.backward(1, A, DA, W)
    model.backward_input(1, A, DA, W)
    model.backward_weight(1, A, DA)
    whole, first, second = (event.duration for event in model.log)
    assert first == second == whole / 2


def test_a_second_forward_of_the_same_samples_is_marked_as_recomputation() -> None:
    model = stored(W)
    other = Activation(1, 4, frozenset([1]), 4)
    for inp in (A, other, A, other):
        model.forward(1, inp, W)
    assert [event.recomputed for event in model.log] == [False, False, True, True]
    assert model.log[2].typ == "forward"


def test_laws_hold_under_python_o() -> None:
    code = """
import minitrain.lib as lib
try:
    lib.Model().forward(0, lib.Activation(0, 2, frozenset([0]), 1), lib.Weight(0, 2, 0))
except AssertionError as error:
    print(type(error).__name__, __debug__)
"""
    found = subprocess.run([sys.executable, "-O", "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["LawError", "False"]
