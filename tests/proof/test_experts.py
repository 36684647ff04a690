"""A mixture of experts by rows that are sent is the dense mixture that JAX computes and differentiates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.proof.arithmetic import gradients
from minitrain.proof.experts import Routing, RoutingRule, routing_of

Numbers = Any


def problem(rule: RoutingRule, samples: int = 2, length: int = 6, size: int = 5) -> tuple[Numbers, ...]:
    """Return tokens, router, its bias, one matrix for each expert, and a gradient of the output."""
    draw = np.random.default_rng(rule.per_token).standard_normal
    matrices = draw((rule.num_experts, size, size))
    return (
        draw((samples, length, size)),
        draw((size, rule.num_experts)),
        draw(rule.num_experts),
        matrices,
        draw((samples, length, size)),
    )


def dense(tokens: Numbers, router: Numbers, matrices: Numbers, bias: Numbers, rule: RoutingRule) -> Numbers:
    """Return what every expert gives for every token, weighted, in JAX, with the capacity token by token."""
    logits = tokens @ router
    _, best = jax.lax.top_k(logits + bias, rule.per_token)
    chosen = jax.nn.one_hot(best, rule.num_experts).sum(axis=-2)
    weights = jax.nn.softmax(logits) * chosen
    if rule.per_token > 1:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    taken = np.zeros(chosen.shape)
    for sample, token, expert in np.argwhere(np.asarray(jax.lax.stop_gradient(chosen)) > 0):
        if taken[sample, :, expert].sum() < rule.capacity(tokens.shape[1]):
            taken[sample, token, expert] = 1
    return jnp.einsum("bte,btef->btf", weights * taken, jnp.einsum("btd,edf->btef", tokens, matrices))


RULES = [
    RoutingRule(4, 1),
    RoutingRule(4, 2),
    RoutingRule(4, 4),
    RoutingRule(4, 1, 0.5),
    RoutingRule(4, 2, 1.0),
    RoutingRule(3, 2, 0.75),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("parts", [1, 2])
def test_rows_sent_to_experts_give_the_dense_mixture_and_its_gradients(rule: RoutingRule, parts: int) -> None:
    tokens, router, bias, matrices, grad = problem(rule)
    routing = routing_of(tokens @ router, bias, rule)
    holders = np.array_split(np.arange(rule.num_experts), parts)  # whoever holds some experts works alone
    output, grad_tokens, grad_matrices = np.zeros_like(grad), np.zeros_like(tokens), np.zeros_like(matrices)
    grad_logits = np.zeros((*tokens.shape[:2], rule.num_experts))
    for experts in holders:
        inputs = routing.rows_of(tokens, experts)
        outputs = {expert: rows @ matrices[expert] for expert, rows in inputs.items()}
        output += routing.combine(outputs)

        def combined(logits: Numbers, *rows: Numbers, of: Numbers = experts) -> Numbers:
            return routing_of(logits, bias, rule).combine(dict(zip(of, rows, strict=True)))

        of_logits, *of_rows = gradients(combined, [tokens @ router, *outputs.values()], grad)
        grad_logits += of_logits
        for expert, rows in zip(outputs, of_rows, strict=True):
            grad_matrices[expert] = inputs[expert].T @ rows
            grad_tokens[routing.taken[..., expert]] += rows @ matrices[expert].T
    grad_router = tokens.reshape(-1, 5).T @ grad_logits.reshape(-1, rule.num_experts)
    grad_tokens += grad_logits @ router.T
    with jax.enable_x64(True):
        want = dense(tokens, router, matrices, bias, rule)
        wanted = jax.grad(lambda x, r, m: (dense_fixed(x, r, m, routing, rule) * grad).sum(), argnums=(0, 1, 2))(
            tokens, router, matrices
        )
    for got, expected in zip((output, grad_tokens, grad_router, grad_matrices), (want, *wanted), strict=True):
        np.testing.assert_allclose(got, np.asarray(expected), rtol=1e-10, atol=1e-12)


def dense_fixed(tokens: Numbers, router: Numbers, matrices: Numbers, routing: Routing, rule: RoutingRule) -> Numbers:
    """Return the dense mixture with the choice made, so that JAX can differentiate the rest."""
    weights = jax.nn.softmax(tokens @ router) * routing.chosen
    if rule.per_token > 1:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.einsum("bte,btef->btf", weights * routing.taken, jnp.einsum("btd,edf->btef", tokens, matrices))


@given(
    experts=st.integers(1, 8),
    per_token=st.integers(1, 8),
    factor=st.none() | st.floats(0.1, 2),
    seed=st.integers(0, 99),
)
def test_every_token_chooses_its_number_of_experts_and_capacity_is_kept(
    experts: int, per_token: int, factor: float | None, seed: int
) -> None:
    per_token = min(per_token, experts)
    rule, draw = RoutingRule(experts, per_token, factor), np.random.default_rng(seed).standard_normal
    routing = routing_of(draw((3, 7, 4)) @ draw((4, experts)), None, rule)
    assert (routing.chosen.sum(axis=-1) == per_token).all()
    assert (routing.taken.sum(axis=1) <= rule.capacity(7)).all()
    assert not (routing.taken & ~routing.chosen).any()
    assert routing.num_dropped == 3 * 7 * per_token - routing.counts().sum()
    if factor is None:
        assert routing.num_dropped == 0
        assert per_token == 1 or np.allclose(routing.weights.sum(axis=-1), 1)


def test_those_who_come_first_are_taken() -> None:
    rule = RoutingRule(2, 1, 0.5)
    routing = routing_of(np.ones((1, 8, 1)) @ np.array([[1.0, 0.0]]), None, rule)
    assert routing.taken[0, :, 0].tolist() == [True] * 2 + [False] * 6
    assert routing.num_dropped == 6


def test_samples_in_other_batches_are_routed_alike() -> None:
    rule, draw = RoutingRule(4, 2, 0.8), np.random.default_rng(3).standard_normal
    tokens, router = draw((4, 9, 5)), draw((5, 4))
    together = routing_of(tokens @ router, None, rule)
    alone = [routing_of(tokens[[sample]] @ router, None, rule) for sample in range(4)]
    assert np.array_equal(together.taken, np.concatenate([one.taken for one in alone]))


def test_a_bias_changes_the_choice_and_not_the_probabilities() -> None:
    rule, draw = RoutingRule(4, 1), np.random.default_rng(3).standard_normal
    tokens, router = draw((1, 9, 5)), draw((5, 4))
    plain, biased = (routing_of(tokens @ router, bias, rule) for bias in (None, np.array([0, 0, 0, 99.0])))
    assert np.array_equal(plain.probabilities, biased.probabilities)
    assert biased.counts().tolist() == [0, 0, 0, 9]
