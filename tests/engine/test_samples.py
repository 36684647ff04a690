"""Samples are integers of the global batch, which is looked at before anything is made of them; one error says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.errors import LawError, TensorTypeError
from minitrain.lib import Model

SIZES: dict[str, Any] = {"world_size": 1, "num_layers": 1, "global_batch_size": 4}
WAYS: dict[str, Callable[[Any], mt.Run]] = {
    "plain": lambda strategy: mt.simulate(strategy, check=False, **SIZES),
    "strict": lambda strategy: mt.simulate(strategy, check=False, strict=True, **SIZES),
    "folded": lambda strategy: mt.simulate(strategy, check=False, fold=True, **SIZES),
    "proven": lambda strategy: mt.prove(strategy, **SIZES).run,
}


def _trains_on(samples: Any) -> Any:
    """Return a strategy that trains on some samples."""

    async def trains(model: Model) -> Model:
        model.weights[0], model.opt_states[0] = model.load_weights(0)
        model.activations[0] = model.get_input_activation(samples)
        model.grad_activations[0] = model.loss(model.forward(0, model.activations[0], model.weights[0]))
        grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
        model.weights[0], _ = model.update(0, grad, model.weights[0], model.opt_states[0])
        model.set_final_weight(0, model.weights[0])
        return model

    return trains


REFUSED: list[tuple[Any, type[LawError], str]] = [
    ([0, 2, float("nan")], TensorTypeError, r"samples must be integers, got \[0, 2, nan\]"),
    ([0.0, 1.0], TensorTypeError, r"samples must be integers, got \[0.0, 1.0\]"),
    ([True, False], TensorTypeError, r"samples must be integers, got \[True, False\]"),
    (np.array([True, False, True, False]), TensorTypeError, "samples must be integers, got "),
    (np.array([0.0, 1.0]), TensorTypeError, "samples must be integers, got "),
    ([0, "a"], TensorTypeError, r"samples must be integers, got \[0, 'a'\]"),
    ([0, *["x" * 100] * 2], TensorTypeError, "samples must be integers, got 'x{79}"),
    (None, TensorTypeError, "samples must be integers, got None"),
    ([10**5000], LawError, r"samples must lie in 0..3 .*, got \[a huge number\]"),
    ([10**5000, "a"], TensorTypeError, "samples must be integers, got 'a'"),
    (range(10**12), LawError, r"samples must lie in 0..3 .*, got \[0, 1, 2, 3, 4, 5, \.\.\., 999999999999\]"),
    (range(-1, -(10**12), -2), LawError, "samples must lie in 0..3 .*"),
    (range(0, 10**12, 3), LawError, r"samples must lie in 0..3 .*, got \[0, 3, 6, 9, 12, 15, \.\.\., 999999999999\]"),
    (itertools.count, LawError, r"samples must lie in 0..3 .*, got \[0, 1, 2, 3, 4\]"),
    (
        lambda: itertools.repeat(0),
        LawError,
        "samples must be at most the 4 of the global batch, got more; give each once",
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("samples", "kind", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_are_no_samples_is_refused_alike_in_every_kind_of_run(
    way: str, samples: Any, kind: type[LawError], message: str
) -> None:
    with pytest.raises(LawError, match=f"get_input_activation on rank 0: {message}") as refused:
        WAYS[way](_trains_on(samples() if callable(samples) else samples))
    assert type(refused.value) is kind


def test_samples_without_a_text_are_refused_by_their_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(TensorTypeError, match="samples must be integers, got a Silent"):
        WAYS["plain"](_trains_on([Silent()]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "samples", [range(4), [3, 0, 1, 2], {0, 1, 2, 3}, np.arange(4), np.arange(4, dtype=np.uint8), range(3, -1, -1)]
)
def test_every_way_to_write_the_whole_batch_is_the_same(way: str, samples: Any) -> None:
    if way == "folded":
        samples = list(samples)  # one rank alone
    (found,) = {event.samples for event in WAYS[way](_trains_on(samples)).logs[0] if event.samples}
    assert sorted(found) == [0, 1, 2, 3]
    assert {type(number) for number in found} == {int}
