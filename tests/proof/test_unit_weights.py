"""The flat arrays that are computed with are those that the workload prices, and parts of them are its parts."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.proof import TransformerProblem
from minitrain.proof.units import PADDING, WHOLE, Part, by_name, held_by_all, places, taken
from minitrain.workloads.shapes import Degrees
from tests.small_transformers import MIXTRAL_LIKE, MODELS, transformers

PARTS = st.integers(1, 4)


def parts_of(count: int) -> list[Part]:
    """Return all parts of a division."""
    return [Part(index, count) for index in range(count)]


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=PARTS)
def test_a_part_has_as_many_elements_as_the_workload_prices(data: st.DataObject, count: int) -> None:
    model = data.draw(transformers(count))
    for unit in model.units():
        for part in parts_of(count):
            assert places(unit, part).size == unit.num_held_parameters(Degrees(tp=count))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_initial_weights_have_every_parameter_of_the_model(model: mt.Transformer) -> None:
    problem = TransformerProblem(model)
    assert sum(problem.initial_weight(layer).size for layer in range(len(problem.units))) == model.num_parameters


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=PARTS)
def test_parts_hold_every_element_and_share_only_what_nobody_cuts(data: st.DataObject, count: int) -> None:
    model = data.draw(transformers(count))
    for unit in model.units():
        holders = np.zeros(sum(weight.num_parameters for weight in unit.weights), dtype=int)
        for part in parts_of(count):
            where = places(unit, part)
            assert np.array_equal(held_by_all(unit, part) & (where == PADDING), np.zeros(where.size, dtype=bool))
            holders[where[where != PADDING]] += 1
        shared = sum(weight.num_parameters for weight in unit.weights if weight.cut is None or count == 1)
        assert set(holders.tolist()) <= {1, count}
        assert int((holders == count).sum()) == (shared if count > 1 else holders.size)


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros() -> None:
    unit = MIXTRAL_LIKE.units()[0]
    flat = TransformerProblem(MIXTRAL_LIKE).initial_weight(0)
    rows = [by_name(taken(flat, unit, part), unit, part)["tokens"] for part in parts_of(4)]
    assert [row.shape for row in rows] == [(6, 16)] * 4
    assert not rows[3][3:].any()
    assert np.array_equal(np.concatenate(rows)[:21], flat.reshape(21, 16))


def test_experts_are_cut_by_expert_parts_and_the_rest_is_held_by_all_of_them() -> None:
    unit = MIXTRAL_LIKE.units()[2]
    for index in range(2):
        part = Part(expert_index=index, num_expert_parts=2)
        assert places(unit, part).size == unit.num_held_parameters(Degrees(ep=2))
        names = {
            name
            for name, weight in by_name(held_by_all(unit, part).astype(float), unit, part).arrays.items()
            if weight.all()
        }
        assert names == {"norm.weight", "router"}
    both = [Part(tp, 2, ep, 2) for tp in range(2) for ep in range(2)]
    assert sum(places(unit, part).size for part in both) == sum(
        prod(weight.shape) * (1 if weight.cut else 4) for weight in unit.weights
    )


@given(data=st.data(), count=PARTS)
def test_weights_by_name_flatten_to_what_they_were(data: st.DataObject, count: int) -> None:
    model = data.draw(transformers(count))
    for layer, unit in enumerate(model.units()):
        flat = taken(TransformerProblem(model).initial_weight(layer), unit, Part(count - 1, count))
        weights = by_name(flat, unit, Part(count - 1, count))
        assert np.array_equal(np.concatenate([each.ravel() for each in weights.arrays.values()]), flat)


def test_the_whole_is_the_one_part_of_one() -> None:
    for unit in MIXTRAL_LIKE.units():
        assert places(unit, WHOLE).tolist() == list(range(sum(weight.num_parameters for weight in unit.weights)))
