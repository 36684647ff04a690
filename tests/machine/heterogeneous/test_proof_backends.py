"""Proofs on named backends: the same numbers whatever computes them, and nothing computed elsewhere unnoticed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.machine.heterogeneous import PlacedArray, place_of
from minitrain.machine.heterogeneous.abstraction_layer import Place
from minitrain.proof import Problem
from tests.small_transformers import LLAMA_LIKE

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
LIBRARIES = ["numpy", "jax", pytest.param("torch", marks=needs_torch)]
SIZES: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 4}
AGREE = 1e-12
"""Two backends sum in other orders and round their tanh otherwise, in float64 by a few units in the last place."""


def weights_of(proof: mt.Proof) -> list[Any]:
    """Return the final weights of all ranks, NaN where a rank does not hold them."""
    return [
        np.asarray(weight._content.values)  # type: ignore[attr-defined]
        for model in proof.run.models
        for _, weight in sorted(model.final_weights.items())
    ]


@pytest.fixture(scope="module")
def direct() -> list[Any]:
    return weights_of(mt.prove("zero3", **SIZES))


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_a_strategys_numbers_agree_on_all_backends(backend: str, direct: list[Any]) -> None:
    proof = mt.prove("zero3", backend=backend, **SIZES)
    assert proof.backend == backend
    assert proof.computed[backend] > 100
    assert proof.computed["host"] < proof.computed[backend] / 4
    assert str(proof).endswith(f", computed by {backend}")
    for found, expected in zip(weights_of(proof), direct, strict=True):
        np.testing.assert_allclose(found, expected, rtol=AGREE, atol=AGREE)
        if backend == "numpy":
            np.testing.assert_array_equal(found, expected)


@needs_torch
def test_ranks_on_different_libraries_train_together(direct: list[Any]) -> None:
    proof = mt.prove("zero3", backend=["numpy", "torch"], **SIZES)
    assert proof.backend == "numpy and torch"
    assert min(proof.computed["numpy"], proof.computed["torch"]) > 50
    for found, expected in zip(weights_of(proof), direct, strict=True):
        np.testing.assert_allclose(found, expected, rtol=AGREE, atol=AGREE)
    content: Any = [model.final_weights[0]._content for model in proof.run.models]
    assert [each.values.place.key for each in content] == ["numpy", "torch"]


def test_all_matrices_are_multiplied_by_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    compute = Place.compute
    monkeypatch.setattr(Place, "compute", lambda self, op, **named: asked.append(op) or compute(self, op, **named))  # type: ignore[func-returns-value]
    mt.prove("ddp", backend="numpy", **SIZES)
    # 2 ranks x 2 layers x (forward, gradient of the weight, gradient of the input)
    assert asked.count("matmul") == 2 * 2 * 3


@needs_torch
def test_a_transformer_in_parts_is_proven_by_torch() -> None:
    proof = mt.prove("megatron", workload=LLAMA_LIKE, world_size=2, tp=2, global_batch_size=2, backend="torch")
    assert proof.largest_relative < 1e-9
    assert proof.computed["torch"] > 10 * proof.computed["host"]


async def scaled_twice(model: Any) -> Any:
    """Train as ddp does, with a gradient a thousandth too large."""
    backward = model.backward

    def too_large(*args: Any) -> Any:
        grads = backward(*args)
        grads[0]._content = type(grads[0]._content)(grads[0]._content.values * 1.001)
        return grads

    model.backward = too_large
    return await mt.strategies()["ddp"](model)


def test_wrong_numbers_are_found_on_a_backend_too() -> None:
    with pytest.raises(mt.ProofError, match="differs from single-device training"):
        mt.prove(scaled_twice, backend="jax", strict=False, **SIZES)


def test_a_problem_may_name_its_backend() -> None:
    run = mt.simulate("ddp", numerics=Problem(backend="numpy"), **SIZES)
    content: Any = run.models[0].final_weights[0]._content
    assert isinstance(content.values, PlacedArray)


@pytest.mark.parametrize("backend", ["cuda", "", 3, ["numpy", "cuda"]])
def test_an_unknown_backend_is_refused_with_those_that_there_are(backend: Any) -> None:
    with pytest.raises(mt.UsageError, match="backend must be one of jax, numpy, torch, got"):
        mt.prove("ddp", backend=backend, **SIZES)


def test_no_backend_at_all_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="backend must name one library at least"):
        mt.prove("ddp", backend=[], **SIZES)


def test_a_backend_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(mt.UsageError, match="backend 'torch' needs torch, which is not installed"):
        place_of("torch")


X = np.arange(12.0).reshape(3, 4) / 7 - 0.5


@pytest.mark.parametrize(
    "write",
    [
        lambda x: np.tanh(x) @ x.T,
        lambda x: 1 - x**2 / (2 + x),
        lambda x: np.where(X > 0, x, np.nan),
        lambda x: np.concatenate([x, np.exp(x)], axis=1)[:, ::2],
        lambda x: np.stack([x, -x]).sum(axis=(0, 2)),
        lambda x: np.max(x, axis=-1, keepdims=True) + x.mean(axis=0),
        lambda x: np.zeros_like(x) + x.ravel()[3],
        lambda x: np.cumsum(x, axis=1),
        lambda x: np.split(x, [1])[1] * x[1:],
        lambda x: np.broadcast_to(x.max(axis=1)[:, None], (3, 4)),
        lambda x: abs(x) >= 0.3,
    ],
)
def test_code_for_numpy_gives_the_same_on_a_placed_array(write: Any) -> None:
    found = write(place_of("numpy").put(X))
    assert isinstance(found, PlacedArray | np.ndarray)
    np.testing.assert_array_equal(np.asarray(found), write(X))


def test_writes_into_placed_arrays_stay_placed_and_are_counted() -> None:
    place = place_of("numpy")
    x = place.put(X)
    kept = x
    x += 1
    x[0] = 0
    np.add.at(x, (np.array([1, 1]), np.array([2, 2])), 1.0)
    expected = X + 1
    expected[0] = 0
    expected[1, 2] += 2
    np.testing.assert_array_equal(x.home(), expected)
    assert kept is x
    assert place.on_host == {"setitem": 1, "add.at": 1}
    home = np.zeros((3, 4))
    home += x
    np.testing.assert_array_equal(home, expected)


def test_the_command_takes_backends_in_turn() -> None:
    from typer.testing import CliRunner

    from minitrain.cli import app

    sizes = ["--world-size", "2", "--layers", "2", "--batch", "4"]
    result = CliRunner().invoke(app, ["prove", "ddp", *sizes, "--backend", "numpy", "--backend", "jax"])
    assert result.exit_code == 0
    assert result.output.rstrip().endswith(", computed by numpy and jax")
