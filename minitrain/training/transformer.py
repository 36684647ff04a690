"""The units of a transformer as torch functions, whole: what `minitrain.proof.units` computes, by torch's kernels.

A unit's weight is one flat array, in the order of `Unit.weights`. Attention is `scaled_dot_product_attention`, which
takes a flash kernel where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, final

import torch
from torch.nn import functional

from minitrain.errors import UsageError
from minitrain.proof.arithmetic import Adam, Momentum
from minitrain.proof.attention_core import ROTARY_BASE
from minitrain.proof.elementary import EPSILON
from minitrain.proof.problem import TransformerProblem
from minitrain.training.layers import Layer
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

Weights = Mapping[str, torch.Tensor]

CPU = torch.device("cpu")


def by_name(flat: torch.Tensor, unit: Unit) -> Weights:
    """Return a unit's flat weight as the arrays that it consists of."""
    sizes = [prod(weight.shape) for weight in unit.weights]
    return {
        weight.name: values.view(weight.shape) for weight, values in zip(unit.weights, flat.split(sizes), strict=True)
    }


def _normed(model: Transformer, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """Return tokens behind the norm of a unit."""
    weight = weights["norm.weight"]
    if model.norm == "layernorm":
        return functional.layer_norm(x, x.shape[-1:], weight, weights.get("norm.bias"), EPSILON)
    return functional.rms_norm(x, x.shape[-1:], weight, EPSILON)


def _linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    bias = weights.get(f"{name}.bias")
    found = x @ weights[name]
    return found if bias is None else found + bias


def _rotated(heads: torch.Tensor) -> torch.Tensor:
    """Return queries or keys with rotary positions: halves, as in GPT-NeoX and Llama."""
    half = heads.shape[-1] // 2
    rates = ROTARY_BASE ** (-torch.arange(half, device=heads.device, dtype=torch.float64) / half)
    angles = torch.arange(heads.shape[-2], device=heads.device, dtype=torch.float64)[:, None] * rates
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _embedding(model: Transformer, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    found = functional.embedding(tokens, weights["tokens"])
    return found + weights["positions"][: tokens.shape[-1]] if "positions" in weights else found


def _attention(model: Transformer, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    inner = _normed(model, weights, x)
    queries, keys, values = (
        _linear(weights, name, inner).unflatten(-1, (-1, model.head_dim)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    if model.positions == "rotary":
        queries, keys = _rotated(queries), _rotated(keys)
    mask = None
    if model.window is not None and model.window < x.shape[1]:
        places = torch.arange(x.shape[1], device=x.device)
        distance = places[:, None] - places[None, :]
        mask = (distance >= 0) & (distance < model.window)
    got = functional.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=mask is None, enable_gqa=keys.shape[1] != queries.shape[1]
    )
    return x + _linear(weights, "output", got.transpose(1, 2).flatten(2))


def _fed_forward(model: Transformer, weights: Weights, x: torch.Tensor, prefix: str = "") -> torch.Tensor:
    up = _linear(weights, f"{prefix}up", x)
    if model.mlp == "swiglu":
        inner = functional.silu(_linear(weights, f"{prefix}gate", x)) * up
    else:
        inner = functional.relu(up) if model.mlp == "relu" else functional.gelu(up, approximate="tanh")
    return _linear(weights, f"{prefix}down", inner)


def _mlp(model: Transformer, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return x + _fed_forward(model, weights, _normed(model, weights, x))


def _moe(model: Transformer, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """Experts, all of them here; the router's weights are the softmax over all, divided by its sum over the chosen."""
    inner = _normed(model, weights, x)
    shares = (inner @ weights["router"]).softmax(-1)
    preferred = inner @ weights["router"] + weights.get("router.bias", 0)
    chosen = preferred.topk(model.experts_per_token, -1).indices
    picked = shares.gather(-1, chosen)
    if model.experts_per_token > 1:
        picked = picked / picked.sum(-1, keepdim=True)
    total = x + (_fed_forward(model, weights, inner, "shared.") if model.num_shared_experts else 0)
    of_expert = [name for name in weights if name.startswith("experts.")]
    for expert in range(model.num_experts):
        *where, place = (chosen == expert).nonzero(as_tuple=True)
        own = {name: weights[name][expert] for name in of_expert}
        out = _fed_forward(model, own, inner[tuple(where)], "experts.")
        total = total.index_put(tuple(where), out * picked[(*where, place)][:, None], accumulate=True)
    return total


def _head(model: Transformer, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    return _normed(model, weights, x) @ weights["tokens"]


_UNITS: Mapping[str, Callable[[Transformer, Weights, torch.Tensor], torch.Tensor]] = {
    "embedding": _embedding,
    "attention": _attention,
    "mlp": _mlp,
    "moe": _moe,
    "head": _head,
}


@final
class TransformerNet:
    """A transformer on the tokens of a proof, or on the bytes of a text.

    Args:
        problem: model, initial weights and optimizer; also the tokens, if there is no text.
        text: bytes to learn, each a token.
        dtype: of all numbers.
        device: where they are.

    Raises:
        UsageError: the model's vocabulary has not all bytes, or its attention is of latents.
    """

    def __init__(
        self,
        problem: TransformerProblem,
        text: bytes | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        model = problem.model
        if model.latent is not None:
            raise UsageError(
                f"{model.name} has latent attention, which real processes do not compute; use another model"
            )
        if text is not None and model.vocab_size < 256:
            raise UsageError(f"{model.name} must have a vocabulary of 256 to learn bytes, got {model.vocab_size}")
        self.problem = problem
        self._text = None if text is None else torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.optimizer: Adam | Momentum = problem.optimizer
        self.dtype, self.device = dtype, device
        self._units = problem.units
        self.layers: Sequence[Layer] = [partial(self._computed, unit) for unit in self._units]

    def _computed(self, unit: Unit, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _UNITS[unit.kind](self.problem.model, by_name(weight, unit), x)

    def size(self, layer: int) -> int:
        """Return the number of elements of a unit's weight."""
        return sum(weight.num_parameters for weight in self._units[layer].weights)

    def initial_weight(self, layer: int) -> torch.Tensor:
        """Return the proof's initial weight."""
        return torch.tensor(self.problem.initial_weight(layer))

    def shape(self, layer: int, num_samples: int) -> tuple[int, ...]:
        """Return the shape of a unit's input: tokens of the embedding, vectors, or logits behind the head."""
        tokens = (num_samples, self.problem.seq_len)
        if layer == 0:
            return tokens
        return *tokens, self.problem.model.vocab_size if layer == len(self._units) else self.problem.model.hidden_size

    def tokens(self, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the tokens of some samples and the ones behind them, samples x (seq_len + 1)."""
        if self._text is None:
            both: Any = self.problem.inputs(global_batch_size), self.problem.targets(global_batch_size)[:, -1:]
            return torch.cat([torch.tensor(each[list(samples)]) for each in both], -1)
        length = self.problem.seq_len + 1
        generator = torch.Generator().manual_seed((self.problem.seed << 32) + step)
        places = torch.randint(0, len(self._text) - length + 1, (global_batch_size,), generator=generator)
        return self._text[places[list(samples)][:, None] + torch.arange(length)]

    def inputs(self, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the tokens of some samples."""
        return self.tokens(samples, global_batch_size, step)[:, :-1].to(self.device)

    def loss(self, output: torch.Tensor, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the cross-entropy with the next tokens, nats, divided by the tokens of the batch."""
        wanted = self.tokens(samples, global_batch_size, step)[:, 1:].to(self.device)
        total = functional.cross_entropy(output.flatten(0, 1), wanted.flatten(), reduction="sum")
        return total / (global_batch_size * self.problem.seq_len)
