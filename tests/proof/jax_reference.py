"""The gradient of a whole model on one device by `jax.grad`: the judge of `minitrain.proof.reference`.

It is written with JAX's own functions (`silu`, `gelu`, `log_softmax`, `top_k`, loops by `scan`), so that it shares
neither the forward pass nor the derivatives with what it judges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from minitrain.proof.arithmetic import Array
from minitrain.proof.problem import Problem, TransformerProblem
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

Weights = Mapping[str, Any]


def gradient_of(problem: Problem | TransformerProblem, weights: list[Array], global_batch_size: int) -> list[Array]:
    """Return the gradient of the mean loss over a batch, by layer, flat."""
    inputs, targets = problem.inputs(global_batch_size), problem.targets(global_batch_size)
    with jax.enable_x64(True):
        if isinstance(problem, Problem):
            square = jnp.asarray(np.stack(weights)).reshape(-1, problem.width, problem.width)
            return list(np.asarray(jax.grad(_dense_loss)(square, inputs, targets)).reshape(len(weights), -1))
        capacity = _capacity(problem)
        each = [
            _gradient_of_units(weights, inputs[one : one + 1], targets[one : one + 1], capacity, problem.model)
            for one in range(global_batch_size)
        ]
        return [np.mean([np.asarray(grad) for grad in grads], axis=0) for grads in zip(*each, strict=True)]


def _dense_loss(weights: Any, inputs: Any, targets: Any) -> Any:
    """Return the mean over samples of half the squared distance."""
    outputs, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x) @ weight, None), inputs, weights)
    return jnp.mean(jnp.sum((outputs - targets) ** 2, axis=1)) / 2


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
