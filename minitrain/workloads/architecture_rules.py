"""The defaults of a transformer's fields that follow from others, and the rules that its fields obey.

Each field is checked by itself first. Then those that were not given are filled in. A rule between fields is checked
only where all of its fields are valid, so that one error lists every fault, and none that only follows from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from minitrain.workloads.field_faults import choice_fault, count_fault, is_count, shown
from minitrain.workloads.latent_attention import LatentAttention
from minitrain.workloads.precision import PRECISIONS, precision_fault

USUAL_DROPOUT = 0.1
"""What `dropout=True` means: the probability that GPT-2 and Megatron-LM use."""

_REQUIRED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "seq_len")
_FOLLOWING_COUNTS = ("ffn_hidden_size", "num_kv_heads", "head_dim", "num_positions", "moe_ffn_hidden_size")
_COUNTS = (*_REQUIRED, *_FOLLOWING_COUNTS, "window", "max_seq_len")
_COUNTS_FROM_ZERO = ("num_experts", "experts_per_token", "num_shared_experts")
_FOLLOWING_FLAGS = ("bias", "qkv_bias", "output_bias", "mlp_bias", "tied_embeddings")
_FLAGS = (*_FOLLOWING_FLAGS, "router_bias", "sinks")
_LAYERS = ("moe_layers", "window_layers")
_FOLLOWING = {*_FOLLOWING_COUNTS, *_FOLLOWING_FLAGS, *_LAYERS, "positions", "attention_dropout"}
_MAY_BE_NONE = frozenset(_FOLLOWING | {"window", "latent", "score_cap", "logit_cap", "max_seq_len"})
GATED = ("swiglu", "geglu")
"""The MLPs with three matrices."""
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mlp": ("gelu", "relu", "relu2", *GATED),
        "norm": ("layernorm", "rmsnorm"),
        "norm_placement": ("pre", "post", "both"),
        "qk_norm": ("none", "head", "whole"),
        "positions": ("learned", "rotary", "none"),
        "attention": ("flash", "unfused"),
    }
)

_USUAL: Mapping[str, float] = MappingProxyType(
    {"norm_epsilon": 1e-5, "rope_theta": 500000.0, "rope_scaling": 8.0, "score_cap": 50.0}
)

Fields = dict[str, Any]


def completed(given: Mapping[str, Any]) -> tuple[Fields, list[str]]:
    """Return the fields with what follows from them filled in, and all faults.

    Args:
        given: every field by name; None where a field that may follow from others is not given.
    """
    faults = dict(_faults_of_fields(given))
    fields = _normalised(given, faults)
    _fill(fields)
    found = (rule(fields) for read, rule in _RULES if not faults.keys() & set(read))
    return fields, [*faults.values(), *(fault for fault in found if fault)]


def _faults_of_fields(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Check every field by itself: yield its name and what is wrong with it."""
    for name, value in given.items():
        fault = None if value is None and name in _MAY_BE_NONE else _field_fault(name, value)
        if fault:
            yield name, fault


def _field_fault(name: str, value: Any) -> str | None:
    """Return what is wrong with a field's value, or None."""
    if name in _COUNTS:
        return count_fault(name, value, 1, f"{name}=8")
    if name in _COUNTS_FROM_ZERO:
        return count_fault(name, value, 0, f"{name}=8, or 0 for none")
    if name in _FLAGS:
        return None if isinstance(value, bool) else f"{name} must be True or False, got {shown(value)}; use one of them"
    if name in _CHOICES:
        return choice_fault(name, value, _CHOICES[name])
    return _OTHERS[name](name, value)


def _probability_fault(name: str, value: Any) -> str | None:
    if value is True or (isinstance(value, int | float) and 0 <= value < 1):
        return None
    return f"{name} must be a probability in [0, 1), got {shown(value)}; write {name}={USUAL_DROPOUT}, or 0 for none"


def _positive_fault(name: str, value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return None
    return f"{name} must be a positive number, got {shown(value)}; write {name}={_USUAL.get(name, 1.0)}"


def _share_fault(name: str, value: Any) -> str | None:
    fault = _positive_fault(name, value)
    return fault or (None if value <= 1 else f"{name} must be at most 1, got {shown(value)}; write {name}=0.5")


def _texts_fault(name: str, value: Any) -> str | None:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(text, str) for text in value):
        return None
    return f"{name} must be a sequence of strings, got {shown(value)}; write {name}=()"


def _layers_fault(name: str, value: Any) -> str | None:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(is_count(layer, 0) for layer in value):
        return None
    return f"{name} must be a sequence of transformer layers, got {shown(value)}; write {name}=range(3, 61)"


def _latent_fault(name: str, value: Any) -> str | None:
    if isinstance(value, LatentAttention):
        return None
    return f"{name} must be a LatentAttention, got {shown(value)}; write {name}=mt.LatentAttention(kv_rank=512, ...)"


def _text_fault(name: str, value: Any) -> str | None:
    return None if isinstance(value, str) else f'{name} must be a string, got {shown(value)}; write {name}="..."'


_OTHERS: Mapping[str, Callable[[str, Any], str | None]] = MappingProxyType(
    {
        "dropout": _probability_fault,
        "attention_dropout": _probability_fault,
        "moe_layers": _layers_fault,
        "window_layers": _layers_fault,
        "norm_epsilon": _positive_fault,
        "rope_theta": _positive_fault,
        "rope_scaling": _positive_fault,
        "rope_share": _share_fault,
        "score_cap": _positive_fault,
        "logit_cap": _positive_fault,
        "taken_as": _texts_fault,
        "latent": _latent_fault,
        "precision": lambda _, value: precision_fault(value),
        "name": _text_fault,
        "source": _text_fault,
    }
)


def _normalised(given: Mapping[str, Any], faults: Mapping[str, str]) -> Fields:
    """Return the fields in the one form that each is kept in; what is faulty is None."""
    fields = {name: None if name in faults else value for name, value in given.items()}
    for name in ("dropout", "attention_dropout"):
        value: Any = fields[name]
        if value is not None:
            fields[name] = USUAL_DROPOUT if value is True else float(value)
    for name in ("norm_epsilon", "rope_theta", "rope_share", "rope_scaling", "score_cap", "logit_cap"):
        number: Any = fields[name]
        fields[name] = None if number is None else float(number)
    for name in (*_LAYERS, "taken_as"):
        several: Any = fields[name]
        fields[name] = None if several is None else tuple(several)
    if isinstance(fields["precision"], str):
        fields["precision"] = PRECISIONS[fields["precision"]]
    return fields


def _fill(fields: Fields) -> None:
    """Fill in what follows from other fields and is not given; what cannot be known stays None.

    A window in no layer is one that somebody put into a model without, and means all.
    """
    like_gpt2 = fields["norm"] == "layernorm"
    _follow(fields, "positions", "learned" if like_gpt2 else "rotary")
    _follow(fields, "num_positions", fields["seq_len"])
    for flag in ("bias", "tied_embeddings"):
        _follow(fields, flag, like_gpt2)
    for flag in ("qkv_bias", "output_bias", "mlp_bias"):
        _follow(fields, flag, fields["bias"])
    _follow(fields, "num_kv_heads", fields["num_heads"])
    _follow(fields, "attention_dropout", fields["dropout"])
    _follow(fields, "head_dim", _head_dim(fields))
    if fields["mlp"] not in GATED and fields["hidden_size"]:
        _follow(fields, "ffn_hidden_size", 4 * fields["hidden_size"])
    _follow(fields, "moe_ffn_hidden_size", fields["ffn_hidden_size"])
    every = tuple(range(fields["num_layers"] or 0))
    _follow(fields, "moe_layers", every if fields["num_experts"] else ())
    fields["window_layers"] = fields["window_layers"] or (every if fields["window"] else ())


def _follow(fields: Fields, name: str, value: Any) -> None:
    if fields[name] is None:
        fields[name] = value


def _head_dim(fields: Fields) -> int | None:
    """Return the size of a head where it is not given and can be known."""
    latent, hidden_size, num_heads = fields["latent"], fields["hidden_size"], fields["num_heads"]
    if latent is not None:
        return int(latent.key_head_dim)
    if hidden_size and num_heads and hidden_size % num_heads == 0:
        return int(hidden_size // num_heads)
    return None


# Rules between fields: what is wrong, or None.


def _heads_fill_hidden_size(f: Fields) -> str | None:
    if f["head_dim"] is not None:
        return None
    below = f["hidden_size"] // f["num_heads"] * f["num_heads"]
    nearest = " or ".join(str(size) for size in (below, below + f["num_heads"]) if size)
    return (
        f"hidden_size ({f['hidden_size']}) must be a multiple of num_heads ({f['num_heads']}) where head_dim is not "
        f"given; use hidden_size={nearest}, or give head_dim"
    )


def _kv_heads_divide_heads(f: Fields) -> str | None:
    heads, kv_heads = f["num_heads"], f["num_kv_heads"]
    if heads % kv_heads == 0:
        return None
    fitting = max(count for count in range(1, min(heads, kv_heads) + 1) if heads % count == 0)
    return f"num_heads ({heads}) must be a multiple of num_kv_heads ({kv_heads}); use num_kv_heads={fitting}"


def _latent_has_all_heads(f: Fields) -> str | None:
    if f["latent"] is None or f["num_kv_heads"] == f["num_heads"]:
        return None
    return (
        f"num_kv_heads ({f['num_kv_heads']}) must be num_heads ({f['num_heads']}) with latent attention, where every "
        "head has keys and values of its own; leave num_kv_heads out"
    )


def _latent_sets_head_dim(f: Fields) -> str | None:
    if f["latent"] is None or f["head_dim"] == f["latent"].key_head_dim:
        return None
    return (
        f"head_dim ({f['head_dim']}) must be nope_head_dim + rope_head_dim ({f['latent'].key_head_dim}) with latent "
        "attention; leave head_dim out"
    )


def _positions_suffice(f: Fields) -> str | None:
    if f["positions"] != "learned" or f["num_positions"] >= f["seq_len"]:
        return None
    return (
        f"seq_len ({f['seq_len']}) must be at most num_positions ({f['num_positions']}) with learned positions; "
        f"use num_positions={f['seq_len']} or a shorter sequence"
    )


def _dense_layers_have_a_size(f: Fields) -> str | None:
    if f["ffn_hidden_size"] is not None or not set(range(f["num_layers"])) - set(f["moe_layers"]):
        return None
    return (
        f'ffn_hidden_size must be given with mlp="{f["mlp"]}", where models differ; Llama 2 rounds 8/3 hidden_size up '
        f"to a multiple of 256, here ffn_hidden_size={-(-8 * f['hidden_size'] // (3 * 256)) * 256}"
    )


def _experts_have_a_size(f: Fields) -> str | None:
    if not f["num_experts"] or f["moe_ffn_hidden_size"] is not None:
        return None
    return f'moe_ffn_hidden_size must be given with experts and mlp="{f["mlp"]}"; write moe_ffn_hidden_size=2048'


def _a_token_goes_to_experts(f: Fields) -> str | None:
    experts, per_token = f["num_experts"], f["experts_per_token"]
    if (1 if experts else 0) <= per_token <= experts:
        return None
    if not experts:
        return f"experts_per_token ({per_token}) must be 0 in a model without experts; give num_experts"
    return (
        f"experts_per_token ({per_token}) must be 1 to num_experts ({experts}); use experts_per_token={min(2, experts)}"
    )


def _experts_are_there(f: Fields) -> str | None:
    given = [name for name in ("num_shared_experts", "moe_layers", "router_bias") if f[name]]
    if f["num_experts"] or not given:
        return None
    return f"{', '.join(given)} must not be given in a model without experts; give num_experts"


def _layers_exist(name: str, f: Fields) -> str | None:
    layers, count = f[name], f["num_layers"]
    beyond = sorted({layer for layer in layers if layer >= count})
    if beyond:
        listed = ", ".join(map(str, beyond[:4])) + (", ..." if len(beyond) > 4 else "")
        return f"{name} ({listed}) must be below num_layers ({count}); the last is {count - 1}"
    if list(layers) != sorted(set(layers)):
        return f"{name} must ascend, each layer once, got {shown(layers)}; use sorted(set(...))"
    return None


def _moe_layers_exist(f: Fields) -> str | None:
    if f["num_experts"] and not f["moe_layers"]:
        return "moe_layers must not be empty in a model with experts; leave moe_layers out for all, or num_experts"
    return _layers_exist("moe_layers", f)


def _window_layers_exist(f: Fields) -> str | None:
    if f["window"] is None and f["window_layers"]:
        return f"window_layers ({shown(f['window_layers'])}) must not be given without a window; give window=4096"
    return _layers_exist("window_layers", f)


def _latent_has_its_own_norms(f: Fields) -> str | None:
    if f["latent"] is None or f["qk_norm"] == "none":
        return None
    return f'qk_norm ({f["qk_norm"]}) must be "none" with latent attention, whose latents have norms; leave it out'


_RULES: Sequence[tuple[tuple[str, ...], Callable[[Fields], str | None]]] = (
    (("hidden_size", "num_heads", "head_dim", "latent"), _heads_fill_hidden_size),
    (("num_heads", "num_kv_heads", "latent"), lambda f: None if f["latent"] else _kv_heads_divide_heads(f)),
    (("num_heads", "num_kv_heads", "latent"), _latent_has_all_heads),
    (("hidden_size", "num_heads", "head_dim", "latent"), _latent_sets_head_dim),
    (("seq_len", "positions", "norm", "num_positions"), _positions_suffice),
    (
        ("ffn_hidden_size", "hidden_size", "mlp", "num_layers", "moe_layers", "num_experts"),
        _dense_layers_have_a_size,
    ),
    (("moe_ffn_hidden_size", "ffn_hidden_size", "hidden_size", "mlp", "num_experts"), _experts_have_a_size),
    (("num_experts", "experts_per_token"), _a_token_goes_to_experts),
    (("num_experts", "num_shared_experts", "moe_layers", "router_bias"), _experts_are_there),
    (("num_experts", "moe_layers", "num_layers"), _moe_layers_exist),
    (("window", "window_layers", "num_layers"), _window_layers_exist),
    (("latent", "qk_norm"), _latent_has_its_own_norms),
)
