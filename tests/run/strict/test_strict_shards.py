"""Shards in a strict run: which parts of a whole they touch, and what following many of them costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.lib import Weight
from minitrain.tensors.index_sets import overlaps_any

Place = tuple[int, int]
PLACES = st.integers(1, 12).flatmap(lambda count: st.tuples(st.integers(0, count - 1), st.just(count)))


def _interval(place: Place) -> tuple[Fraction, Fraction]:
    """Return where a shard begins and ends."""
    shard, num_shards = place
    return Fraction(shard, num_shards), Fraction(shard + 1, num_shards)


@given(place=PLACES, others=st.lists(PLACES, max_size=6))
def test_shards_meet_where_their_intervals_overlap(place: Place, others: list[Place]) -> None:
    parts: dict[int, set[int]] = {}
    for shard, count in others:
        parts.setdefault(count, set()).add(shard)
    start, end = _interval(place)
    expected = any(first < end and start < last for first, last in map(_interval, others))
    assert overlaps_any(*place, parts) is expected


def test_a_fine_shard_is_looked_up_in_a_coarse_cut_and_back_without_listing_the_fine_one() -> None:
    assert overlaps_any(0, 2, {10**12: {10**11}})
    assert not overlaps_any(1, 2, {10**12: {10**11}})
    assert overlaps_any(10**11, 10**12, {2: {0}})


async def updates_shards(model: mt.Model, num_shards: int = 1, at_once: bool = False) -> mt.Model:
    """Update a layer shard by shard, each cut when it is needed or all of them before."""
    weights, opt_states, activations, grad_activations, grad_weights = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    activations[0] = model.get_input_activation(range(model.global_batch_size))
    activations[1] = model.forward(0, activations[0], weights[0])
    grad_activations[0] = model.loss(activations[1])
    grad_weights[0], _ = model.backward(0, activations[0], grad_activations[0], weights[0])

    def cut(shard: int) -> tuple[mt.lib.WeightGrad, Weight, mt.lib.OptState]:
        grad, weight, state = grad_weights[0], weights[0], opt_states[0]
        return grad.shard(shard, num_shards), weight.shard(shard, num_shards), state.shard(shard, num_shards)

    shards = [cut(shard) for shard in range(num_shards)] if at_once else map(cut, range(num_shards))
    updated = [model.update(0, *parts)[0] for parts in shards]
    model.set_final_weight(0, reduce(Weight.combine, updated))
    return model


def _num_calls(action: Callable[[], object]) -> int:
    """Return how many functions, of Python or of C, an action calls."""
    number = 0

    def count(_frame: object, event: str, _value: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.few(1)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_strict_run_takes_as_long_for_each_of_many_shards(at_once: bool) -> None:
    def calls(num_shards: int) -> int:
        options = {"num_shards": num_shards, "at_once": at_once}
        sizes: dict[str, Any] = {"world_size": 1, "num_layers": 1, "global_batch_size": 1, **options}
        return _num_calls(lambda: mt.simulate(updates_shards, strict=True, **sizes))

    calls(8)  # what is imported and remembered at first
    few, more, many = map(calls, (8, 128, 512))
    assert many - few <= 1.05 * (more - few) * (512 - 8) / (128 - 8)


def test_a_shard_of_another_cut_that_was_updated_in_part_is_not_updated_again() -> None:
    async def updates_half_twice(model: mt.Model) -> mt.Model:
        weights, opt_states, activations, grad_activations, grad_weights = model.storage()
        weights[0], opt_states[0] = model.load_weights(0)
        weights[1], opt_states[1] = model.load_weights(0, 1, 4)
        activations[0] = model.get_input_activation(range(model.global_batch_size))
        activations[1] = model.forward(0, activations[0], weights[0])
        grad_activations[0] = model.loss(activations[1])
        grad_weights[0], _ = model.backward(0, activations[0], grad_activations[0], weights[0])
        model.update(0, grad_weights[0], weights[1], opt_states[1])
        model.update(0, grad_weights[0], weights[0].shard(0, 2), opt_states[0].shard(0, 2))
        return model

    with pytest.raises(mt.LawError, match="was updated already; each shard takes one update a step"):
        mt.simulate(updates_half_twice, world_size=1, num_layers=1, global_batch_size=1, strict=True)
