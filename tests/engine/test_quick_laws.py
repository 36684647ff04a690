"""What engine/computation.py takes for a usual call keeps the laws; its rows and sizes are those of all others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

import minitrain as mt
from minitrain.engine import laws
from minitrain.errors import MinitrainError
from minitrain.lib import Activation, ActivationGrad, Model, OptState, Weight, WeightGrad
from minitrain.tensors.index_sets import SequencePart
from minitrain.tensors.placed import ActivationShard, PartialActivation, PartialActivationGrad, WeightPart

NUM_LAYERS, BATCH = 2, 2
EVERYTHING = frozenset(range(BATCH))
KINDS = (Weight, OptState, Activation, ActivationGrad, WeightGrad)

LAWFUL: dict[str, tuple[list[Any], Callable[..., None]]] = {
    "forward": (
        [Activation(1, NUM_LAYERS, EVERYTHING, BATCH), Weight(1, NUM_LAYERS, 0)],
        lambda model, *values: laws.require_inputs(model, "forward", *values),
    ),
    **{
        op: (
            [
                Activation(1, NUM_LAYERS, EVERYTHING, BATCH),
                ActivationGrad(1, NUM_LAYERS, EVERYTHING, BATCH),
                Weight(1, NUM_LAYERS, 0),
            ],
            lambda model, *values, op=op: laws.require_inputs(model, op, *values),
        )
        for op in ("backward", "backward_input", "backward_weight")
    },
    "update": (
        [WeightGrad(1, NUM_LAYERS, EVERYTHING, BATCH), Weight(1, NUM_LAYERS, 0), OptState(1, NUM_LAYERS, 0)],
        laws.update,
    ),
    "load_weights": ([1, 2], laws.load),
}
LAW_OF = {
    **dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), "require_inputs"),
    "update": "update",
    "load_weights": "load",
}


def cast(value: Any, kind: type) -> Any:
    """Return a tensor of another kind with the same values in the fields that both have."""
    known = {"layers": NUM_LAYERS, "step": 0, "samples": EVERYTHING, "total_samples": BATCH}
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(
        **{name: getattr(value, name, known.get(name)) for name in fields if hasattr(value, name) or name in known}
    )


def wrong(value: Any) -> list[Any]:
    """Return everything that may be wrong with one argument, one thing at a time."""
    if isinstance(value, int):
        return [-1, 0, value + 1, True, float(value), None]
    changes: list[dict[str, Any]] = [{"layer": 0}, {"step": 1}, {"samples": frozenset([0])}]
    changes += [{"shards": frozenset([0]), "num_shards": 2}, {"shards": frozenset([0, 1]), "num_shards": 2}]
    changed = [replace(value, **change) for change in changes if all(hasattr(value, name) for name in change)]
    return [*changed, *(cast(value, kind) for kind in KINDS if kind is not type(value)), None, 3]


def calls(op: str) -> Iterator[tuple[Any, list[Any], int | None]]:
    """Yield a lawful call, and all with one or two things wrong: layer, values, which of them is not stored."""
    values, _ = LAWFUL[op]
    options = [[value, *wrong(value)] for value in values]
    for layer, missing in itertools.product((1, 0, NUM_LAYERS, True), (None, *range(len(values)))):
        for index in range(len(values)):
            for option in options[index]:
                yield layer, [*values[:index], option, *values[index + 1 :]], missing
    for chosen in itertools.product(*options):
        yield 1, list(chosen), None


class LawAskedError(Exception):
    """The quick expression of an operation was false."""


def passes_quickly(model: Model, op: str, layer: Any, values: list[Any]) -> bool:
    """Return whether an operation goes ahead without asking its law."""
    with mock.patch.object(laws, LAW_OF[op], side_effect=LawAskedError):
        try:
            getattr(model, op)(layer, *values)
        except LawAskedError:
            return False
    return True


def is_lawful(law: Callable[..., None], *arguments: Any) -> bool:
    with suppress(MinitrainError):
        law(*arguments)
        return True
    return False


@pytest.mark.few(1)
@pytest.mark.parametrize("op", LAWFUL)
def test_no_call_that_passes_the_quick_expression_breaks_the_law(op: str) -> None:
    _, law = LAWFUL[op]
    num_quick = num_unlawful = 0
    for layer, values, missing in calls(op):
        model = Model(num_layers=NUM_LAYERS, global_batch_size=BATCH)
        given = [copy(value) for value in values]
        for index, value in enumerate(given):
            if index != missing and hasattr(value, "memory"):
                model.weights[index] = value
        lawful = is_lawful(law, model, layer, *given)
        quick = passes_quickly(model, op, layer, given)
        assert lawful or not quick, (layer, values, missing)
        num_quick += quick
        num_unlawful += not lawful
    assert num_quick
    assert num_unlawful


def variants_of_part(value: Any) -> list[Any]:
    """Return a tensor of a pass through a part, and everything that may be wrong with it."""
    samples: dict[str, Any] = {"layers": NUM_LAYERS, "samples": EVERYTHING, "total_samples": BATCH}
    halves: list[Any] = [kind(layer=1, **samples, num_parts=2) for kind in (PartialActivation, PartialActivationGrad)]
    halves += [ActivationShard(1, NUM_LAYERS, EVERYTHING, BATCH, SequencePart(num_pieces=2))]
    return [value, *wrong(value), *halves]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("may_pass", "op", "names"),
    [
        (laws.is_usual_forward, "forward", ("inp", "weight")),
        (
            lambda model, *values: laws.is_usual_backward(model, "backward", *values),
            "backward",
            ("inp", "grad", "weight"),
        ),
    ],
)
def test_no_pass_through_a_part_that_looks_usual_breaks_the_law(
    may_pass: Callable[..., bool], op: str, names: tuple[str, ...]
) -> None:
    usual = {
        "inp": Activation(1, NUM_LAYERS, EVERYTHING, BATCH),
        "grad": ActivationGrad(1, NUM_LAYERS, EVERYTHING, BATCH),
        "weight": WeightPart(1, NUM_LAYERS, 0, num_parts=2),
    }
    found = set()
    for values in itertools.product(*(variants_of_part(usual[name]) for name in names)):
        for missing in (None, *range(len(names))):
            model = Model(num_layers=NUM_LAYERS, global_batch_size=BATCH)
            given = [copy(value) for value in values]
            for index, value in enumerate(given):
                if index != missing and hasattr(value, "memory"):
                    model.weights[index] = value
            quick = may_pass(model, 1, *given)
            lawful = is_lawful(laws.require_inputs, model, op, 1, *given)
            assert lawful or not quick, (values, missing)
            found.add((quick, lawful))
    assert {(True, True), (False, False)} <= found


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "1f1b", "hsdp"])
def test_shipped_strategies_never_need_more_than_the_quick_expressions(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("require_inputs", "load"):
        monkeypatch.setattr(laws, name, None)  # calling it would fail
    mt.simulate(strategy, world_size=4, num_layers=4, global_batch_size=8)


def one_of_each(model: Model) -> list[Any]:
    """Do each operation once on layer 0, and return its results and what else is to have a size."""
    loaded: list[Any] = [*model.load_weights(1, 1, 2), *model.load_weights(0)]
    model.weights[0], model.activations[0] = loaded[2], model.get_input_activation(EVERYTHING)
    model.grad_activations[0] = ActivationGrad(0, NUM_LAYERS, EVERYTHING, BATCH)
    inp, grad_out, weight = model.activations[0], model.grad_activations[0], model.weights[0]
    made: list[Any] = [model.forward(0, inp, weight), *model.backward(0, inp, grad_out, weight)]
    made += [model.backward_input(0, inp, grad_out, weight), model.backward_weight(0, inp, grad_out)]
    return [*loaded, *made, *model.update(0, made[1], weight, loaded[3])]


def log_one_of_each(model: Model) -> None:
    """Log the events of `one_of_each`, with the memory that they find."""
    model.log_event("load_weights", 1, num_shards_on_device=1, num_shards=2)
    model.log_event("load_weights", 0)
    model.weights[0], model.activations[0] = Weight(0, NUM_LAYERS, 0), Activation(0, NUM_LAYERS, EVERYTHING, BATCH)
    model.grad_activations[0] = ActivationGrad(0, NUM_LAYERS, EVERYTHING, BATCH)
    for typ in ("forward", "backward", "backward_input", "backward_weight", "update"):
        model.log_event(typ, 0, EVERYTHING)


def test_the_rows_of_operations_are_those_that_log_event_records() -> None:
    quick, slow = (Model(num_layers=NUM_LAYERS, global_batch_size=BATCH) for _ in range(2))
    for _ in range(2):  # first the prices are not known, then they are remembered
        one_of_each(quick)
        log_one_of_each(slow)
        assert (quick.log._rows, quick.time) == (slow.log._rows, slow.time)


def test_results_have_the_size_that_measuring_them_gives() -> None:
    model = Model(num_layers=NUM_LAYERS, global_batch_size=BATCH)
    for tensor in [*one_of_each(model), *one_of_each(model)]:  # as above
        assert tensor._units == tensor.memory() * 2**40, tensor


def test_what_is_remembered_prices_every_operation_of_layers_that_are_alike() -> None:
    model = Model(num_layers=NUM_LAYERS, global_batch_size=BATCH)
    one_of_each(model)
    with mock.patch.object(model, "_runtime_predictor", None):  # asking it would fail
        one_of_each(model)


def test_nothing_is_remembered_of_layers_that_differ() -> None:
    run = mt.simulate("ddp", world_size=2, global_batch_size=2, workload="gpt2", log="full")
    remembered = run.models[0]._remembered
    assert not any(getattr(remembered, name) for name in remembered.__slots__ if name != "predictor")


def test_ranks_of_one_predictor_remember_together_and_stragglers_apart() -> None:
    run = mt.simulate("ddp", world_size=3, num_layers=2, global_batch_size=3, slowdown={2: 3.0})
    first, second, straggler = (model._remembered for model in run.models)
    assert first is second
    assert straggler.forwards[1].seconds == 3 * first.forwards[1].seconds
