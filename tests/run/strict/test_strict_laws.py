"""What strict/observer.py writes out for speed agrees with what it stands for."""

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
from minitrain.errors import MinitrainError
from minitrain.lib import Model
from minitrain.run.strict import laws, observer
from minitrain.run.strict.buffers import Overwrite
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
OPERATIONS: dict[str, tuple[str, ...]] = {
    "forward": ("inp", "weight"),
    "backward": ("inp", "grad", "weight"),
    "update": ("weight_grad", "weight", "opt_state"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("op", OPERATIONS)
def test_no_call_that_passes_the_quick_expression_breaks_a_strict_law(op: str) -> None:
    names = OPERATIONS[op]
    found: set[tuple[bool, bool]] = set()
    chosen: Sequence[Callable[[Any], Any]] = ()

    async def program(model: Any) -> Model:
        made = passes(model)
        values = [variant(made[name]) for name, variant in zip(names, chosen, strict=True)]
        lawful = False
        with suppress(MinitrainError):
            laws.require_usable(model._meter, op, (1, *values))
            lawful = True
        quick = True
        with mock.patch.object(observer, "require_usable", side_effect=LawAskedError), suppress(MinitrainError):
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
