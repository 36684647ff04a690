"""What strict/computation.py and strict/stores.py write out for speed agrees with what it stands for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.accounting.strict import computation
from minitrain.accounting.strict.buffers import Overwrite
from minitrain.accounting.strict.laws import require_pass, require_valid
from minitrain.accounting.strict.ledger import Ledger
from minitrain.accounting.strict.stores import FollowedStore
from minitrain.errors import MinitrainError
from minitrain.lib import Activation, Model, Weight
from minitrain.rank.stores import Account, Store
from minitrain.tensors.index_sets import overlapping_shards, overlaps_any

SIZES: dict[str, Any] = {"world_size": 1, "num_layers": 2, "global_batch_size": 2, "check": False}


class LawAskedError(Exception):
    """The quick expression of an operation was false."""


def passes(model: Any) -> dict[str, Any]:
    """Return what a rank has before it updates layer 1."""
    made: dict[str, Any] = {}
    made["weight"], made["opt_state"] = model.load_weights(1)
    first = model.weights[0], model.opt_states[0] = model.load_weights(0)
    model.weights[1], model.opt_states[1] = made["weight"], made["opt_state"]
    made["inp"] = model.forward(0, model.get_input_activation(range(2)), first[0])
    model.activations[1] = made["inp"]
    made["grad"] = model.grad_activations[1] = model.loss(model.forward(1, made["inp"], made["weight"]))
    made["weight_grad"], _ = model.backward(1, made["inp"], made["grad"], made["weight"])
    return made


def handmade(value: Any) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__dataclass_fields__})


def altered(value: Any) -> Any:
    value.layers += 1
    return value


def step_later(value: Any) -> Any:
    """Return what comes of it in an update, or pretend that it was computed with weights of the next step."""
    value._origin.step = 1
    return value


def overwritten(value: Any) -> Any:
    """Return a tensor whose buffer another one has overwritten."""
    value._origin.begin_overwrite(value, Overwrite("update", value._origin.line))
    return value


def shared(value: Any) -> Any:
    """Return a valid tensor that does not own its buffer: one that `+` has added to."""
    value._origin.add_in_place(value, handmade(value), value._origin.fields)
    return value


VARIANTS: Sequence[Callable[[Any], Any]] = (
    lambda value: value,
    handmade,
    altered,
    step_later,
    overwritten,
    shared,
    lambda value: None,
)
OPERATIONS: dict[str, tuple[tuple[str, ...], str, Callable[..., None]]] = {
    "forward": (("inp", "weight"), "require_pass", lambda ledger, *v: require_pass(ledger, "forward", *v)),
    "backward": (
        ("inp", "grad", "weight"),
        "require_pass",
        lambda ledger, inp, grad, weight: require_pass(ledger, "backward", inp, weight, grad),
    ),
    "update": (
        ("weight_grad", "weight", "opt_state"),
        "require_valid",
        lambda ledger, *values: require_valid(ledger, "update", values),
    ),
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_no_call_that_passes_the_quick_expression_breaks_a_strict_law(op: str) -> None:
    names, asked, law = OPERATIONS[op]
    found: set[tuple[bool, bool]] = set()
    chosen: Sequence[Callable[[Any], Any]] = ()

    async def program(model: Any) -> Model:
        made = passes(model)
        values = [variant(made[name]) for name, variant in zip(names, chosen, strict=True)]
        lawful = False
        with suppress(MinitrainError):
            law(model._ledger, *values)
            lawful = True
        quick = True
        with mock.patch.object(computation, asked, side_effect=LawAskedError), suppress(MinitrainError):
            try:
                getattr(model, op)(1, *values)
            except LawAskedError:
                quick = False
        assert lawful or not quick, chosen
        found.add((lawful, quick))
        raise LawAskedError  # the tensors are tampered with: let nobody look at the rest

    for variants in itertools.product(VARIANTS, repeat=len(names)):
        chosen = variants
        with pytest.raises(LawAskedError):
            mt.simulate(program, strict=True, hardware=mt.FixedPredictor(), **SIZES)
    assert found == {(True, True), (True, False), (False, False)}


MOVES = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "pop", "popitem"]), st.integers(0, 3), st.integers(0, 4)), max_size=12
)


def moved(store: Store[Any], moves: list[tuple[str, int, int]]) -> list[tuple[list[int], int]]:
    """Return what a store and its account hold after each of some moves."""
    tensors = [
        Weight(0, 1, 0),
        Weight(0, 1, 0, frozenset([0]), 2),
        *(Activation(0, 1, frozenset(range(n)), 4) for n in (1, 2, 4)),
    ]
    history = []
    for move, key, number in moves:
        with suppress(KeyError):
            if move == "set":
                store[key] = tensors[number]
            elif move == "delete":
                del store[key]
            elif move == "pop":
                store.pop(key)
            else:
                store.popitem()
        history.append(([tensors.index(value) for value in store.values()], store._account.units))
    return history


@given(MOVES)
def test_the_stores_of_strict_runs_hold_and_count_what_plain_ones_do(moves: list[tuple[str, int, int]]) -> None:
    plain, followed = (Account(lambda tensor: tensor.memory()) for _ in range(2))
    assert moved(Store(plain), moves) == moved(FollowedStore(Ledger(followed, 0, is_uniform=True)), moves)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_shards_overlap_where_their_intervals_do(num_shards: int, others: int, data: st.DataObject) -> None:
    shard = data.draw(st.integers(0, num_shards - 1))
    expected = [
        other
        for other in range(others)
        if Fraction(shard, num_shards) < Fraction(other + 1, others)
        and Fraction(other, others) < Fraction(shard + 1, num_shards)
    ]
    assert [*overlapping_shards(shard, num_shards, others)] == expected
    some = data.draw(st.frozensets(st.integers(0, others - 1)))
    assert overlaps_any(shard, num_shards, {others: some}) == bool(some & set(expected))
