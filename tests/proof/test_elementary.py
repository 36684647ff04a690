"""Norms and activation functions, and their backwards, are what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minitrain.proof import arithmetic

Numbers = Any


def draw(count: int) -> Numbers:
    """Return tokens."""
    return np.random.default_rng(0).standard_normal((count, 2, 3, 6))


def norm(x: Numbers, kind: str) -> Numbers:
    """Return a norm as a textbook has it."""
    if kind == "layernorm":
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


FUNCTIONS: dict[str, Callable[..., Numbers]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norms_are_what_jax_computes(kind: str) -> None:
    x, grad = draw(2)
    with jax.enable_x64(True):
        want, back = jax.vjp(lambda x: norm(x, kind), x)
        (wanted,) = back(jnp.asarray(grad))
    np.testing.assert_allclose(arithmetic.normalised(x, kind), want, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        arithmetic.gradients(lambda x: arithmetic.normalised(x, kind), [x], grad)[0], wanted, rtol=1e-11, atol=1e-13
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_activation_functions_are_what_jax_computes(kind: str) -> None:
    grad, *inputs = draw(3 if kind == "swiglu" else 2)
    with jax.enable_x64(True):
        function: Callable[..., Numbers] = FUNCTIONS[kind]
        want, back = jax.vjp(function, *map(jnp.asarray, inputs))
        wanted = back(jnp.asarray(grad))
    np.testing.assert_allclose(arithmetic.activated(tuple(inputs), kind), want, rtol=1e-12, atol=1e-14)
    for got, expected in zip(
        arithmetic.gradients(lambda *given: arithmetic.activated(given, kind), inputs, grad), wanted, strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


def test_a_norm_gives_tokens_of_size_one() -> None:
    (x,) = draw(1)
    assert np.allclose((arithmetic.normalised(x, "rmsnorm") ** 2).mean(-1), 1, atol=1e-3)
    assert np.allclose(arithmetic.normalised(x, "layernorm").mean(-1), 0)


def test_very_large_logits_make_probabilities() -> None:
    assert arithmetic.softmax(np.array([1e4, 0, -1e4])).tolist() == [1, 0, 0]
