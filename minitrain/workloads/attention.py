"""The attention unit: norm, queries, keys and values, the core between them, and the output projection.

Tensor parallelism gives each rank some heads. What is saved follows Korthikanti et al. (2022, section 4.1): the norm's
input and output, queries, keys and values, unfused attention's probabilities before and after dropout and the mask, the
output projection's input and the mask of the dropout after it. Flash attention saves the log-sum-exp of each query
instead of probabilities. Left out, as there: the norm's mean and variance. Rotary embeddings and ALiBi save nothing.
Keys and values of grouped queries are saved once, not for every query head. A norm behind the unit takes the place of
that before it ("post"), or saves its input beside it ("both"). A soft cap of the scores is part of flash attention's
kernel, and a pass of its own over those of unfused attention; a sink is one more term of a softmax's sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.workloads.architecture import Architecture
from minitrain.workloads.degrees import Cut
from minitrain.workloads.latent_attention import LatentAttention
from minitrain.workloads.norms import saved_by_second_norm, unit_norms
from minitrain.workloads.precision import MASK_BYTES, STATISTIC_BYTES
from minitrain.workloads.shapes import AttentionCore, Projection, SavedTensor, WeightShape
from minitrain.workloads.unit import Unit


def attention_unit(model: Architecture, layer: int) -> Unit:
    """Return the attention of a transformer layer."""
    latent = model.latent
    window = model.window if layer in model.window_layers else None
    core = AttentionCore(model.num_heads, model.head_dim, _value_dim(model), model.attention == "flash", window)
    return Unit(
        kind="attention",
        layer=layer,
        output_size=model.hidden_size,
        weights=(
            *unit_norms(model),
            *(_usual_weights(model) if latent is None else _latent_weights(model, latent)),
            *_qk_norm_weights(model),
            *([WeightShape("sinks", (model.num_heads,), _heads(model))] if model.sinks else []),
            *_output_weights(model),
        ),
        projections=(
            *(_usual_projections(model) if latent is None else _latent_projections(model, latent)),
            Projection("output", model.num_heads * core.value_dim, model.hidden_size, _heads(model), "k"),
        ),
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


def _qk_norm_weights(model: Architecture) -> Iterator[WeightShape]:
    """Yield the weights of the norms of queries and keys: of a head's size, or of all heads' together."""
    cuts = {"query": _heads(model), "key": _kv_heads(model)}
    for name, cut in cuts.items() if model.qk_norm != "none" else ():
        if model.qk_norm == "head":
            yield WeightShape(f"{name}_norm.weight", (model.head_dim,), is_norm=True)
        else:
            yield WeightShape(f"{name}_norm.weight", (cut.count * model.head_dim,), cut, is_norm=True)


def _usual_projections(model: Architecture) -> Iterator[Projection]:
    """Yield the one multiplication that makes queries, keys and values, cut by heads of keys."""
    size = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
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


def _kv_up_size(model: Architecture, latent: LatentAttention) -> int:
    """Return the size of all heads' values and of their keys without the shared rotary part."""
    return model.num_heads * (latent.nope_head_dim + latent.value_head_dim)


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


_ALL = "self_attn"
"""The module whose recomputation makes everything again but the unit's input."""


def _saved_before_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what is saved up to queries, keys and values; the norm's input is all that full recomputation keeps."""
    element, latent = model.precision.activation_bytes, model.latent
    up = (_ALL,) if latent is None else (_ALL, "mla_up_proj")
    yield SavedTensor("norm input", model.hidden_size, element, is_always_kept=True)
    yield SavedTensor("projection input", model.hidden_size, model.precision.saved_bytes, None, (_ALL, "layernorm"))
    if latent is not None:
        yield from _saved_latents(model, latent)
    if model.qk_norm != "none":
        yield SavedTensor("queries' norm input", model.num_heads * model.head_dim, element, _heads(model), up)
        yield SavedTensor("keys' norm input", model.num_kv_heads * model.head_dim, element, _kv_heads(model), up)
    yield SavedTensor("queries", model.num_heads * model.head_dim, element, _heads(model), up)
    yield SavedTensor("keys", model.num_kv_heads * model.head_dim, element, _kv_heads(model), up)
    yield SavedTensor("values", model.num_kv_heads * _value_dim(model), element, _kv_heads(model), up)


def _saved_latents(model: Architecture, latent: LatentAttention) -> Iterator[SavedTensor]:
    """Yield the inputs and outputs of the latents' norms."""
    sizes = model.precision
    for name, rank in (("query latent", latent.query_rank), ("kv latent", latent.kv_rank)):
        if rank is not None:
            yield SavedTensor(f"{name} norm input", rank, sizes.activation_bytes, None, (_ALL,))
            yield SavedTensor(f"{name} projection input", rank, sizes.saved_bytes, None, (_ALL, "mla_up_proj"))


def _saved_by_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what the core saves, which selective recomputation does without where attention is unfused."""
    heads, element = _heads(model), model.precision.activation_bytes
    again = (_ALL, "core_attn")
    if model.attention == "flash":
        yield SavedTensor("log-sum-exp", model.num_heads, STATISTIC_BYTES, heads, (_ALL,))
        return
    if model.score_cap:
        yield SavedTensor("capped scores", model.num_heads, element, heads, again, is_per_key=True)
    yield SavedTensor("probabilities", model.num_heads, element, heads, again, is_per_key=True)
    if model.attention_dropout:
        yield SavedTensor("probabilities' mask", model.num_heads, MASK_BYTES, heads, again, is_per_key=True)
        yield SavedTensor("dropped probabilities", model.num_heads, element, heads, again, is_per_key=True)


def _saved_after_core(model: Architecture) -> Iterator[SavedTensor]:
    """Yield what the core's backward, the output projection and the dropout after it save.

    Flash attention needs its output in 16 bits. A projection in eight bits keeps a copy of its own beside that.
    """
    size, sizes = model.num_heads * _value_dim(model), model.precision
    in_eight = sizes.saved_bytes != sizes.activation_bytes
    if in_eight and model.attention == "flash":
        yield SavedTensor("attention output", size, sizes.activation_bytes, _heads(model), (_ALL,))
    yield SavedTensor("output projection input", size, sizes.saved_bytes, _heads(model), (_ALL,))
    yield from saved_by_second_norm(model, _ALL)
    if model.dropout:
        yield SavedTensor("dropout mask", model.hidden_size, MASK_BYTES, None, (_ALL,))
