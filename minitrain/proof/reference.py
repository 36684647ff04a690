"""The step on one device, written a second time: `jax.grad` of the whole model, and textbook optimizers.

It shares nothing with `minitrain.proof.arithmetic` but the problem's data, so that an error in either shows. Only
proofs import it, since it imports JAX.

A transformer's training step on one device, written a second time: `jax.grad` of the whole model.

It shares nothing with `minitrain.proof.units` and what these are made of but the problem's data and the order of a
unit's weights. It is written as textbooks have it, and not as parts need it: scores of whole sequences, keys repeated
for every head of queries, rotary positions as complex numbers, every expert on every token. Only proofs import it, as
it imports JAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from minitrain.engine.semantics import LocalSteps
from minitrain.proof.arithmetic import Adam, Array
from minitrain.proof.problem import Problem, TransformerProblem
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

_LAYERS, _SAMPLES = 16, 64  # sizes are padded to multiples of these, so that most proofs share one compilation


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Weights and optimizer states after one training step.

    Args:
        weights: by layer, one flat array after the step.
        states: by layer, the optimizer's state after the step, moments x elements.
    """

    weights: Sequence[Array]
    states: Sequence[Array]


@lru_cache(maxsize=256)
def reference(problem: Problem, num_layers: int, global_batch_size: int) -> Reference:
    """Return the outcome of one step on a single device over the whole batch."""
    before = _dense_weights(problem, num_layers)
    grads = _dense_gradient(problem, before, global_batch_size, range(global_batch_size))
    steps = [after_step(problem.optimizer, *pair) for pair in zip(before, grads, strict=True)]
    return Reference([weight for weight, _ in steps], [state for _, state in steps])


def _dense_weights(problem: Problem, num_layers: int) -> list[Array]:
    """Return the initial weights of all layers, flat."""
    return [problem.initial_weight(layer).ravel() for layer in range(num_layers)]


def _dense_gradient(problem: Problem, before: list[Array], global_batch_size: int, chosen: range) -> list[Array]:
    """Return the mean of some samples' gradients by layer, flat."""
    num_layers, count = len(before), len(chosen)
    layers, samples = _round_up(num_layers, _LAYERS), _round_up(count, _SAMPLES)
    weights = np.zeros((layers, problem.width, problem.width))
    weights[:num_layers] = [weight.reshape(problem.width, problem.width) for weight in before]
    inputs, targets = np.zeros((2, samples, problem.width))
    inputs[:count] = problem.inputs(global_batch_size)[chosen.start : chosen.stop]
    targets[:count] = problem.targets(global_batch_size)[chosen.start : chosen.stop]
    with jax.enable_x64(True):
        step = _gradient(weights, np.arange(layers) < num_layers, inputs, targets, np.arange(samples), count)
        return list(np.asarray(step)[:num_layers].reshape(num_layers, -1))


@lru_cache(maxsize=64)
def local_reference(
    problem: Problem | TransformerProblem, num_layers: int, global_batch_size: int, meant: LocalSteps
) -> Reference:
    """Return the outcome of one round of local steps, replica after replica on a single device.

    Douillard et al. 2023, algorithm 1; with the mean as the outer optimizer, Stich 2019, algorithm 1. With a delay, the
    gradients are of older weights: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
    """
    if isinstance(problem, TransformerProblem):
        before = [problem.initial_weight(layer) for layer in range(num_layers)]
    else:
        before = _dense_weights(problem, num_layers)
    if meant.in_turn:
        return _in_turn(problem, before, global_batch_size, meant)
    moved, share = [np.zeros_like(weight) for weight in before], meant.share(global_batch_size)
    for replica in range(meant.replicas):
        weights, history = before, []
        for step in range(meant.steps):
            first = (step * meant.replicas + replica) * share
            chosen = range(first, first + share)
            history.append(_gradient_of(problem, weights, global_batch_size, chosen))
            grads = [[of_step[layer] for of_step in history] for layer in range(num_layers)]
            weights = [_after_steps(problem.optimizer, *pair) for pair in zip(weights, grads, strict=True)]
        moved = [total + own - weight for total, own, weight in zip(moved, before, weights, strict=True)]
    mean = [total / meant.replicas for total in moved]
    outer = meant.outer
    after = [weight - outer.rate * (1 + outer.decay) * grad for weight, grad in zip(before, mean, strict=True)]
    return Reference(after, [grad[None] for grad in mean])  # the momentum was zero before


def _gradient_of(
    problem: Problem | TransformerProblem, weights: list[Array], global_batch_size: int, chosen: range
) -> list[Array]:
    """Return the mean of some samples' gradients by layer, flat."""
    if isinstance(problem, TransformerProblem):
        return _mean_gradient(problem, weights, global_batch_size, chosen)
    return _dense_gradient(problem, weights, global_batch_size, chosen)


def _in_turn(
    problem: Problem | TransformerProblem, before: list[Array], global_batch_size: int, meant: LocalSteps
) -> Reference:
    """Return the outcome of steps one after the other: W(t+1) = W(t) - step of grad f(W(t-delay))."""
    versions, history, size = [before], list[list[Array]](), global_batch_size // meant.steps
    for step in range(meant.steps):
        old = versions[max(0, step - meant.delay)]
        history.append(_gradient_of(problem, old, global_batch_size, range(step * size, (step + 1) * size)))
        of_layers = [list(grads) for grads in zip(*history, strict=True)]
        versions.append([_after_steps(problem.optimizer, *pair) for pair in zip(versions[-1], of_layers, strict=True)])
    return Reference(versions[-1], [_moments(problem.optimizer, np.stack(grads)) for grads in of_layers])


def _moments(optimizer: Any, grads: Array) -> Array:
    """Return the optimizer's state after some gradients, the last one last, as sums of them that fade."""
    ago = np.arange(len(grads))[::-1, None]
    if isinstance(optimizer, Adam):
        first = (1 - optimizer.beta1) * (optimizer.beta1**ago * grads).sum(0)
        return np.stack([first, (1 - optimizer.beta2) * (optimizer.beta2**ago * grads**2).sum(0)])
    return np.asarray((optimizer.decay**ago * grads).sum(0)[None])


def _after_steps(optimizer: Any, weights: Array, history: Sequence[Array]) -> Array:
    """Return weights after one more step: with moments as weighted sums of all gradients so far, the last one last."""
    ago = np.arange(len(history))[::-1, None]
    grads = np.stack(history)
    if isinstance(optimizer, Adam):
        first = (optimizer.beta1**ago * grads).sum(0) / (optimizer.beta1**ago).sum()
        second = (optimizer.beta2**ago * grads**2).sum(0) / (optimizer.beta2**ago).sum()
        return np.asarray(weights - optimizer.rate * first / (np.sqrt(second) + optimizer.epsilon))
    return np.asarray(weights - optimizer.rate * (optimizer.decay**ago * grads).sum(0))


def _round_up(count: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-count // multiple) * multiple


def _loss(weights: Any, present: Any, inputs: Any, targets: Any, samples: Any, batch_size: Any) -> Any:
    """Return the loss of a padded model on a padded batch: absent layers and samples change nothing."""

    def layer(x: Any, parameters: tuple[Any, Any]) -> tuple[Any, None]:
        weight, is_there = parameters
        return jnp.where(is_there, jnp.tanh(x) @ weight, x), None

    outputs, _ = jax.lax.scan(layer, inputs, (weights, present))
    losses = jnp.sum((outputs - targets) ** 2, axis=1) / 2
    return jnp.sum(jnp.where(samples < batch_size, losses, 0)) / batch_size


_gradient = jax.jit(jax.grad(_loss))


def after_step(optimizer: Any, weights: Array, grads: Array) -> tuple[Array, Array]:
    """Return weights and state after the optimizer's first step.

    Its state is zero before, so that each moment has one term.
    """
    if isinstance(optimizer, Adam):
        first, second = (1 - optimizer.beta1) * grads, (1 - optimizer.beta2) * grads * grads
        mean, variance = first / (1 - optimizer.beta1), second / (1 - optimizer.beta2)
        return weights - optimizer.rate * mean / (variance**0.5 + optimizer.epsilon), np.stack([first, second])
    return weights - optimizer.rate * grads, grads[None]


Weights = Mapping[str, Any]


@lru_cache(maxsize=64)
def transformer_reference(problem: TransformerProblem, global_batch_size: int) -> Reference:
    """Return the outcome of one step on a single device over the whole batch, by layer."""
    before = [problem.initial_weight(layer) for layer in range(len(problem.units))]
    grads = _mean_gradient(problem, before, global_batch_size, range(global_batch_size))
    steps = [after_step(problem.optimizer, weight, grad) for weight, grad in zip(before, grads, strict=True)]
    return Reference([weight for weight, _ in steps], [state for _, state in steps])


def _mean_gradient(
    problem: TransformerProblem, weights: list[Array], global_batch_size: int, chosen: range
) -> list[Array]:
    """Return the mean of some samples' gradients by layer: one at a time, so that batches share a compilation."""
    inputs, targets = problem.inputs(global_batch_size), problem.targets(global_batch_size)
    sums, capacity = [np.zeros_like(weight) for weight in weights], _capacity(problem)
    with jax.enable_x64(True):
        for sample in chosen:
            one = slice(sample, sample + 1)
            grads = _gradient_of_units(weights, inputs[one], targets[one], capacity, problem.model)
            sums = [total + np.asarray(grad) for total, grad in zip(sums, grads, strict=True)]
    return [total / len(chosen) for total in sums]


def _capacity(problem: TransformerProblem) -> int:
    """Return how many tokens of a sample an expert takes: all of them where no more is said."""
    if problem.capacity_factor is None:
        return problem.seq_len
    model = problem.model
    return math.ceil(problem.capacity_factor * problem.seq_len * model.experts_per_token / model.num_experts)


def _loss_of_units(flat: list[Any], inputs: Any, targets: Any, capacity: Any, model: Transformer) -> Any:
    """Return the mean cross-entropy of all tokens with the next ones."""
    x = inputs
    for unit, numbers in zip(model.units(), flat, strict=True):
        x = _unit(unit, _adapted(_named(unit, numbers), unit, model), x, model, capacity)
    likelihoods = jnp.take_along_axis(jax.nn.log_softmax(x), targets[..., None], axis=-1)
    return -likelihoods.mean()


# It runs rarely: compiling takes longer than the step, and less so without optimization.
_gradient_of_units = partial(jax.jit, static_argnums=4, compiler_options={"xla_backend_optimization_level": 0})(
    jax.grad(_loss_of_units)
)


def _named(unit: Unit, numbers: Any) -> Weights:
    """Return the weights of a unit by name, from one flat array."""
    ends = np.cumsum([math.prod(weight.shape) for weight in unit.weights])[:-1]
    pieces = jnp.split(numbers, ends)
    return {weight.name: piece.reshape(weight.shape) for weight, piece in zip(unit.weights, pieces, strict=True)}


def _adapted(w: Weights, unit: Unit, model: Transformer) -> Weights:
    """Return weights of which only those that train have gradients, with what adapters add to matrices (Hu et al.)."""
    lora, is_frozen = model.lora, unit.kind == "embedding" or (unit.layer or 0) < model.frozen_layers
    if lora is None:
        is_frozen = is_frozen and model.frozen_layers > 0 and unit.kind != "head"
        return {name: jax.lax.stop_gradient(weight) for name, weight in w.items()} if is_frozen else w
    scale, whole = (lora.alpha or 2 * lora.rank) / lora.rank, dict[str, Any]()
    for name, weight in w.items():
        own = jax.lax.stop_gradient(weight)
        a, b = (w.get(f"{name}.lora_{which}") for which in "ab")
        whole[name] = own if a is None else own + scale * a @ b
    return whole


def _unit(unit: Unit, w: Weights, x: Any, model: Transformer, capacity: Any) -> Any:
    """Return the output of a unit."""
    if unit.kind == "embedding":
        found = w["tokens"][x]
        return found + w["positions"][: x.shape[1]] if model.positions == "learned" else found
    normed = _norm(w, x, model.norm)
    if unit.kind == "head":
        return normed @ w["tokens"]
    if unit.kind == "attention":
        return x + (_attention if model.latent is None else _latent_attention)(w, normed, model)
    return x + (_mlp(w, normed, model.mlp) if unit.kind == "mlp" else _moe(w, normed, model, capacity))


def _norm(w: Weights, x: Any, kind: str) -> Any:
    """Return tokens through a unit's norm."""
    return _scaled(w["norm.weight"], x, kind) + w.get("norm.bias", 0)


def _scaled(weight: Any, x: Any, kind: str) -> Any:
    """Return tokens through a norm without a bias."""
    if kind == "layernorm":
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-5) * weight
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * weight


def _attention(w: Weights, x: Any, model: Transformer) -> Any:
    """Return the output projection of causal attention."""
    dim, heads = model.head_dim, {}
    for name, num_heads in (("query", model.num_heads), ("key", model.num_kv_heads), ("value", model.num_kv_heads)):
        heads[name] = (x @ w[name] + w.get(f"{name}.bias", 0)).reshape(*x.shape[:2], num_heads, dim)
    if model.positions == "rotary":
        heads.update({name: _rotated(heads[name]) for name in ("query", "key")})
    repeats = model.num_heads // model.num_kv_heads
    keys, values = (jnp.repeat(heads[name], repeats, axis=2) for name in ("key", "value"))
    return _mixed(heads["query"], keys, values, model) @ w["output"] + w.get("output.bias", 0)


def _latent_attention(w: Weights, x: Any, model: Transformer) -> Any:
    """Return the output projection of multi-head latent attention, as its paper writes it (equations 37 to 47)."""
    sizes: Any = model.latent
    shape = (*x.shape[:2], model.num_heads, -1)
    latent = x if sizes.query_rank is None else _scaled(w["query_norm.weight"], x @ w["query_down"], model.norm)
    queries = (latent @ w["query" if sizes.query_rank is None else "query_up"]).reshape(shape)
    turned = _rotated(queries[..., sizes.nope_head_dim :])
    queries = jnp.concatenate([queries[..., : sizes.nope_head_dim], turned], axis=-1)
    down = x @ w["kv_down"]
    made = (_scaled(w["kv_norm.weight"], down[..., : sizes.kv_rank], model.norm) @ w["kv_up"]).reshape(shape)
    key = _rotated(down[..., None, sizes.kv_rank :])
    rotary = jnp.broadcast_to(key, (*made.shape[:3], sizes.rope_head_dim))
    keys = jnp.concatenate([made[..., : sizes.nope_head_dim], rotary], axis=-1)
    mixed = _mixed(queries, keys, made[..., sizes.nope_head_dim :], model)
    return mixed @ w["output"] + w.get("output.bias", 0)


def _mixed(queries: Any, keys: Any, values: Any, model: Transformer) -> Any:
    """Return what all heads get from values, concatenated."""
    length = queries.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(queries.shape[-1])
    seen = np.tril(np.ones((length, length), dtype=bool))
    if model.window is not None:
        seen &= ~np.tril(np.ones((length, length), dtype=bool), -model.window)
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, values).reshape(*queries.shape[:2], -1)


def _rotated(heads: Any) -> Any:
    """Return queries or keys with their halves, as complex numbers, turned by their positions."""
    half = heads.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half) / half)
    turns = jnp.exp(1j * jnp.arange(heads.shape[1])[:, None] * rates)[None, :, None, :]
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turns
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def _mlp(w: Weights, x: Any, kind: str, prefix: str = "") -> Any:
    """Return the output of a dense MLP."""
    up = x @ w[f"{prefix}up"] + w.get(f"{prefix}up.bias", 0)
    if kind == "swiglu":
        middle = jax.nn.silu(x @ w[f"{prefix}gate"] + w.get(f"{prefix}gate.bias", 0)) * up
    else:
        middle = jax.nn.relu(up) if kind == "relu" else jax.nn.gelu(up, approximate=True)
    return middle @ w[f"{prefix}down"] + w.get(f"{prefix}down.bias", 0)


def _moe(w: Weights, x: Any, model: Transformer, capacity: Any) -> Any:
    """Return the output of all experts, each multiplied by how much a token wants of it."""
    logits, count = x @ w["router"], model.experts_per_token
    _, best = jax.lax.top_k(jax.lax.stop_gradient(logits + w.get("router.bias", 0)), count)
    wanted = jax.nn.one_hot(best, model.num_experts, dtype=logits.dtype).sum(axis=-2)
    shares = jax.nn.softmax(logits) * wanted
    if count > 1:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    shares = jnp.where(jnp.cumsum(wanted, axis=1) <= capacity, shares, 0)
    total = _mlp(w, x, model.mlp, "shared.") if model.num_shared_experts else jnp.zeros_like(x)
    all_experts = {name: jnp.expand_dims(weight, _missing(name)) for name, weight in w.items() if "experts." in name}
    outputs = _mlp(all_experts, x, model.mlp, "experts.")  # experts x samples x tokens x hidden_size
    return total + jnp.einsum("bte,ebtd->btd", shares, outputs)


def _missing(name: str) -> tuple[int, ...]:
    """Return where a weight of all experts has no dimension for samples, and a bias none for tokens either."""
    return (1, 2) if name.endswith(".bias") else (1,)
