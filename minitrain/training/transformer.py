"""The units of a transformer as torch functions, for a whole unit or one part of it.

They compute what `minitrain.proof.units` does, by torch's kernels. A unit's weight is one flat array, in the order of
`Unit.weights`. It has two steps, so that parts of it add up to the whole:

- its *border*: what all parts do with the input, token by token (norm, router, latents), and what is added once to
  their sum (residual connection, biases, positions);
- *inside*: what parts divide: heads, columns and rows, vocabulary rows, the columns of experts.

Attention is `scaled_dot_product_attention`, which takes a flash kernel where there is one. Where keys and values come
from other ranks it is taken in blocks, which are merged by the log-sum-exp of their scores (Dao et al. 2022; Liu et al.
2023); backward of a block needs the merged output and log-sum-exp, and nothing else of other blocks (Dao 2023,
algorithm 2).

Norm and gated activation as frameworks fuse them: backward computes again what forward need not keep.

Written with torch's own functions, a norm would keep its input and its normalised input, and a gated MLP the activated
gate beside gate and product. Memory is counted as Megatron-Core's and TransformerEngine's kernels keep it: the input of
a norm, and both inputs of a product (Korthikanti et al. 2022, section 4.1, counts so).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.nn import functional

from minitrain.errors import UsageError
from minitrain.proof.arithmetic import EPSILON, Averaged, Optimizer
from minitrain.proof.attention_core import ROTARY_BASE, Packing, positions_of_shard
from minitrain.proof.experts import RoutingRule
from minitrain.proof.problem import TransformerProblem
from minitrain.proof.units import WHOLE, Part, held_by_all, taken
from minitrain.tensors.index_sets import WHOLE_SEQUENCE, SequencePart
from minitrain.training.contents import Attended, KeysValues, Positions, Rows, on_device
from minitrain.training.layers import Datatypes, Layer, wide
from minitrain.training.nets import SINGLE, Compiled
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit


class RmsNorm(torch.autograd.Function):
    """x / root(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019), in single precision at least."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return tokens behind the norm."""
        scale = (wide(x).square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        normed: torch.Tensor = (wide(x) * scale).to(x.dtype) * weight
        return normed

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of input and weight."""
        x, weight, scale = ctx.saved_tensors
        normed = wide(x) * scale
        of_weight = (wide(grad) * normed).flatten(0, -2).sum(0).to(weight.dtype)
        of_normed = wide(grad) * weight
        of_x = (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True)) * scale
        return of_x.to(x.dtype), of_weight, None


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both."""
        gate, up = ctx.saved_tensors
        of_gate: torch.Tensor = torch.ops.aten.silu_backward(grad * up, gate)
        return of_gate, grad * functional.silu(gate)


class CrossEntropy(torch.autograd.Function):
    """The sum of -log softmax(logits)[target], in single precision at least, with no more than the softmax beside it.

    Memory is counted as frameworks that fuse it take it: torch's own keeps four copies in single precision at once.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum over tokens."""
        found = logits.softmax(-1, dtype=wide(logits[:0]).dtype)
        highest, place = logits.max(-1, keepdim=True)
        log_sum_exp = highest - found.gather(-1, place).log()  # the highest is no rounding to 0
        targets = targets[..., None]
        total = (log_sum_exp - logits.gather(-1, targets)).sum()
        ctx.save_for_backward(found.scatter_add_(-1, targets, torch.full_like(log_sum_exp, -1.0)))
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of the logits; it is taken once."""
        (found,) = ctx.saved_tensors
        made = found if found.dtype == ctx.dtype else torch.empty_like(found, dtype=ctx.dtype)
        return torch.mul(found, grad, out=made), None


Weights = Mapping[str, torch.Tensor]
Border = tuple[torch.Tensor, torch.Tensor | None]
"""What *inside* works on, and what is added once to the sum of all parts."""

CPU = torch.device("cpu")


@lru_cache(maxsize=1024)
def shapes_of(unit: Unit, part: Part = WHOLE) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each weight that a part of a unit has, in order."""
    return {weight.name: weight.part(part.degrees) for weight in unit.weights if part.has(weight)}


FlatWeight = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""The flat weight of a part of a unit; in two, where the first of it is frozen."""


def by_name(flat: FlatWeight, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Return the flat weight of a part of a unit as the arrays that it consists of."""
    regions, sizes = flat if isinstance(flat, tuple) else (flat,), [prod(shape) for shape in shapes.values()]
    num_frozen = list(accumulate(sizes, initial=0)).index(regions[0].numel())
    cuts = (sizes[:num_frozen], sizes[num_frozen:])
    pieces = [each for region, cut in zip(regions, cuts, strict=False) for each in region.split(cut)]
    return {name: values.view(shape) for (name, shape), values in zip(shapes.items(), pieces, strict=True)}


class Packed(NamedTuple):
    """The positions of tokens in sequences that consist of documents, of each sample by itself.

    Args:
        here: places in the order of the sequence's shards, the same for all samples.
        where: samples x seq_len: where in the sequence the token of each place is.
        starts: samples x seq_len: where its document begins.
    """

    here: torch.Tensor
    where: torch.Tensor
    starts: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        """Return where in the sequence the tokens are: samples x tokens."""
        return self.where[:, self.here]


class Piece(NamedTuple):
    """A part of a unit at work.

    Args:
        model: whose unit it is.
        rule: how a router chooses.
        weights: of the part.
        positions: of the tokens.
        part: which part.
        scale: what the products of adapters are multiplied by.
    """

    model: Transformer
    rule: RoutingRule
    weights: Weights
    positions: Positions
    part: Part
    scale: float = 0.0

    def normed(self, x: torch.Tensor, prefix: str = "") -> torch.Tensor:
        """Return tokens behind a norm."""
        weight = self.weights[f"{prefix}norm.weight"]
        if self.model.norm == "layernorm":
            return functional.layer_norm(x, x.shape[-1:], weight, self.weights.get(f"{prefix}norm.bias"), EPSILON)
        return cast(torch.Tensor, RmsNorm.apply(x, weight, EPSILON))

    def biased(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return a sum with a bias, if the model has it."""
        bias = self.weights.get(name)
        return x if bias is None else x + bias

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return what a matrix makes of tokens, with its bias."""
        return self.biased(f"{name}.bias", self.times(name, x))

    def times(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return what a matrix makes of tokens, and its adapters if it has some."""
        made, a = x @ self.weights[name], self.weights.get(f"{name}.lora_a")
        return made if a is None else made + self.scale * (x @ a @ self.weights[f"{name}.lora_b"])

    def under(self, prefix: str) -> Piece:
        """Return the weights whose names begin so, by the rest of their names."""
        own = {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}
        return self._replace(weights=own)


def _rotated(positions: Positions, *heads: torch.Tensor) -> list[torch.Tensor]:
    """Return queries and keys of one size with rotary positions: halves, as in GPT-NeoX and Llama."""
    half, device, dtype = heads[0].shape[-1] // 2, heads[0].device, heads[0].dtype
    rates = ROTARY_BASE ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    if isinstance(positions, Packed):
        angles = positions.positions.to(device)[:, None, :, None] * rates
    else:
        angles = positions.to(device)[:, None] * rates
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    halves = ((each[..., :half], each[..., half:]) for each in heads)
    return [_beside(first * cosine - second * sine, second * cosine + first * sine) for first, second in halves]


def _beside(*heads: torch.Tensor) -> torch.Tensor:
    """Return pieces of heads as one; each token's heads lie side by side, as what attention makes of them does then."""
    return torch.cat([each.transpose(1, 2) for each in heads], -1).transpose(1, 2)


def _heads(tokens: torch.Tensor, size: int) -> torch.Tensor:
    """Return samples x tokens x (heads x size) as samples x heads x tokens x size."""
    heads: torch.Tensor = tokens.unflatten(-1, (-1, size))
    return heads.transpose(1, 2)


def _embedding_border(own: Piece, tokens: torch.Tensor) -> Border:
    if "positions" not in own.weights:
        return tokens, None
    where = own.positions.positions if isinstance(own.positions, Packed) else own.positions
    rows = functional.embedding(where.to(tokens.device), own.weights["positions"])
    return tokens, rows.expand(len(tokens), -1, -1)


def _embedding(own: Piece, tokens: torch.Tensor) -> torch.Tensor:
    table = own.weights["tokens"]
    if own.part.count == 1:
        return functional.embedding(tokens, table)
    row, is_here = rows_here(tokens, own.part.index, len(table))
    return torch.where(is_here[..., None], functional.embedding(row, table), 0)


def rows_here(tokens: torch.Tensor, part: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row of each token within a part of the vocabulary, and whether it is there; row 0 where it is not."""
    row = tokens - part * num_rows
    is_here = (row >= 0) & (row < num_rows)
    return torch.where(is_here, row, 0), is_here


def _attention_border(own: Piece, x: torch.Tensor) -> Border:
    inner, sizes = own.normed(x), own.model.latent
    if sizes is not None:  # what queries are made of, the latent for keys and values, and the rotary key
        for_queries = inner
        if sizes.query_rank is not None:
            for_queries = own.normed(inner @ own.weights["query_down"], "query_")
        latent, key = (inner @ own.weights["kv_down"]).split([sizes.kv_rank, sizes.rope_head_dim], -1)
        inner = torch.cat([for_queries, own.normed(latent, "kv_"), key], -1)
    return inner, own.biased("output.bias", x)


def projected(own: Piece, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values of some tokens and heads."""
    if own.model.latent is not None:
        return _projected_up(own, inner)
    queries, keys, values = (_heads(own.linear(name, inner), own.model.head_dim) for name in ("query", "key", "value"))
    if own.model.positions == "rotary":
        queries, keys = _rotated(own.positions, queries, keys)
    return queries, keys, values


def _projected_up(own: Piece, inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values made of latents (DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.1)."""
    sizes: Any = own.model.latent
    rank, up = (own.model.hidden_size, "query") if sizes.query_rank is None else (sizes.query_rank, "query_up")
    for_queries, latent, key = inner.split([rank, sizes.kv_rank, sizes.rope_head_dim], -1)
    queries = _heads(own.times(up, for_queries), sizes.key_head_dim)
    plain, turned = queries.split([sizes.nope_head_dim, sizes.rope_head_dim], -1)
    made = _heads(own.times("kv_up", latent), sizes.nope_head_dim + sizes.value_head_dim)
    of_keys, values = made.split([sizes.nope_head_dim, sizes.value_head_dim], -1)
    turned, rotary = _rotated(own.positions, turned, key[:, None])
    return _beside(plain, turned), _beside(of_keys, rotary.expand(-1, of_keys.shape[1], -1, -1)), values


def _attention(own: Piece, inner: torch.Tensor) -> torch.Tensor:
    queries, keys, values = projected(own, inner)
    mask, window = None, own.model.window
    if isinstance(own.positions, Packed):
        mask = _visible(own.positions, own.positions.here, window).to(queries.device)
    elif window is not None and window < queries.shape[2]:
        mask = _visible(own.positions, own.positions, window).to(queries.device)
    num_alike = queries.shape[1] // keys.shape[1]
    if num_alike > 1 and queries.is_cuda and queries.dtype == torch.float32:
        # torch's kernel for single precision knows no groups of heads: it would keep all scores
        keys, values = (each.repeat_interleave(num_alike, 1) for each in (keys, values))
    got = functional.scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=mask is None, enable_gqa=keys.shape[1] != queries.shape[1]
    )
    return joined(own, got)


def joined(own: Piece, heads: torch.Tensor) -> torch.Tensor:
    """Return the output projection of what some heads have got."""
    return own.times("output", heads.transpose(1, 2).flatten(2))


def _mlp_border(own: Piece, x: torch.Tensor) -> Border:
    return own.normed(x), own.biased("down.bias", x)


def _fed_forward(own: Piece, x: torch.Tensor) -> torch.Tensor:
    """Return what the matrices of an MLP make, without the last one's bias."""
    up, kind = own.linear("up", x), own.model.mlp
    if kind == "swiglu":
        inner: torch.Tensor = SwiGlu.apply(own.linear("gate", x), up)
    else:
        inner = functional.relu(up) if kind == "relu" else functional.gelu(up, approximate="tanh")
    return own.times("down", inner)


def _of_experts(own: Piece) -> list[Piece]:
    """Return each expert that is here."""
    stacked = own.under("experts.").weights
    each = zip(*(values.unbind() for values in stacked.values()), strict=True)
    return [own._replace(weights=dict(zip(stacked, values, strict=True))) for values in each]


def _routing(own: Piece, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what each expert's output is multiplied by, samples x tokens x experts, and which experts take a token.

    It is the softmax over all experts, divided by its sum over the chosen if these are several.
    """
    preferred = own.biased("router.bias", logits.detach())
    best = preferred.topk(own.rule.per_token, -1).indices
    taken = chosen = torch.zeros_like(preferred, dtype=torch.bool).scatter(-1, best, 1)
    if own.rule.capacity_factor is not None:
        taken = chosen & (chosen.cumsum(1) <= own.rule.capacity(logits.shape[1]))
    shares = wide(logits).softmax(-1)
    if own.rule.per_token > 1:
        shares = shares / torch.where(chosen, shares, 0).sum(-1, keepdim=True)
    return torch.where(taken, shares, 0).to(logits.dtype), taken


def _shared(own: Piece, tokens: torch.Tensor) -> torch.Tensor | int:
    """Return what the experts make that all tokens go to, without the last bias."""
    return _fed_forward(own.under("shared."), tokens) if own.model.num_shared_experts else 0


def _moe_border(own: Piece, x: torch.Tensor) -> Border:
    tokens = own.normed(x)
    logits, rest = tokens @ own.weights["router"], own.biased("shared.down.bias", x)
    if "experts.down.bias" in own.weights:
        rest = rest + _routing(own, logits)[0] @ own.weights["experts.down.bias"]
    return torch.cat([tokens, logits], -1), rest


def _moe(own: Piece, inner: torch.Tensor) -> torch.Tensor:
    tokens, logits = inner.split([own.model.hidden_size, own.model.num_experts], -1)
    shares, taken = _routing(own, logits)
    total = torch.zeros_like(tokens) + _shared(own, tokens)
    for number, expert in enumerate(_of_experts(own)):
        where = taken[..., number].nonzero(as_tuple=True)
        made = _fed_forward(expert, tokens[where]) * shares[..., number][where][:, None]
        total = total.index_put(where, made, accumulate=True)
    return total


def routed(own: Piece, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tokens for experts, the experts' shares, what is added to their sum, and which tokens each takes."""
    tokens = own.normed(x)
    shares, taken = _routing(own, tokens @ own.weights["router"])
    return tokens, shares, own.biased("shared.down.bias", x + _shared(own, tokens)), taken


def fed_to_experts(own: Piece, rows: torch.Tensor, *, counts: Sequence[int]) -> torch.Tensor:
    """Return what the experts here make of rows, of which each gets so many, one after the other."""
    each = zip(_of_experts(own), rows.split(list(counts)), strict=True)
    return torch.cat([expert.biased("down.bias", _fed_forward(expert, piece)) for expert, piece in each])


def _head_border(own: Piece, x: torch.Tensor) -> Border:
    return own.normed(x), None


def _head(own: Piece, inner: torch.Tensor) -> torch.Tensor:
    return inner @ own.weights["tokens"]


def _visible(queries: Positions, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return which keys each query sees: queries x keys; of documents, samples x 1 x queries x keys."""
    if isinstance(queries, Packed):
        key = queries.where[:, None, None, keys]
        distance, seen = queries.positions[:, None, :, None] - key, key >= queries.starts[:, None, queries.here, None]
        return seen & (distance >= 0) & (distance < (window or torch.inf))
    gap: torch.Tensor = queries[:, None] - keys[None, :]
    return (gap >= 0) if window is None else (gap >= 0) & (gap < window)


def _scores(queries: torch.Tensor, positions: Positions, memory: KeysValues, window: int | None) -> torch.Tensor:
    """Return samples x kv_heads x group x queries x keys; minus infinity where a query does not see a key."""
    scores = wide(_grouped(queries, memory) @ memory.keys[:, :, None].mT) * queries.shape[-1] ** -0.5
    hidden = on_device(~_visible(positions, memory.positions, window), queries.device)
    hidden = hidden[:, None] if hidden.dim() == 4 else hidden
    found: torch.Tensor = scores.masked_fill_(hidden, -torch.inf)
    return found


def _grouped(heads: torch.Tensor, memory: KeysValues) -> torch.Tensor:
    """Return heads of queries, those that share keys and values in a dimension of their own."""
    found: torch.Tensor = heads.unflatten(1, (memory.keys.shape[1], -1))
    return found


def attend(queries: torch.Tensor, positions: Positions, memory: KeysValues, window: int | None) -> Attended:
    """Return what queries get from some keys and values.

    Args:
        queries: samples x heads x queries x key_dim; scores are divided by the root of key_dim.
        positions: those of the queries.
        memory: keys and values, of the same or of other positions.
        window: keys that a query sees at most; None for all.
    """
    scores = _scores(queries, positions, memory, window)
    log_sum_exp = scores.logsumexp(-1)
    output = scores.softmax(-1).nan_to_num_(0.0).to(queries.dtype) @ memory.values[:, :, None]
    return Attended(output.flatten(1, 2), log_sum_exp.flatten(1, 2))


def attend_backward(
    queries: torch.Tensor,
    positions: Positions,
    memory: KeysValues,
    attended: Attended,
    grad: torch.Tensor,
    window: int | None,
) -> tuple[torch.Tensor, KeysValues]:
    """Take the gradient of what queries got back to them, and to some of the keys and values that they met.

    Args:
        queries: as `attend` was given them.
        positions: as `attend` was given them.
        memory: some of the keys and values that the queries met.
        attended: what the queries got from all keys together, these and others.
        grad: the gradient of its output.
        window: as `attend` was given it.
    """
    log_sum_exp, of_output = _grouped(attended.log_sum_exp, memory)[..., None], _grouped(grad, memory)
    shares = (_scores(queries, positions, memory, window) - log_sum_exp).exp().to(queries.dtype)
    of_values = (shares.mT @ of_output).sum(2)
    mean = _grouped((grad * attended.output).sum(-1, keepdim=True), memory)
    of_scores = shares * (of_output @ memory.values[:, :, None].mT - mean) * queries.shape[-1] ** -0.5
    of_queries = (of_scores @ memory.keys[:, :, None]).flatten(1, 2)
    of_keys = (of_scores.mT @ _grouped(queries, memory)).sum(2)
    return of_queries, KeysValues(of_keys, of_values, memory.positions)


_UNITS: Mapping[str, tuple[Callable[..., Border], Callable[..., torch.Tensor]]] = {
    "embedding": (_embedding_border, _embedding),
    "attention": (_attention_border, _attention),
    "mlp": (_mlp_border, _fed_forward),
    "moe": (_moe_border, _moe),
    "head": (_head_border, _head),
}


def _both(border: Callable[..., Border], inside: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return what a whole unit makes of its input."""

    def whole(own: Piece, x: torch.Tensor) -> torch.Tensor:
        inner, rest = border(own, x)
        made = inside(own, inner)
        return made if rest is None else made + rest

    return whole


_WHOLE = {kind: _both(*steps) for kind, steps in _UNITS.items()}


def _at(tokens: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Return the tokens at some positions, samples x positions."""
    return tokens.gather(1, positions.positions) if isinstance(positions, Packed) else tokens[:, positions]


class TransformerNet:
    """A transformer on the tokens of a proof, or on the bytes of a text.

    Args:
        problem: model, initial weights and optimizer; also the tokens, if there is no text.
        text: bytes to learn, each a token.
        dtypes: of its numbers.
        device: where they are.
        compiles: whether torch compiles what is computed, but for experts, whose sizes depend on the router.

    Raises:
        UsageError: the model's vocabulary has not all bytes.
    """

    def __init__(
        self,
        problem: TransformerProblem,
        text: bytes | None = None,
        dtypes: Datatypes = SINGLE,
        device: torch.device = CPU,
        *,
        compiles: bool = False,
    ) -> None:
        model = problem.model
        if text is not None and model.vocab_size < 256:
            raise UsageError(f"{model.name} must have a vocabulary of 256 to learn bytes, got {model.vocab_size}")
        self.problem = problem
        self._text = None if text is None else torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.optimizer: Optimizer | Averaged = problem.optimizer
        self.optimizer_of = problem.optimizer_of
        self.dtypes, self.device = dtypes, device
        self.units = problem.units
        self.rule = RoutingRule(model.num_experts, model.experts_per_token, problem.capacity_factor)
        self.layers: Sequence[Layer] = [partial(self._whole, layer) for layer in range(len(self.units))]
        self.positions = cache(self._positions)
        self._packed = cache(self._find_packed)
        self._here = lru_cache(maxsize=64)(self._on_device)  # of the same positions, one copy for all layers
        self._compiled = Compiled() if compiles else None

    def taking(self, function: Callable[..., Any], layer: int, part: Part, positions: Positions = None) -> Any:
        """Return a function of a piece as one of the flat weight of a part of a layer, and of tensors."""
        shapes, model, rule = shapes_of(self.units[layer], part), self.problem.model, self.rule
        scale = self.units[layer].adapter_scale

        def take(weight: FlatWeight, where: Positions, *given: torch.Tensor) -> Any:
            return function(Piece(model, rule, by_name(weight, shapes), where, part, scale), *given)

        if self._compiled is not None and not isinstance(function, partial) and self.units[layer].kind != "moe":
            take = self._compiled.get((function, part, tuple(shapes.items())), take)
        return lambda weight, *given: take(weight, self._here(positions), *given)

    def border(self, layer: int, part: Part, positions: Positions) -> Any:
        """Return the border of a part of a layer, as a function of its flat weight and its input."""
        return self.taking(_UNITS[self.units[layer].kind][0], layer, part, positions)

    def inside(self, layer: int, part: Part, positions: Positions) -> Any:
        """Return the inside of a part of a layer, as a function of its flat weight and what its border has made."""
        return self.taking(_UNITS[self.units[layer].kind][1], layer, part, positions)

    def _whole(self, layer: int, weight: FlatWeight, x: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Return what a whole layer makes of its input."""
        found: torch.Tensor = self.taking(_WHOLE[self.units[layer].kind], layer, WHOLE, positions)(weight, x)
        return found

    def size(self, layer: int, part: Part) -> int:
        """Return the number of elements of a part of a unit's weight."""
        return sum(map(prod, shapes_of(self.units[layer], part).values()))

    def num_frozen(self, layer: int, part: Part) -> int:
        """Return how many of these elements are not trained: all but adapters, which come last."""
        weights = [weight for weight in self.units[layer].weights if part.has(weight) and not weight.is_trained]
        return sum(prod(weight.part(part.degrees)) for weight in weights)

    def has_backward(self, layer: int) -> bool:
        """Return whether something is trained in a unit or before it."""
        return self.units[layer].has_backward

    def initial_weight(self, layer: int, part: Part) -> torch.Tensor:
        """Return the proof's initial weight, or a part of it."""
        return torch.tensor(taken(self.problem.initial_weight(layer), self.units[layer], part))

    def held_by_all(self, layer: int, part: Part) -> torch.Tensor:
        """Return which of the trained elements all parts hold: norms, router, biases after a sum, some adapters."""
        trained = held_by_all(self.units[layer], part)[self.num_frozen(layer, part) :]
        return torch.tensor(trained.nonzero()[0], device=self.device)

    def _on_device(self, positions: Positions) -> Positions:
        """Return positions where layers compute."""
        if isinstance(positions, Packed):
            return Packed(*(on_device(each, self.device) for each in positions))
        return None if positions is None else on_device(positions, self.device)

    def _positions(self, sequence: SequencePart) -> Positions:
        """Return the positions of a part of the sequence."""
        shards = [
            positions_of_shard(self.problem.seq_len, each, sequence.num_shards) for each in sorted(sequence.shards)
        ]
        pieces = np.split(np.concatenate(shards), sequence.num_pieces)
        return torch.from_numpy(np.concatenate([pieces[piece] for piece in sorted(sequence.pieces)]))

    def where(self, symbol: Any, positions: Positions) -> Positions:
        """Return the positions of a tensor's tokens, with its documents where its samples consist of them."""
        if self.problem.model.documents is None:
            return positions
        sequence = getattr(symbol, "sequence", WHOLE_SEQUENCE)
        return Packed(positions, *self._packed(symbol.samples, sequence.num_shards, sequence.cut_of))

    def _find_packed(self, samples: frozenset[int], num_shards: int, cut: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where tokens of some samples are, and where their documents begin, samples x seq_len."""
        documents, seq_len = self.problem.model.documents, self.problem.seq_len
        assert documents is not None  # the caller has looked
        found = Packing.of([documents.of_sample(sample, seq_len) for sample in sorted(samples)], num_shards, cut)
        return torch.from_numpy(found.positions), torch.from_numpy(found.starts)

    def shape(self, layer: int, num_samples: int, positions: Positions) -> tuple[int, ...]:
        """Return the shape of a unit's input: tokens of the embedding, vectors, or logits behind the head."""
        tokens = (num_samples, len(positions))
        if layer == 0:
            return tokens
        return *tokens, self.problem.model.vocab_size if layer == len(self.units) else self.problem.model.hidden_size

    def heads_of_memory(self, num_parts: int) -> tuple[int, int, int]:
        """Return how many heads of keys and values a part has, and the sizes of their keys and values."""
        model, sizes = self.problem.model, self.problem.model.latent
        if sizes is not None:
            return model.num_heads // num_parts, sizes.key_head_dim, sizes.value_head_dim
        return model.num_kv_heads // num_parts, model.head_dim, model.head_dim

    def experts_of(self, parts: Iterable[int], num_parts: int) -> set[int]:
        """Return the experts of neighbouring parts: of one, or of all."""
        size, found = self.problem.model.num_experts // num_parts, sorted(parts)
        return set(range(found[0] * size, (found[-1] + 1) * size))

    def tokens(self, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the tokens of some samples and the ones behind them, samples x (seq_len + 1)."""
        if self._text is None:
            both: Any = self.problem.inputs(global_batch_size), self.problem.targets(global_batch_size)[:, -1:]
            return torch.cat([torch.tensor(each[list(samples)]) for each in both], -1)
        length = self.problem.seq_len + 1
        generator = torch.Generator().manual_seed((self.problem.seed << 32) + step)
        places = torch.randint(0, len(self._text) - length + 1, (global_batch_size,), generator=generator)
        return self._text[places[list(samples)][:, None] + torch.arange(length)]

    def inputs(self, samples: Sequence[int], positions: Positions, global_batch_size: int, step: int) -> torch.Tensor:
        """Return the tokens of some samples, at some positions."""
        return on_device(_at(self.tokens(samples, global_batch_size, step), positions), self.device)

    def targets(self, samples: Sequence[int], positions: Positions, global_batch_size: int, step: int) -> torch.Tensor:
        """Return the tokens behind those."""
        return on_device(_at(self.tokens(samples, global_batch_size, step)[:, 1:], positions), self.device)

    def loss(self, output: Rows, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the cross-entropy with the next tokens, nats, divided by the tokens of the batch."""
        wanted = self.targets(samples, output.positions, global_batch_size, step)
        total: torch.Tensor = CrossEntropy.apply(output.values, wanted)
        return total / (global_batch_size * self.problem.seq_len)
