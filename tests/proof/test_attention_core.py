"""Attention by blocks of keys is whole attention, and both are what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.proof.attention_core import (
    Attended,
    KeysValues,
    attend,
    attend_backward,
    join_heads,
    positions_of_shard,
    rotate,
    split_heads,
    visible,
)

Numbers = Any


def problem(
    seed: int, samples: int, heads: int, kv_heads: int, length: int, key_dim: int = 6, value_dim: int = 4
) -> tuple[Numbers, KeysValues, Numbers]:
    """Return queries, keys and values of a whole sequence, and a gradient of the output."""
    draw = np.random.default_rng(seed).standard_normal
    memory = KeysValues(
        draw((samples, kv_heads, length, key_dim)),
        draw((samples, kv_heads, length, value_dim)),
        np.arange(length),
    )
    return draw((samples, heads, length, key_dim)), memory, draw((samples, heads, length, value_dim))


def whole(queries: Numbers, keys: Numbers, values: Numbers, window: int | None) -> Numbers:
    """Return attention as a textbook has it, in JAX."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = jnp.repeat(keys, group, axis=1), jnp.repeat(values, group, axis=1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / jnp.sqrt(queries.shape[-1])
    distance = jnp.arange(queries.shape[2])[:, None] - jnp.arange(queries.shape[2])
    seen = (distance >= 0) & (distance < (window or queries.shape[2]))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1) @ values


def by_jax(queries: Numbers, memory: KeysValues, grad: Numbers, window: int | None) -> tuple[Numbers, ...]:
    """Return output and the gradients of queries, keys and values."""
    with jax.enable_x64(True):
        output, back = jax.vjp(lambda q, k, v: whole(q, k, v, window), queries, memory.keys, memory.values)
        return np.asarray(output), *map(np.asarray, back(jnp.asarray(grad)))


def close(got: Numbers, want: Numbers) -> None:
    """Require equality up to rounding."""
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_whole_attention_is_what_jax_computes(heads: int, kv_heads: int, window: int | None) -> None:
    queries, memory, grad = problem(0, 2, heads, kv_heads, 8)
    attended = attend(queries, memory.positions, memory, window)
    grads = attend_backward(queries, memory.positions, memory, attended, grad, window)
    found = attended.output, grads[0], grads[1].keys, grads[1].values
    for got, want in zip(found, by_jax(queries, memory, grad, window), strict=True):
        close(got, want)


def shards_of(length: int, num_shards: int, *, balanced: bool) -> list[Any]:
    """Return the positions of all shards; balanced ones have two pieces each, one from the front, one from the back."""
    if not balanced:
        return [positions_of_shard(length, shard, num_shards) for shard in range(num_shards)]
    pieces = [positions_of_shard(length, piece, 2 * num_shards) for piece in range(2 * num_shards)]
    return [np.concatenate([pieces[shard], pieces[-1 - shard]]) for shard in range(num_shards)]


@settings(max_examples=2 * settings().max_examples)
@given(
    seed=st.integers(0, 9),
    num_shards=st.integers(1, 5),
    piece=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    balanced=st.booleans(),
    window=st.none() | st.integers(1, 9),
    order=st.randoms(use_true_random=False),
)
def test_shards_that_go_round_a_ring_give_whole_attention_and_its_gradients(
    seed: int,
    num_shards: int,
    piece: int,
    heads: tuple[int, int],
    balanced: bool,
    window: int | None,
    order: Any,
) -> None:
    length = num_shards * piece * (2 if balanced else 1)
    queries, memory, grad = problem(seed, 2, *heads, length)
    everything = attend(queries, memory.positions, memory, window)
    grad_queries, grads = attend_backward(queries, memory.positions, memory, everything, grad, window)
    shards = shards_of(length, num_shards, balanced=balanced)
    home = [KeysValues(0 * memory.keys, 0 * memory.values, memory.positions).at(shard) for shard in shards]
    for mine in shards:
        visits = list(range(num_shards))
        order.shuffle(visits)
        here = queries[:, :, mine]
        attended = reduce(Attended.add, (attend(here, mine, memory.at(shards[visit]), window) for visit in visits))
        close(attended.output, everything.output[:, :, mine])
        total = np.zeros_like(here)
        for visit in visits:
            one, of_keys = attend_backward(here, mine, memory.at(shards[visit]), attended, grad[:, :, mine], window)
            total += one
            home[visit] = home[visit].add(of_keys)
        close(total, grad_queries[:, :, mine])
    gathered = home[0]
    for shard in home[1:]:
        gathered = gathered.combine(shard)
    assert gathered.positions.tolist() == list(range(length))
    close(gathered.keys, grads.keys)
    close(gathered.values, grads.values)


def test_queries_that_see_no_key_of_a_block_get_nothing_from_it() -> None:
    queries, memory, grad = problem(1, 1, 2, 2, 8)
    early, late = np.arange(4), np.arange(4, 8)
    nothing = attend(queries[:, :, early], early, memory.at(late))
    assert not nothing.output.any()
    assert np.isneginf(nothing.log_sum_exp).all()
    own = attend(queries[:, :, early], early, memory.at(early))
    for total in (own.add(nothing), nothing.add(own)):
        close(total.output, own.output)
    one, of_keys = attend_backward(queries[:, :, early], early, memory.at(late), own, grad[:, :, early])
    assert not one.any()
    assert not of_keys.keys.any()
    assert not of_keys.values.any()


@pytest.mark.parametrize("balanced", [False, True])
def test_shards_part_a_sequence_and_balanced_ones_have_the_same_causal_work(balanced: bool) -> None:
    shards = shards_of(24, 4, balanced=balanced)
    assert sorted(np.concatenate(shards).tolist()) == list(range(24))
    work = {int(visible(shard, np.arange(24)).sum()) for shard in shards}
    assert (len(work) == 1) is balanced


def test_a_sequence_that_cannot_be_cut_is_refused_with_one_that_can() -> None:
    with pytest.raises(mt.LawError, match=r"seq_len \(12\) must be a multiple of 8 to be .*; use seq_len=8"):
        positions_of_shard(12, 0, 8)


def test_gradients_of_other_positions_do_not_add() -> None:
    _, memory, _ = problem(0, 1, 1, 1, 4)
    with pytest.raises(mt.LawError, match="add where they are of the same positions"):
        memory.at(np.arange(2)).add(memory.at(np.arange(2, 4)))


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    query, key = np.random.default_rng(0).standard_normal((2, 1, 8))

    def score(at: int, of: int) -> float:
        return float((rotate(query, np.array([at])) @ rotate(key, np.array([of])).T)[0, 0])

    assert score(5, 2) == pytest.approx(score(13, 10), rel=1e-12)
    assert score(5, 2) != pytest.approx(score(5, 3), rel=1e-3)


def test_rotating_back_undoes_rotating() -> None:
    heads = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    close(rotate(rotate(heads, np.arange(5)), -np.arange(5)), heads)


@pytest.mark.parametrize("function", [lambda x: join_heads(split_heads(x, 2))])
def test_heads_split_and_join(function: Callable[[Numbers], Numbers]) -> None:
    tokens = np.random.default_rng(0).standard_normal((2, 3, 8))
    assert np.array_equal(function(tokens), tokens)
    assert np.array_equal(split_heads(tokens, 2)[:, 1], tokens[:, :, 2:4])
