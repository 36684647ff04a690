"""Parts of every unit add up to the whole unit, forward and backward, for models of all kinds and sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.proof import TransformerProblem
from minitrain.proof.attention_core import Tokens
from minitrain.proof.layers import TransformerLayers
from minitrain.proof.partial_gradients import PartialGrad
from minitrain.proof.units import PADDING, Logits, Part, places
from tests.small_transformers import transformers

BATCH = 3
SAMPLES = frozenset({0, 2})
INP: Any = SimpleNamespace(samples=SAMPLES)


def done(layer: int) -> Any:
    """Return a pass of a layer."""
    return SimpleNamespace(layer=layer, inp=INP, model=SimpleNamespace(global_batch_size=BATCH))


def close(got: Any, want: Any) -> None:
    """Require equality up to rounding."""
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def passed(layers: TransformerLayers, layer: int, x: Tokens, count: int) -> Any:
    """Return what all parts of a layer make of its input together."""
    weights = [layers.load(layer, index, count) for index in range(count)]
    total: Any = layers.forward(done(layer), x, weights[0])
    for weight in weights[1:]:
        total = total.add(layers.forward(done(layer), x, weight))
    return total


def back(layers: TransformerLayers, layer: int, x: Tokens, grad: Any, count: int) -> tuple[Any, Any]:
    """Return the gradients of the whole layer's weights and of its input, made by all parts."""
    whole = np.full(layers.problem.initial_weight(layer).size, np.nan)
    halves = [layers.backward(done(layer), x, grad, layers.load(layer, index, count)) for index in range(count)]
    of_input: Any = halves[0][1]
    for _, other in halves[1:]:
        of_input = of_input.add(other)
    assert isinstance(of_input, Tokens)
    for index, (of_weight, _) in enumerate(halves):
        where = places(layers.problem.units[layer], Part(index, count))
        assert not of_weight.values[where == PADDING].any()
        here, mine = where[where != PADDING], of_weight.values[where != PADDING]
        known = ~np.isnan(whole[here])
        close(mine[known], whole[here][known])  # what all parts hold has the same gradient on all of them
        whole[here] = mine
    return whole, of_input


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(2, 4), factor=st.none() | st.floats(0.3, 1.5))
def test_parts_add_up_to_the_whole_unit_and_its_gradients(data: st.DataObject, count: int, factor: Any) -> None:
    problem = TransformerProblem(data.draw(transformers(count)), capacity_factor=factor)
    layers = TransformerLayers(problem)
    inputs = [layers.inputs(SAMPLES, BATCH)]
    for layer in range(len(problem.units)):
        out, parts = (passed(layers, layer, inputs[-1], number) for number in (1, count))
        if isinstance(out, Logits):
            close(parts.statistics.losses(), out.statistics.losses())
            assert set(parts.pieces) == set(range(count))
        else:
            close(parts.values, out.values)
            inputs.append(out)
    whole, parted = (passed(layers, layer, inputs[-1], number).gradient(9) for number in (1, count))
    joined = np.concatenate([parted.pieces[index] for index in range(count)], axis=-1)
    close(joined[..., : problem.model.vocab_size], whole.pieces[0])
    grads = whole, parted
    for layer in reversed(range(len(problem.units))):
        found = [
            back(layers, layer, inputs[layer], grad, number) for grad, number in zip(grads, (1, count), strict=True)
        ]
        close(found[1][0], found[0][0])
        close(found[1][1].values, found[0][1].values)
        grads = found[0][1], found[0][1]


def gradient_of_part(layer: int) -> tuple[Any, Any]:
    """Return what one of two parts makes of a gradient."""
    problem = TransformerProblem(mt.models()["tiny"])
    layers = TransformerLayers(problem)
    x = Tokens(np.random.default_rng(0).standard_normal((2, 32, 64)), np.arange(32))
    return layers.backward(done(layer), x, x, layers.load(layer, 0, 2))


@pytest.mark.parametrize("layer", [1, 2])
def test_the_gradient_of_a_norm_is_refused_before_the_sum_over_the_parts(layer: int) -> None:
    of_weight, of_input = gradient_of_part(layer)
    assert isinstance(of_input, PartialGrad)
    with pytest.raises(mt.LawError, match=r"all parts of (attention|mlp) 0 hold .* is not known before the gradient"):
        _ = of_weight.values


def test_the_gradient_of_an_embedding_awaits_nothing() -> None:
    problem = TransformerProblem(mt.models()["tiny"])
    layers = TransformerLayers(problem)
    x = layers.inputs(SAMPLES, BATCH)
    grad = Tokens(np.ones((2, 32, 64)), np.arange(32))
    of_weight, _ = layers.backward(done(0), x, grad, layers.load(0, 1, 2))
    assert of_weight.values.sum() == (x.values >= 128).sum() * 64


def test_sums_of_other_tokens_are_refused() -> None:
    x = Tokens(np.ones((1, 4, 2)), np.arange(4))
    with pytest.raises(mt.LawError, match="must be of the same tokens"):
        x.add(x.shard(0, 2))


def test_tokens_that_do_not_divide_are_not_cut() -> None:
    with pytest.raises(mt.LawError, match="4 tokens of a sequence cannot be cut into 3 equal shards"):
        Tokens(np.ones((1, 4, 2)), np.arange(4)).shard(0, 3)


def test_shards_of_tokens_combine_in_the_order_of_the_sequence() -> None:
    x = Tokens(np.random.default_rng(0).standard_normal((2, 6, 3)), np.arange(6))
    again = x.shard(2, 3).combine(x.shard(0, 3)).combine(x.shard(1, 3))
    assert np.array_equal(again.values, x.values)
    assert np.array_equal(x.at(np.array([4, 1])).values, x.values[:, [4, 1]])
    assert x.has(np.array([4, 1]))
    assert not x.shard(0, 3).has(np.array([1, 2]))
