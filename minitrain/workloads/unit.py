"""A unit of a transformer: what the engine treats as one layer, between which activations pass.

Counted in FLOPs: matrix multiplications, two a multiplication and addition, as Narayanan et al. (2021) do; not norms,
activation functions, softmax, dropout, residual connections, lookups in tables and the optimizer.

The norms of attention, MLP and experts, which all place them alike.

The attention unit: norm, queries, keys and values, the core between them, and the output projection.

Tensor parallelism gives each rank some heads. What is saved follows Korthikanti et al. (2022, section 4.1): the norm's
input and output, queries, keys and values, unfused attention's probabilities before and after dropout and the mask, the
output projection's input and the mask of the dropout after it. Flash attention saves the log-sum-exp of each query
instead of probabilities. Left out, as there: the norm's mean and variance. Rotary embeddings and ALiBi save nothing.
Keys and values of grouped queries are saved once, not for every query head. A norm behind the unit takes the place of
that before it ("post"), or saves its input beside it ("both"). A soft cap of the scores is part of flash attention's
kernel, and a pass of its own over those of unfused attention; a sink is one more term of a softmax's sum.

The MLP unit, dense or of experts: norm, matrices with an activation function between them, dropout.

Tensor parallelism gives each rank some columns of the first matrices and the same rows of the last one; expert
parallelism gives it some experts. What is saved follows Korthikanti et al. (2022, section 4.1): the norm's input and
output, the activation function's input, the last matrix's input, and the mask of the dropout. ReLU's input is not
saved, since its output suffices; SwiGLU and GEGLU are one kernel that saves both its inputs.

Experts save, beside that, the copy of a token that each expert was sent. The router saves its probabilities. They are
multiplied in before the last matrix, so that what comes back need not be kept (the `probs` of `TEGroupedMLP` in
Megatron-Core, `score_before_experts` in torchtitan). Routed copies lie between tensor-parallel operations, as the
hidden state does.

In eight bits, inputs of matrices are kept in eight, inputs of norms and activation functions in 16 (Transformer
Engine); the router's input too, beside the copy that shared experts have.

The first and the last unit of a transformer: embedding, and head.

Tensor parallelism gives each rank some rows of the vocabulary, which is padded until it divides. The embedding saves
the mask of its dropout; the head saves its norm's input and output and the logits in single precision, which the loss
needs (Korthikanti et al. 2022, section 4.3). No way to recompute changes that. Where embeddings are tied, the head's
table is the embedding's; on a rank without that, a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Literal

from minitrain.workloads.architecture import MASK_BYTES, STATISTIC_BYTES, Architecture
from minitrain.workloads.mixers import LatentAttention
from minitrain.workloads.shapes import (
    WHOLE,
    AttentionCore,
    Cut,
    Degrees,
    Gemm,
    LinearCore,
    Projection,
    SavedTensor,
    WeightShape,
    Work,
    norm_weights,
)
from minitrain.workloads.workload import Recompute, as_recompute, modules_of

Kind = Literal["embedding", "attention", "linear_attention", "mlp", "moe", "head"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit: the tables of what it holds, multiplies and saves.

    Args:
        kind: "embedding", "attention", "linear_attention", "mlp", "moe" or "head".
        layer: the transformer layer that it belongs to; None for embedding and head.
        output_size: elements that it passes on for a token; 0 for the head, which ends in a loss.
        weights: its weights, the norm's included.
        projections: the multiplications of every token with a weight, in the order of forward.
        core: what happens between queries and keys, None but for attention.
        saved: what forward keeps for backward.
        adapter_scale: what the product of adapters is multiplied by.
        has_backward: whether something is trained in it or in a unit before it.
        every_other: the multiplications whose results torchtitan's checkpoints of single operations do not keep: every
            second one of a layer, where each matrix is a multiplication of its own.
        scan: the recurrence of a linear attention, None but for that.
    """

    kind: Kind
    layer: int | None
    output_size: int
    weights: tuple[WeightShape, ...]
    projections: tuple[Projection, ...]
    core: AttentionCore | None
    saved: tuple[SavedTensor, ...]
    adapter_scale: float = 0.0
    has_backward: bool = True
    every_other: tuple[Projection, ...] = ()
    scan: LinearCore | None = None

    @property
    def mixes_tokens(self) -> bool:
        """Return whether its tokens need one another."""
        return self.core is not None or self.scan is not None

    @property
    def name(self) -> str:
        """Return what figures call it: "embedding", "attention 17", "mlp 17"."""
        return self.kind if self.layer is None else f"{self.kind} {self.layer}"

    @property
    def num_parameters(self) -> int:
        """Return its parameters; a table that two units share counts in the embedding alone."""
        return sum(weight.num_parameters for weight in self.weights if not weight.is_shared)

    @property
    def num_active_parameters(self) -> int:
        """Return the parameters that one token uses: of routed experts, those that it is sent to."""
        return sum(weight.num_active_parameters for weight in self.weights if not weight.is_shared)

    @property
    def num_norm_parameters(self) -> int:
        """Return the parameters of its norms."""
        return sum(weight.num_parameters for weight in self.weights if weight.is_norm)

    def num_held_parameters(self, degrees: Degrees = WHOLE) -> int:
        """Return the parameters that one rank holds, a copy of a shared table included.

        Raises:
            UsageError: heads, columns or experts do not divide by their degree.
        """
        return sum(prod(weight.part(degrees)) for weight in self.weights)

    @property
    def weights_in_place(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The first element of each weight, among all, and its shape."""
        sizes = [weight.num_parameters for weight in self.weights]
        places = accumulate(sizes[:-1], initial=0)
        return tuple(zip(places, (weight.shape for weight in self.weights), strict=True))

    def table(self, degrees: Degrees = WHOLE) -> tuple[int, tuple[int, ...]]:
        """Return the first element of the table of tokens, among all of a part, and its shape: of embedding or head."""
        names, shapes = [weight.name for weight in self.weights], [weight.part(degrees) for weight in self.weights]
        place = names.index("tokens")
        return sum(map(prod, shapes[:place])), shapes[place]

    @property
    def orthogonalised(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The matrices that Muon trains where a model has that: the first element of each, among all, and its shape."""
        return tuple(each for each in self.weights_in_place if self.layer is not None and len(each[1]) > 1)

    def num_trained_parameters(self, degrees: Degrees = WHOLE) -> int:
        """Return those of `num_held_parameters` that have a gradient and an optimizer state."""
        return sum(prod(weight.part(degrees)) for weight in self.weights if weight.is_trained)

    def gemms(self, work: Work) -> tuple[Gemm, ...]:
        """Return one rank's matrix multiplications, forward: projections, and then the attention core's.

        The core's are full rectangles of queries and keys, as unfused attention computes them; `core.num_pairs` says
        how much of that a kernel needs which leaves out what the mask hides.

        Args:
            work: the rank's samples, their length, and how ranks divide the unit.

        Raises:
            UsageError: heads, columns, experts or the sequence do not divide by their degree.
        """
        projected = tuple(projection.gemm(work) for projection in self.projections)
        between = self.core or self.scan
        return projected if between is None else projected + between.gemms(work)

    def forward_flop(self, seq_len: int, *, causal: bool = False) -> int:
        """Return the floating-point operations of one sample's forward pass.

        Args:
            seq_len: tokens of the sample.
            causal: whether attention counts only pairs that the causal mask leaves.
        """
        tokens = seq_len * sum(projection.flop_per_token for projection in self.projections)
        between = self.core or self.scan
        return tokens if between is None else tokens + between.flop(seq_len, causal=causal)

    def training_flop(self, seq_len: int, *, causal: bool = False) -> int:
        """Return those of forward and backward: the gradients of inputs, and of the weights that are trained."""
        forward = self.forward_flop(seq_len, causal=causal)
        if not self.has_backward:
            return forward
        if self.core is not None and self.core.index_heads:  # keys that are not chosen have no gradient
            every, chosen = (self.core.index_flop(seq_len, causal=causal, chosen=one) for one in (False, True))
            return 3 * forward - 2 * (every - chosen)
        frozen = sum(projection.flop_per_token for projection in self.projections if not projection.is_trained)
        return 3 * forward - seq_len * frozen

    def is_repeated(self, recompute: Recompute) -> bool:
        """Return whether backward computes all of it again, but for norms and residual connection where they are kept.

        Embedding and head never are.
        """
        if self.layer is None or not self.has_backward:
            return False
        return recompute == "full" or _WHOLE[self.kind] in modules_of(recompute)

    def repeated_projections(self, recompute: Recompute) -> tuple[Projection, ...]:
        """Return the multiplications with weights that backward computes again."""
        if self.is_repeated(recompute):
            return self.projections
        modules = modules_of(recompute)
        if "op" in modules or (self.kind == "mlp" and "mlp_up" in modules):
            return self.every_other if self.has_backward else ()
        return tuple(
            projection
            for projection in self.projections
            if self.has_backward and not modules.isdisjoint(_modules_of_projection(self.kind, projection.of))
        )

    def repeats_core(self, recompute: Recompute) -> bool:
        """Return whether backward computes the attention core again: by itself, only where that frees memory.

        Flash attention has nothing stored that could be saved: it is computed again with "flash_attn" alone, or with
        its output ("context").
        """
        if self.core is None or self.is_repeated(recompute):
            return self.core is not None
        names = {"context", "flash_attn" if self.core.is_flash else "core_attn"}
        return self.has_backward and not names.isdisjoint(modules_of(recompute))

    def repeats_norm(self, recompute: Recompute) -> bool:
        """Return whether backward computes the norm before it again."""
        modules = modules_of(recompute)
        own = recompute == "full" or (self.mixes_tokens and "self_attn" in modules)
        return self.layer is not None and self.has_backward and (own or not modules.isdisjoint(("layernorm", "op")))

    def recomputed_flop(self, seq_len: int, recompute: Recompute, *, causal: bool = False) -> int:
        """Return the floating-point operations that backward repeats for one sample, beside its own.

        Full recomputation repeats forward, of all units but embedding and head. Selective recomputation repeats the
        attention core, unless that is flash attention. Norms and activation functions count for none.
        """
        recompute = as_recompute(recompute)
        flop = seq_len * sum(projection.flop_per_token for projection in self.repeated_projections(recompute))
        if self.scan is not None and self.is_repeated(recompute):
            return flop + self.scan.flop(seq_len, causal=causal)
        if self.core is None or not self.repeats_core(recompute):
            return flop
        return flop + self.core.flop(seq_len, causal=causal)

    def saved_bytes(self, work: Work, recompute: Recompute = "none") -> int:
        """Return the bytes that one rank keeps between forward and backward.

        With "full" the attention keeps the input of the whole transformer layer, from which the MLP's is computed
        again. Where modules are computed again by themselves, each unit keeps its own input.

        Args:
            work: the rank's samples, their length, and how ranks divide the unit.
            recompute: what backward computes again.

        Raises:
            UsageError: heads, columns or the sequence do not divide by their degree, or there is no such `recompute`.

        Source:
            Korthikanti et al. (2022), equations 1 to 6, for 16 bits, unfused attention and dropout.
        """
        recompute = as_recompute(recompute)
        return sum(tensor.num_bytes(work) for tensor in self.saved if tensor.is_kept(recompute))


_WHOLE = {"attention": "self_attn", "linear_attention": "self_attn", "mlp": "mlp", "moe": "moe"}
"""The module that is all of a unit, its norm and the residual connection left out."""

_UP = frozenset({"query", "query_up", "kv_up"})


def _modules_of_projection(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the modules, less than a unit, whose recomputation repeats a multiplication."""
    if kind == "attention" and name == "output":
        return ("out_proj",)
    if kind == "attention":
        return ("qkv_proj", "mla_up_proj") if name in _UP else ("qkv_proj",)
    return ("shared_experts",) if name.startswith("shared.") else ()


def unit_norms(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of a unit's norms: one, before it or behind it, or both."""
    weights = norm_weights(model.hidden_size, has_bias=model.norm_bias)
    yield from weights
    for weight in weights if has_second_norm(model) else ():
        yield WeightShape(f"second_{weight.name}", weight.shape, is_norm=True)


def has_second_norm(model: Architecture) -> bool:
    """Return whether units have a norm behind them beside that before them."""
    return model.norm_placement == "both"


def saved_by_second_norm(model: Architecture, module: str) -> Iterator[SavedTensor]:
    """Yield what the norm behind a unit saves, where there is one before it too: its input, made by a module."""
    if has_second_norm(model):
        yield SavedTensor("second norm input", model.hidden_size, model.precision.activation_bytes, None, (module,))


def attention_unit(model: Architecture, layer: int) -> Unit:
    """Return the attention of a transformer layer."""
    latent = model.latent
    window = model.window if layer in model.window_layers else None
    is_flash = model.attention == "flash"
    core = AttentionCore(model.num_heads, model.head_dim, _value_dim(model), is_flash, window, model.chunked_windows)
    if (sparse := model.sparse) is not None and latent is not None:
        sizes = latent.kv_rank + latent.rope_head_dim, latent.kv_rank
        core = AttentionCore(
            model.num_heads, *sizes, is_flash, sparse.top_k, index_heads=sparse.num_heads, index_dim=sparse.head_dim
        )
    return Unit(
        kind="attention",
        layer=layer,
        output_size=model.hidden_size,
        weights=(
            *unit_norms(model),
            *(_usual_weights(model) if latent is None else _latent_weights(model, latent)),
            *_index_weights(model),
            *_qk_norm_weights(model),
            *([WeightShape("sinks", (model.num_heads,), _heads(model))] if model.sinks else []),
            *_output_weights(model),
        ),
        projections=(
            *(_usual_projections(model) if latent is None else _latent_projections(model, latent)),
            *(replace(each, cut=Cut("index heads", 1, is_copied=True)) for each in _index_projections(model)),
            _output(model),
        ),
        every_other=tuple(_every_other(model)),
        core=core,
        saved=(*_saved_before_core(model), *_saved_by_core(model), *_saved_after_core(model)),
    )


def _value_dim(model: Architecture) -> int:
    """Return the size of a head's value."""
    return model.head_dim if model.latent is None else model.latent.value_head_dim


def _heads(model: Architecture) -> Cut:
    return Cut("num_heads", model.num_heads)


def _kv_heads(model: Architecture) -> Cut:
    return Cut("num_kv_heads", model.num_kv_heads)


def _usual_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of queries, keys and values, each from the hidden state."""
    for name, cut in (("query", _heads(model)), ("key", _kv_heads(model)), ("value", _kv_heads(model))):
        size = cut.count * model.head_dim
        yield WeightShape(name, (model.hidden_size, size), cut, 1)
        if model.qkv_bias:
            yield WeightShape(f"{name}.bias", (size,), cut)
    if model.output_gate:
        size = model.num_heads * model.head_dim
        yield WeightShape("output_gate", (model.hidden_size, size), _heads(model), 1)


def _qk_norm_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of the norms of queries and keys: of a head's size, or of all heads' together."""
    cuts = {"query": _heads(model), "key": _kv_heads(model)}
    for name, cut in cuts.items() if model.qk_norm != "none" else ():
        if model.qk_norm == "head":
            yield WeightShape(f"{name}_norm.weight", (model.head_dim,), is_norm=True)
        else:
            yield WeightShape(f"{name}_norm.weight", (cut.count * model.head_dim,), cut, is_norm=True)


def _usual_projections(model: Architecture) -> Iterator[Projection]:
    """Yield the one multiplication that makes queries, keys and values (and a gate), cut by heads of keys."""
    size = ((1 + model.output_gate) * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    yield Projection("qkv", model.hidden_size, size, _kv_heads(model))


def _latent_weights(model: Architecture, latent: LatentAttention) -> Iterator[WeightShape]:
    """Yield the weights of multi-head latent attention: down to the latents on every rank, up by heads."""
    heads, query_size = _heads(model), model.num_heads * latent.key_head_dim
    if latent.query_rank is None:
        yield WeightShape("query", (model.hidden_size, query_size), heads, 1)
    else:
        yield WeightShape("query_down", (model.hidden_size, latent.query_rank))
        yield WeightShape("query_norm.weight", (latent.query_rank,), is_norm=True)
        yield WeightShape("query_up", (latent.query_rank, query_size), heads, 1)
    yield WeightShape("kv_down", (model.hidden_size, latent.kv_rank + latent.rope_head_dim))
    yield WeightShape("kv_norm.weight", (latent.kv_rank,), is_norm=True)
    yield WeightShape("kv_up", (latent.kv_rank, _kv_up_size(model, latent)), heads, 1)


def _index_projections(model: Architecture) -> Iterator[Projection]:
    """Yield the multiplications of an indexer, which every rank does for all of its heads."""
    if (sparse := model.sparse) is not None and model.latent is not None and model.latent.query_rank is not None:
        yield Projection("index_query", model.latent.query_rank, sparse.num_heads * sparse.head_dim)
        yield Projection("index_key", model.hidden_size, sparse.head_dim)
        yield Projection("index_weights", model.hidden_size, sparse.num_heads)


def _index_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of an indexer, whose keys have a layernorm."""
    yield from (WeightShape(each.name, (each.k, each.n)) for each in _index_projections(model))
    if model.sparse is not None:
        yield WeightShape("index_norm.weight", (model.sparse.head_dim,), is_norm=True)
        yield WeightShape("index_norm.bias", (model.sparse.head_dim,), is_norm=True)


def _kv_up_size(model: Architecture, latent: LatentAttention) -> int:
    """Return the size of all heads' values and of their keys without the shared rotary part."""
    return model.num_heads * (latent.nope_head_dim + latent.value_head_dim)


def _output(model: Architecture) -> Projection:
    """Return the multiplication behind the attention core."""
    return Projection("output", model.num_heads * _value_dim(model), model.hidden_size, _heads(model), "k")


def _every_other(model: Architecture) -> Iterator[Projection]:
    """Yield every second multiplication of an attention, where each matrix is one of its own: keys, and the output."""
    if model.latent is None:
        yield Projection("key", model.hidden_size, model.num_kv_heads * model.head_dim, _kv_heads(model))
        yield _output(model)
    else:
        yield from (*_latent_projections(model, model.latent), _output(model))[1::2]


def _latent_projections(model: Architecture, latent: LatentAttention) -> Iterator[Projection]:
    """Yield the multiplications of multi-head latent attention before the core."""
    heads, query_size = _heads(model), model.num_heads * latent.key_head_dim
    if latent.query_rank is None:
        yield Projection("query", model.hidden_size, query_size, heads)
    else:
        yield Projection("query_down", model.hidden_size, latent.query_rank)
        yield Projection("query_up", latent.query_rank, query_size, heads)
    yield Projection("kv_down", model.hidden_size, latent.kv_rank + latent.rope_head_dim)
    yield Projection("kv_up", latent.kv_rank, _kv_up_size(model, latent), heads)


def _output_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the output projection; its bias is added once, after the sum over ranks."""
    yield WeightShape("output", (model.num_heads * _value_dim(model), model.hidden_size), _heads(model), 0)
    if model.output_bias:
        yield WeightShape("output.bias", (model.hidden_size,))


_INNER = ("query", "key", "value", "output_gate", "query_down", "kv_down")
"""The matrices that an attention's norm is an input of."""

_ALL = "self_attn"
"""The module whose recomputation makes everything again but the unit's input."""


def _saved_before_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what is saved up to queries, keys and values; the norm's input is all that full recomputation keeps."""
    element, latent = model.precision.activation_bytes, model.latent
    up = (_ALL, "qkv_proj") if latent is None else (_ALL, "qkv_proj", "mla_up_proj")
    every_other, normed = (*up, "op"), (_ALL, "layernorm", "op")
    yield SavedTensor("norm input", model.hidden_size, element, is_always_kept=True)
    yield SavedTensor(
        "projection input", model.hidden_size, model.precision.saved_bytes, None, normed, needed_for=_INNER
    )
    if latent is not None:
        yield from _saved_latents(model, latent)
    if model.output_gate:
        yield SavedTensor("output gate", model.num_heads * model.head_dim, element, _heads(model), up)
    if model.qk_norm != "none":
        yield SavedTensor("queries' norm input", model.num_heads * model.head_dim, element, _heads(model), up)
        yield SavedTensor("keys' norm input", model.num_kv_heads * model.head_dim, element, _kv_heads(model), up)
    if (sparse := model.sparse) is not None and latent is not None:
        size = latent.kv_rank + latent.rope_head_dim
        yield SavedTensor("queries of latents", model.num_heads * size, element, _heads(model), up)
        yield SavedTensor("queries", model.num_heads * model.head_dim, element, _heads(model), up)
        yield SavedTensor("keys", size, element, Cut("index heads", 1, is_copied=True), up)
        index = (sparse.num_heads + 1) * sparse.head_dim + sparse.num_heads
        yield SavedTensor("indexer", index, element, Cut("index heads", 1, is_copied=True), up)
        chosen = Cut("index heads", 1, is_copied=True)  # their places, and their scores for the indexer's loss
        yield SavedTensor("chosen keys", 2 * sparse.top_k, STATISTIC_BYTES, chosen, (_ALL, "flash_attn", "context"))
        return
    yield SavedTensor("queries", model.num_heads * model.head_dim, element, _heads(model), up)
    yield SavedTensor("keys", model.num_kv_heads * model.head_dim, element, _kv_heads(model), every_other)
    yield SavedTensor("values", model.num_kv_heads * _value_dim(model), element, _kv_heads(model), up)


def _saved_latents(model: Architecture, latent: LatentAttention) -> Iterator[SavedTensor]:
    """Yield the inputs and outputs of the latents' norms."""
    sizes = model.precision
    for name, rank in (("query latent", latent.query_rank), ("kv latent", latent.kv_rank)):
        if rank is not None:
            yield SavedTensor(f"{name} norm input", rank, sizes.activation_bytes, None, (_ALL, "qkv_proj"))
            again, matrix = (_ALL, "qkv_proj", "mla_up_proj"), name.replace(" latent", "_up")
            yield SavedTensor(f"{name} projection input", rank, sizes.saved_bytes, None, again, needed_for=(matrix,))


def _saved_by_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what the core saves, which selective recomputation does without where attention is unfused."""
    heads, element = _heads(model), model.precision.activation_bytes
    again = (_ALL, "core_attn", "context")
    if model.attention == "flash":
        yield SavedTensor("log-sum-exp", model.num_heads, STATISTIC_BYTES, heads, (_ALL, "flash_attn", "context"))
        return
    if model.score_cap:
        yield SavedTensor("capped scores", model.num_heads, element, heads, again, is_per_key=True)
    yield SavedTensor("probabilities", model.num_heads, element, heads, again, is_per_key=True)
    if model.attention_dropout:
        yield SavedTensor("probabilities' mask", model.num_heads, MASK_BYTES, heads, again, is_per_key=True)
        yield SavedTensor("dropped probabilities", model.num_heads, element, heads, again, is_per_key=True)


def _saved_after_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what the core's backward, the output projection and the dropout after it save.

    Flash attention needs its output in 16 bits. A projection in eight bits, or of gated outputs, keeps its own input.
    """
    size, sizes = model.num_heads * _value_dim(model), model.precision
    in_eight = sizes.saved_bytes != sizes.activation_bytes or model.output_gate or model.sparse is not None
    if in_eight and model.attention == "flash":
        in_core = (_ALL, "flash_attn", "context")
        of_latents = size if model.sparse is None or model.latent is None else model.num_heads * model.latent.kv_rank
        yield SavedTensor("attention output", of_latents, sizes.activation_bytes, _heads(model), in_core)
    own = () if model.attention == "flash" and not in_eight else ("output",)
    again = (_ALL, "context", "op") if in_eight else (_ALL, "context")
    yield SavedTensor("output projection input", size, sizes.saved_bytes, _heads(model), again, needed_for=own)
    yield from saved_by_second_norm(model, _ALL)
    if model.dropout:
        yield SavedTensor("dropout mask", model.hidden_size, MASK_BYTES, None, (_ALL,))


def _first(model: Architecture) -> tuple[str, ...]:
    """Return the matrices before the activation function."""
    return ("gate", "up") if model.is_gated else ("up",)


def mlp_unit(model: Architecture, layer: int) -> Unit:
    """Return the dense MLP of a transformer layer."""
    cut = Cut("ffn_hidden_size", model.ffn_hidden_size)
    return Unit(
        kind="mlp",
        layer=layer,
        output_size=model.hidden_size,
        weights=(*unit_norms(model), *_mlp_weights(model, "", cut.count, cut)),
        projections=tuple(_mlp_projections(model, "", cut.count, cut)),
        every_other=(Projection("up", model.hidden_size, cut.count, cut),) if model.is_gated else (),
        core=None,
        saved=(
            *_saved_by_norm(model, layer, model.precision.saved_bytes),
            *_saved_by_mlp(model, "", cut.count, cut, ("mlp",), ("mlp_act",)),
            *_saved_after(model, "mlp"),
        ),
    )


def moe_unit(model: Architecture, layer: int) -> Unit:
    """Return the mixture of experts of a transformer layer."""
    cut = Cut("moe_ffn_hidden_size", model.moe_ffn_hidden_size)
    shared = model.num_shared_experts * cut.count
    return Unit(
        kind="moe",
        layer=layer,
        output_size=model.hidden_size,
        weights=(
            *unit_norms(model),
            *_router_weights(model),
            *_expert_weights(model, cut),
            *([WeightShape("shared.weight", (model.hidden_size, 1))] if model.shared_gate else []),
            *(_mlp_weights(model, "shared.", shared, cut) if shared else ()),
        ),
        projections=(
            Projection("router", model.hidden_size, model.num_experts),
            *_expert_projections(model, cut),
            *([Projection("shared.weight", model.hidden_size, 1)] if model.shared_gate else []),
            *(_mlp_projections(model, "shared.", shared, cut) if shared else ()),
        ),
        core=None,
        saved=(
            *_saved_by_norm(model, layer, model.precision.activation_bytes),
            *_saved_by_experts(model, cut),
            *(_saved_by_shared_experts(model, shared, cut) if shared else ()),
            *_saved_after(model, "moe"),
        ),
    )


def _mlp_weights(model: Architecture, prefix: str, size: int, cut: Cut) -> Iterator[WeightShape]:
    """Yield the weights of an MLP; the last one's bias is added once, after the sum over ranks."""
    for name in _first(model):
        yield WeightShape(f"{prefix}{name}", (model.hidden_size, size), cut, 1)
        if model.mlp_bias:
            yield WeightShape(f"{prefix}{name}.bias", (size,), cut)
    yield WeightShape(f"{prefix}down", (size, model.hidden_size), cut, 0)
    if model.mlp_bias:
        yield WeightShape(f"{prefix}down.bias", (model.hidden_size,))


def _mlp_projections(model: Architecture, prefix: str, size: int, cut: Cut) -> Iterator[Projection]:
    """Yield the multiplications of an MLP; gate and up are one."""
    first = _first(model)
    yield Projection(prefix + "_".join(first), model.hidden_size, len(first) * size, cut)
    yield Projection(f"{prefix}down", size, model.hidden_size, cut, "k")


def _router_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the router's weights, which every rank holds."""
    yield WeightShape("router", (model.hidden_size, model.num_experts))
    if model.router_bias:
        yield WeightShape("router.bias", (model.num_experts,))


def _expert_weights(model: Architecture, cut: Cut) -> Iterator[WeightShape]:
    """Yield the weights of all routed experts, each kind of matrix as one with the experts in front."""
    experts, per_token = model.num_experts, model.experts_per_token
    for name in _first(model):
        yield WeightShape(f"experts.{name}", (experts, model.hidden_size, cut.count), cut, 2, per_token)
        if model.mlp_bias:
            yield WeightShape(f"experts.{name}.bias", (experts, cut.count), cut, 1, per_token)
    yield WeightShape("experts.down", (experts, cut.count, model.hidden_size), cut, 1, per_token)
    if model.mlp_bias:
        yield WeightShape("experts.down.bias", (experts, model.hidden_size), experts_per_token=per_token)


def _expert_projections(model: Architecture, cut: Cut) -> Iterator[Projection]:
    """Yield the batched multiplications of the routed experts."""
    first, counts = _first(model), (model.num_experts, model.experts_per_token)
    size = len(first) * cut.count
    yield Projection("experts." + "_".join(first), model.hidden_size, size, cut, "n", *counts)
    yield Projection("experts.down", cut.count, model.hidden_size, cut, "k", *counts)


def _saved_by_norm(model: Architecture, layer: int, output_bytes: int) -> Iterator[SavedTensor]:
    """Yield the norm's input, which is a layer's where that has no attention, and its output."""
    element, is_alone = model.precision.activation_bytes, layer in model.without_mixer
    yield SavedTensor("norm input", model.hidden_size, element, None, ("out_proj",), is_alone)
    first = ("gate", "up", "router", "shared.gate", "shared.up")
    yield SavedTensor("mlp input", model.hidden_size, output_bytes, None, ("layernorm", "op"), needed_for=first)


def _saved_by_mlp(
    model: Architecture, prefix: str, size: int, cut: Cut, again: tuple[str, ...], act: tuple[str, ...] = ()
) -> Iterator[SavedTensor]:
    """Yield the activation function's inputs and the last matrix's input.

    Args:
        model: the model.
        prefix: of the names.
        size: columns of all experts of a token.
        cut: what the columns consist of.
        again: the modules whose recomputation makes both again.
        act: those that make the activation function's output again, from its input.
    """
    sizes, own = model.precision, tuple[str, ...]()
    if model.mlp != "relu":
        one = ("mlp_up",) if act else ()
        own = (f"{prefix.replace('expert ', 'experts.').replace('shared ', 'shared.')}down",)
        yield SavedTensor(f"{prefix}activation input", size, sizes.activation_bytes, cut, again)
        if model.is_gated:
            yield SavedTensor(f"{prefix}activation factor", size, sizes.activation_bytes, cut, (*again, *one, "op"))
        again = (*again, *act, "op")
        if model.gate_clamp is not None:
            yield SavedTensor(f"{prefix}clamped inputs", 2 * size, sizes.activation_bytes, cut, again)
    yield SavedTensor(f"{prefix}down input", size, sizes.saved_bytes, cut, again, needed_for=own)


def _saved_by_experts(model: Architecture, cut: Cut) -> Iterator[SavedTensor]:
    """Yield what router and routed experts save, for all experts of a token together."""
    copies, again = model.experts_per_token, ("moe",)
    yield SavedTensor("router probabilities", model.num_experts, STATISTIC_BYTES, None, again)
    inputs, first = copies * model.hidden_size, tuple(f"experts.{name}" for name in _first(model))
    yield SavedTensor("expert inputs", inputs, model.precision.saved_bytes, None, again, needed_for=first)
    yield from _saved_by_mlp(model, "expert ", copies * cut.count, cut, again, ("moe_act",))


def _saved_by_shared_experts(model: Architecture, size: int, cut: Cut) -> Iterator[SavedTensor]:
    """Yield what shared experts save: in eight bits an input of their own, made of what the norm makes."""
    sizes = model.precision
    if sizes.saved_bytes != sizes.activation_bytes:
        again = ("moe", "shared_experts", "layernorm")
        first = tuple(f"shared.{name}" for name in _first(model))
        yield SavedTensor("shared input", model.hidden_size, sizes.saved_bytes, None, again, needed_for=first)
    yield from _saved_by_mlp(model, "shared ", size, cut, ("moe", "shared_experts"))
    if model.shared_gate:
        yield SavedTensor("shared output", model.hidden_size, sizes.activation_bytes, None, ("moe", "shared_experts"))


def _saved_after(model: Architecture, module: str) -> Iterator[SavedTensor]:
    """Yield what a norm before the residual connection saves, and the mask of the dropout there."""
    yield from saved_by_second_norm(model, module)
    if model.dropout:
        yield SavedTensor("dropout mask", model.hidden_size, MASK_BYTES)


def _vocabulary(model: Architecture) -> Cut:
    return Cut("vocab_size", model.vocab_size, is_padded=True)


def predicting(model: Architecture, attention: Unit) -> Unit:
    """Return the attention of a layer that predicts a further token.

    Before it come a norm of what the layer before has made, one of the token's embedding, and a matrix for both
    (`MultiTokenPredictionLayer` of Megatron-Core); behind its MLP, the norm before the head.
    """
    hidden_size, names = model.hidden_size, ("embedding", "hidden", "final")
    norms = (
        replace(weight, name=f"{name}_{weight.name}")
        for name in names
        for weight in norm_weights(hidden_size, has_bias=model.norm_bias)
    )
    size = 2 * hidden_size
    return replace(
        attention,
        weights=(*attention.weights, *norms, WeightShape("prediction", (size, hidden_size))),
        projections=(Projection("prediction", size, hidden_size), *attention.projections),
        saved=(*attention.saved, SavedTensor("prediction input", 2 * size, model.precision.activation_bytes)),
    )


def embedding_unit(model: Architecture) -> Unit:
    """Return the embedding: the table of tokens, and that of learned positions, which every rank holds."""
    tables = [WeightShape("tokens", (model.vocab_size, model.hidden_size), _vocabulary(model))]
    if model.positions == "learned":
        tables.append(WeightShape("positions", (model.num_positions, model.hidden_size)))
    mask = SavedTensor("dropout mask", model.hidden_size, MASK_BYTES, is_always_kept=True)
    return Unit(
        kind="embedding",
        layer=None,
        output_size=model.hidden_size,
        weights=tuple(tables),
        projections=(),
        core=None,
        saved=(mask,) if model.dropout else (),
    )


def head_unit(model: Architecture) -> Unit:
    """Return the head: the final norm, the multiplication with the vocabulary, and the loss."""
    hidden_size, element, vocabulary = model.hidden_size, model.precision.activation_bytes, _vocabulary(model)
    times = 1 + model.prediction_layers
    table = WeightShape("tokens", (hidden_size, model.vocab_size), vocabulary, 1, is_shared=model.tied_embeddings)
    return Unit(
        kind="head",
        layer=None,
        output_size=0,
        weights=(*norm_weights(hidden_size, has_bias=model.norm_bias), table),
        projections=(Projection("logits", hidden_size, model.vocab_size, vocabulary),) * times,
        core=None,
        saved=(
            SavedTensor("norm input", hidden_size, element, is_always_kept=True),
            SavedTensor("head input", times * hidden_size, element, is_always_kept=True, needed_for=("tokens",)),
            SavedTensor("logits", times * model.vocab_size, STATISTIC_BYTES, vocabulary, is_always_kept=True),
        ),
    )
