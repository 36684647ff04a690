"""The fields of a transformer; `transformer` has what follows from them.

Modelled: a decoder that predicts the next token. Every transformer layer is attention and then an MLP (or experts),
each with a norm and beside a residual connection; embeddings come before, a norm and the language-model head after.
Left out: encoders, cross attention, layers whose sizes differ, multi-token prediction, factors on hidden states.

What a number costs: the bytes of a parameter, its gradient, its optimizer state and an activation.

Modelled: one set of sizes for a whole model. Mixed precision after Narang et al. (2018) and ZeRO (Rajbhandari et al.
2020, section 3.1), with gradients accumulated in single precision as Megatron-LM does (Narayanan et al. 2021): 2
bytes a parameter, 4 a gradient, and 12 of optimizer state (the parameter in single precision and Adam's two
moments). Masks are bytes, and statistics (logits, softmax sums, router probabilities) are in single precision,
whatever the rest is.

The defaults of a transformer's fields that follow from others, and the rules that its fields obey.

Each field is checked by itself first. Then those that were not given are filled in. A rule between fields is checked
only where all of its fields are valid, so that one error lists every fault, and none that only follows from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, final

from minitrain.errors import choice_fault, closest, count_fault, is_count, is_number, refuse, shown, typed
from minitrain.workloads.documents import Documents
from minitrain.workloads.mixers import LatentAttention, LinearAttention, SparseAttention
from minitrain.workloads.shapes import Lora

MASK_BYTES = 1
"""Bytes of an element of a dropout mask (Korthikanti et al. 2022, section 4)."""

STATISTIC_BYTES = 4
"""Bytes of what is kept in single precision: logits, log-sum-exp of attention, router probabilities."""

NARROW_BYTES: Mapping[str, float] = MappingProxyType({"float8": 1, "int8": 1, "float4": 0.5})
"""Bytes of an element of what multiplications with weights take, where that is less than 16 bits."""

SCALINGS = ("delayed", "current", "blockwise", "mx", "nvfp4", "rowwise")
"""Where the scaling factors of numbers in eight bits or fewer come from."""

_LEAST = {"parameter_bytes": 1, "gradient_bytes": 0, "optimizer_bytes": 0, "activation_bytes": 1}


@typed
@final
@dataclass(frozen=True, slots=True)
class Precision:
    """The bytes of what training holds.

    Args:
        name: what tables call it.
        parameter_bytes: bytes of a parameter that layers compute with.
        gradient_bytes: bytes of a parameter's gradient.
        optimizer_bytes: bytes of a parameter's optimizer state, a copy in higher precision included.
        activation_bytes: bytes of an element of an activation.
        datatype: what hardware configs call the numbers that matrix units multiply; bf16 and fp16 share a rate.
        weight_datatype: the same of layers' multiplications with weights where that differs ("float8", "int8",
            "float4"); prices of kernels alone know it. Attention and the head keep `datatype`, as in NVIDIA's
            Transformer Engine.
        scaling: where the scaling factors of numbers in eight bits come from: "delayed" (steps before), "current" (the
            tensor), "rowwise", "blockwise", "mx" or "nvfp4" (rows or blocks of it, by kernels or by the matrix unit).

    Raises:
        UsageError: a size is no integer, or too small; all faults at once.

    Example:
        >>> Precision().bytes_per_parameter
        18
    """

    name: str = "bf16"
    parameter_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    activation_bytes: int = 2
    datatype: str = "float16"
    weight_datatype: str | None = None
    scaling: str = "delayed"

    def __post_init__(self) -> None:
        found = (count_fault(name, getattr(self, name), least, f"{name}=2") for name, least in _LEAST.items())
        faults = [fault for fault in found if fault is not None]
        texts = [name for name in ("name", "datatype") if not isinstance(getattr(self, name), str)]
        faults += [f'{name} must be a string, got {shown(getattr(self, name))}; write {name}="..."' for name in texts]
        scaling = choice_fault("scaling", self.scaling, SCALINGS)
        if faults or scaling:
            raise refuse("the precision", [*faults, *([scaling] if scaling else [])])

    @property
    def weight_rate(self) -> str:
        """Return the key of the rates of multiplications with weights; factors of blocks have rates of their own.

        >>> Precision(weight_datatype="float8", scaling="mx").weight_rate
        'mxfloat8'
        """
        datatype = self.weight_datatype or self.datatype
        return f"mx{datatype}" if (datatype, self.scaling) == ("float8", "mx") else datatype

    @property
    def gathers_narrow(self) -> bool:
        """Return whether shards of weights are cast before they are gathered: where a factor is no row's own."""
        return self.weight_datatype in NARROW_BYTES and self.scaling != "rowwise"

    @property
    def bytes_per_parameter(self) -> int:
        """Return the bytes of a parameter with its gradient and optimizer state."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of an element that a multiplication with a weight keeps of its input for backward.

        One where it multiplies in eight bits: the weight's gradient is made of the same copy (Transformer Engine's
        `LayerNormLinear` and `Linear`; DeepSeek-V3, section 3.3.3). In four bits it counts as one, too.
        """
        return 1 if self.weight_datatype in NARROW_BYTES else self.activation_bytes


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "bf16": Precision(),
        "fp16": Precision("fp16"),
        "fp32": Precision("fp32", 4, 4, 8, 4, "float32"),
        "fp8": Precision("fp8", weight_datatype="float8"),
    }
)
"""The precisions with a name: mixed in bf16 or fp16; single throughout, with Adam's moments but no copy; or bf16 with
layers' multiplications with weights in eight bits, which prices of kernels know (parameters and activations are kept in
16 bits)."""


def precision_fault(value: Any) -> str | None:
    """Return what is wrong with a precision or the name of one, or None."""
    if isinstance(value, Precision) or (isinstance(value, str) and value in PRECISIONS):
        return None
    known = ", ".join(f'"{name}"' for name in PRECISIONS)
    hint = closest(value, PRECISIONS)
    return f"precision must be {known} or a Precision, got {shown(value)}; {hint or 'use one of them'}"


AVERAGE_BYTES = 4
"""What an element of an average of weights takes: it is kept in single precision."""

USUAL_DROPOUT = 0.1
"""What `dropout=True` means: the probability that GPT-2 and Megatron-LM use."""

_REQUIRED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "seq_len")
_FOLLOWING_COUNTS = ("ffn_hidden_size", "num_kv_heads", "head_dim", "num_positions", "moe_ffn_hidden_size")
_GROUPS = ("expert_groups", "groups_per_token")
_COUNTS = (*_REQUIRED, *_FOLLOWING_COUNTS, "window", "max_seq_len", *_GROUPS)
_COUNTS_FROM_ZERO = ("num_experts", "experts_per_token", "num_shared_experts", "prediction_layers", "frozen_layers")
_FOLLOWING_FLAGS = ("bias", "qkv_bias", "output_bias", "mlp_bias", "tied_embeddings")
_FLAGS = (*_FOLLOWING_FLAGS, "router_bias", "shared_gate", "sinks", "chunked_windows", "output_gate")
_LAYERS = ("moe_layers", "window_layers", "linear_layers", "without_mixer", "without_mlp")
_CAPS = ("score_cap", "logit_cap", "gate_clamp")
_FOLLOWING = {*_FOLLOWING_COUNTS, *_FOLLOWING_FLAGS, *_LAYERS, "positions", "attention_dropout"}
_MIXERS = ("latent", "linear", "sparse")
_MAY_BE_NONE = frozenset(_FOLLOWING | {"window", *_MIXERS, *_CAPS, "max_seq_len", "lora", "documents", "ema"})
GATED = ("swiglu", "geglu")
"""The MLPs with three matrices."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mlp": ("gelu", "relu", "relu2", *GATED),
    "norm": ("layernorm", "rmsnorm"),
    "norm_placement": ("pre", "post", "both"),
    "qk_norm": ("none", "head", "whole"),
    "positions": ("learned", "rotary", "none"),
    "attention": ("flash", "unfused"),
    "optimizer": ("adam", "muon", "adafactor"),
}

Fields = dict[str, Any]


def completed(given: Mapping[str, Any]) -> tuple[Fields, list[str]]:
    """Return the fields with what follows from them filled in, and all faults.

    Args:
        given: every field by name; None where a field that may follow from others is not given.
    """
    of_fields = {
        name: None if value is None and name in _MAY_BE_NONE else _field_fault(name, value)
        for name, value in given.items()
    }
    faults = {name: fault for name, fault in of_fields.items() if fault}
    fields = _normalised(given, faults)
    if fault := _list_anew(fields):
        faults["num_layers"] = fault
    _fill(fields)
    found = (rule(fields) for read, rule in _RULES if not faults.keys() & set(read))
    return listed(fields), [*faults.values(), *(fault for fault in found if fault)]


class _Listed(tuple[int, ...]):
    """Layers of a kind, and how many a model has in all: `dataclasses.replace` hands them on beside another number."""

    num_layers: int


def listed(fields: Fields) -> Fields:
    """Return fields in which lists of layers know how many layers there are."""
    found = {name: _Listed(fields[name]) for name in _LAYERS if fields.get(name) is not None}
    for layers in found.values():
        layers.num_layers = fields["num_layers"]
    return fields | found


def _list_anew(fields: Fields) -> str | None:
    """Repeat what was listed of another number of layers; return what is wrong where that has no period."""
    count, periods = fields["num_layers"], dict[str, int]()
    for name, layers in fields.items() if count else ():
        if isinstance(layers, _Listed) and layers.num_layers != count:
            is_one, half = [each in layers for each in range(layers.num_layers)], max(1, layers.num_layers // 2)
            period = next((each for each in range(1, half + 1) if is_one[each:] == is_one[:-each]), 0)
            fields[name] = tuple(each for each in range(count) if period and is_one[each % period])
            periods[name] = period
    names = ", ".join(name for name, period in periods.items() if period != 1)
    why = f"num_layers ({count}) must not be changed without {names}, which do not repeat a pattern; give them too"
    return None if all(periods.values()) else why


_MOST_LAYERS = 2**17


def _field_fault(name: str, value: Any) -> str | None:
    """Return what is wrong with a field's value, or None."""
    if name in _COUNTS:
        fault = count_fault(name, value, 1, f"{name}=8")
        is_too_much = not fault and name == "num_layers" and value > _MOST_LAYERS
        return f"num_layers must be at most {_MOST_LAYERS}, got {shown(value)}" if is_too_much else fault
    if name in _COUNTS_FROM_ZERO:
        return count_fault(name, value, 0, f"{name}=8, or 0 for none")
    if name in _FLAGS:
        return None if isinstance(value, bool) else f"{name} must be True or False, got {shown(value)}; use one of them"
    if name in _CHOICES:
        return choice_fault(name, value, _CHOICES[name])
    if name == "precision":
        return precision_fault(value)
    return next(filter(None, (form.fault(name, value) for form in _FORMS[name])), None)


class _Form(NamedTuple):
    """What a field's value must be, in words, and how one is written that is."""

    holds: Callable[[Any], bool]
    must: str
    example: Any

    def fault(self, name: str, value: Any) -> str | None:
        """Return what is wrong with a field's value, or None."""
        if self.holds(value):
            return None
        return f"{name} must be {self.must}, got {shown(value)}; write {name}={self.example}"


def _is_sequence(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(holds, value))


def _positive(example: float = 1.0) -> _Form:
    return _Form(lambda value: is_number(value) and value > 0, "a positive number", example)


def _of(kind: type, example: str) -> _Form:
    return _Form(lambda value: isinstance(value, kind), f"a {kind.__name__}", f"mt.{kind.__name__}({example})")


_PROBABILITY = _Form(
    lambda value: value is True or (isinstance(value, int | float) and 0 <= value < 1),
    "a probability in [0, 1)",
    f"{USUAL_DROPOUT}, or 0 for none",
)
_LAYERS_FORM = _Form(
    lambda value: _is_sequence(value, lambda layer: is_count(layer, 0)),
    "a sequence of transformer layers",
    "range(3, 61)",
)
_TEXT = _Form(lambda value: isinstance(value, str), "a string", '"..."')
_TEXTS = _Form(lambda value: _is_sequence(value, lambda text: isinstance(text, str)), "a sequence of strings", "()")
_FORMS: Mapping[str, tuple[_Form, ...]] = {
    **dict.fromkeys(("dropout", "attention_dropout"), (_PROBABILITY,)),
    **dict.fromkeys(_LAYERS, (_LAYERS_FORM,)),
    **dict.fromkeys(("name", "source"), (_TEXT,)),
    "norm_epsilon": (_positive(1e-5),),
    "rope_theta": (_positive(500000.0),),
    "rope_scaling": (_positive(8.0),),
    "rope_factor": (_positive(1.35),),
    "rope_share": (_positive(), _Form(lambda value: value <= 1, "at most 1", 0.5)),
    "score_cap": (_positive(50.0),),
    "logit_cap": (_positive(),),
    "gate_clamp": (_positive(),),
    "ema": (_positive(), _Form(lambda value: value < 1, "less than 1", 0.999)),
    "taken_as": (_TEXTS,),
    "latent": (_of(LatentAttention, "kv_rank=512, ..."),),
    "linear": (_of(LinearAttention, 'rule="mamba2", ...'),),
    "sparse": (_of(SparseAttention, "num_heads=64, ..."),),
    "lora": (
        _Form(lambda value: isinstance(value, Lora) or is_count(value), "a Lora, or its rank", "mt.Lora(rank=16)"),
    ),
    "documents": (_of(Documents, "median=1000, sigma=1.2"),),
}
"""Of fields that are neither counts, flags, choices nor the precision."""


def _normalised(given: Mapping[str, Any], faults: Mapping[str, str]) -> Fields:
    """Return the fields in the one form that each is kept in; what is faulty is None."""
    fields = {name: None if name in faults else value for name, value in given.items()}
    for name in ("dropout", "attention_dropout"):
        value: Any = fields[name]
        if value is not None:
            fields[name] = USUAL_DROPOUT if value is True else float(value)
    for name in ("norm_epsilon", "rope_theta", "rope_share", "rope_scaling", "rope_factor", *_CAPS):
        number: Any = fields[name]
        fields[name] = None if number is None else float(number)
    for name in (*_LAYERS, "taken_as"):
        several: Any = fields[name]
        fields[name] = several if several is None or isinstance(several, _Listed) else tuple(several)
    if isinstance(fields["lora"], int):
        fields["lora"] = Lora(rank=fields["lora"])
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
    for name in ("without_mixer", "without_mlp"):
        _follow(fields, name, ())
    mixed = tuple(layer for layer in every if layer not in fields["without_mixer"])
    followed = tuple(layer for layer in every if layer not in fields["without_mlp"])
    _follow(fields, "moe_layers", followed if fields["num_experts"] else ())
    _follow(fields, "linear_layers", mixed if fields["linear"] else ())
    fields["window_layers"] = fields["window_layers"] or (mixed if fields["window"] else ())


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


def _a_clamp_has_a_gate(f: Fields) -> str | None:
    if f["gate_clamp"] is None or f["mlp"] in GATED:
        return None
    return f"gate_clamp ({f['gate_clamp']:g}) must not be given for mlp={f['mlp']!r}, which has no gate; leave it out"


def _positions_suffice(f: Fields) -> str | None:
    if f["positions"] != "learned" or f["num_positions"] >= f["seq_len"]:
        return None
    return (
        f"seq_len ({f['seq_len']}) must be at most num_positions ({f['num_positions']}) with learned positions; "
        f"use num_positions={f['seq_len']} or a shorter sequence"
    )


def _dense_layers_have_a_size(f: Fields) -> str | None:
    if f["ffn_hidden_size"] is not None or not set(range(f["num_layers"])) - {*f["moe_layers"], *f["without_mlp"]}:
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
    given = [name for name in ("num_shared_experts", "moe_layers", "router_bias", "shared_gate") if f[name]]
    given += [name for name in _GROUPS if f[name] != 1]
    if f["num_experts"] or not given:
        return None
    return f"{', '.join(given)} must not be given in a model without experts; give num_experts"


def _a_shared_gate_has_experts(f: Fields) -> str | None:
    if not f["shared_gate"] or f["num_shared_experts"] or not f["num_experts"]:
        return None
    return "shared_gate (True) must not be given without shared experts; leave it out, or give num_shared_experts"


def _groups_have_experts(f: Fields) -> str | None:
    groups, chosen, experts = f["expert_groups"], f["groups_per_token"], f["num_experts"]
    fits = experts % groups == 0 and chosen <= groups and experts // groups * chosen >= f["experts_per_token"]
    if not experts or fits:
        return None
    return (
        f"expert_groups ({groups}) must divide num_experts ({experts}), and groups_per_token ({chosen}) of them must "
        f"be there and have experts_per_token ({f['experts_per_token']}); leave both out for none"
    )


def _layers_exist(name: str, f: Fields) -> str | None:
    layers, count = f[name], f["num_layers"]
    beyond = sorted({layer for layer in layers if layer >= count})
    if beyond:
        listed = ", ".join(map(str, beyond[:4])) + (", ..." if len(beyond) > 4 else "")
        return f"{name} ({listed}) must be below num_layers ({count}); leave those out, or raise num_layers"
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


def _chunks_are_windows(f: Fields) -> str | None:
    if f["chunked_windows"] and f["window"] is None:
        return "chunked_windows (True) must not be given without a window; give window=8192"
    if f["chunked_windows"] and f["documents"] is not None:
        return "chunked_windows (True) must not be given with documents, whose pairs are not counted so; leave them out"
    return None


def _linear_layers_exist(f: Fields) -> str | None:
    if f["linear"] is None and f["linear_layers"]:
        return f"linear_layers ({shown(f['linear_layers'])}) must not be given without linear; give a LinearAttention"
    if f["linear"] is not None and f["lora"] is not None:
        return "lora must not be given with linear attention, whose matrices have no adapters here; leave it out"
    return _layers_exist("linear_layers", f)


def _layers_have_something(f: Fields) -> str | None:
    mixers, mlps = set(f["without_mixer"]), set(f["without_mlp"])
    if both := sorted(mixers & mlps):
        return f"without_mixer and without_mlp must not both have a layer, got {shown(both[:4])} in both; leave one out"
    wrong = [name for name in ("linear_layers", "window_layers") if mixers.intersection(f[name])]
    wrong += ["moe_layers"] if mlps.intersection(f["moe_layers"]) else []
    if wrong:
        return f"{', '.join(wrong)} must have no layer of without_mixer (moe_layers: of without_mlp); leave those out"
    if f["prediction_layers"] and (mixers or mlps):
        return "prediction_layers must be 0 where layers have a mixer or an MLP alone; leave it out"
    return _layers_exist("without_mixer", f) or _layers_exist("without_mlp", f)


def _sparse_attention_has_latents(f: Fields) -> str | None:
    if f["sparse"] is None:
        return None
    if f["latent"] is None or f["latent"].query_rank is None:
        return "sparse must not be given without latents of queries, of which its indexer is made; give latent"
    wrong = [name for name in ("window", "documents") if f[name] is not None]
    wrong += ["attention"] if f["attention"] != "flash" else []
    return f"{', '.join(wrong)} must be left out with sparse attention, which chooses keys" if wrong else None


def _a_gate_is_of_usual_attention(f: Fields) -> str | None:
    if not f["output_gate"] or f["latent"] is None:
        return None
    return "output_gate (True) must not be given with latent attention; leave it out"


def _latent_has_its_own_norms(f: Fields) -> str | None:
    if f["latent"] is None or f["qk_norm"] == "none":
        return None
    return f'qk_norm ({f["qk_norm"]}) must be "none" with latent attention, whose latents have norms; leave it out'


def _something_trains(f: Fields) -> str | None:
    if f["frozen_layers"] <= f["num_layers"]:
        return None
    return f"frozen_layers ({f['frozen_layers']}) must be at most num_layers ({f['num_layers']}); use that or less"


def _others_train_all(f: Fields) -> str | None:
    if f["optimizer"] == "adam" or (f["lora"] is None and not f["frozen_layers"]):
        return None
    why = f'optimizer must be "adam" with adapters or frozen layers, got "{f["optimizer"]}"'
    return f"{why}; leave it out, or train all weights"


def _adapters_have_matrices(f: Fields) -> str | None:
    lora, layers = f["lora"], range(f["frozen_layers"], f["num_layers"])
    if lora is None:
        return None
    there = {"output"} | ({"query", "key", "value"} if f["latent"] is None else {"kv_up"})
    if f["latent"] is not None:
        there.add("query" if f["latent"].query_rank is None else "query_up")
    if set(layers) - set(f["moe_layers"]):
        there |= {"up", "down"} | ({"gate"} if f["mlp"] in GATED else set())
    if layers and not there.isdisjoint(lora.targets):
        return None
    return (
        f"lora's targets ({', '.join(lora.targets)}) must name matrices of the layers that are not frozen, of which "
        f"there are {', '.join(sorted(there)) if layers else 'none'}; nothing would be trained"
    )


_RULES: Sequence[tuple[tuple[str, ...], Callable[[Fields], str | None]]] = (
    (("hidden_size", "num_heads", "head_dim", "latent"), _heads_fill_hidden_size),
    (("num_heads", "num_kv_heads", "latent"), lambda f: None if f["latent"] else _kv_heads_divide_heads(f)),
    (("num_heads", "num_kv_heads", "latent"), _latent_has_all_heads),
    (("hidden_size", "num_heads", "head_dim", "latent"), _latent_sets_head_dim),
    (("seq_len", "positions", "norm", "num_positions"), _positions_suffice),
    (
        ("ffn_hidden_size", "hidden_size", "mlp", "num_layers", "moe_layers", "without_mlp", "num_experts"),
        _dense_layers_have_a_size,
    ),
    (("moe_ffn_hidden_size", "ffn_hidden_size", "hidden_size", "mlp", "num_experts"), _experts_have_a_size),
    (("num_experts", "experts_per_token"), _a_token_goes_to_experts),
    (("shared_gate", "num_shared_experts", "num_experts"), _a_shared_gate_has_experts),
    (
        ("num_experts", "num_shared_experts", "moe_layers", "router_bias", "shared_gate", *_GROUPS),
        _experts_are_there,
    ),
    (("num_experts", "experts_per_token", *_GROUPS), _groups_have_experts),
    (("num_experts", "moe_layers", "num_layers"), _moe_layers_exist),
    (("window", "window_layers", "num_layers"), _window_layers_exist),
    (("chunked_windows", "window", "documents"), _chunks_are_windows),
    (("linear", "linear_layers", "lora", "num_layers"), _linear_layers_exist),
    (("num_layers", *_LAYERS, "prediction_layers"), _layers_have_something),
    (("sparse", "latent", "window", "documents", "attention"), _sparse_attention_has_latents),
    (("output_gate", "latent"), _a_gate_is_of_usual_attention),
    (("latent", "qk_norm"), _latent_has_its_own_norms),
    (("gate_clamp", "mlp"), _a_clamp_has_a_gate),
    (("frozen_layers", "num_layers"), _something_trains),
    (("optimizer", "lora", "frozen_layers"), _others_train_all),
    (("lora", "frozen_layers", "num_layers", "latent", "moe_layers", "num_experts", "mlp"), _adapters_have_matrices),
)


# Fields that follow from others where they are not given: None until then, and never afterwards.
_FOLLOWS: int = None  # type: ignore[assignment]  # filled in by __post_init__
_FOLLOWS_FLAG: bool = None  # type: ignore[assignment]  # the same
_FOLLOWS_TEXT: str = None  # type: ignore[assignment]  # the same
_FOLLOWS_SHARE: float = None  # type: ignore[assignment]  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The fields of a `Transformer`; made as one, never by itself.

    What is not given follows from what is. In particular a model with `norm="layernorm"` is one like GPT-2 (biases,
    learned positions, tied embeddings), and one with `norm="rmsnorm"` is one like Llama (none of these).

    Args:
        num_layers: transformer layers. `replace` by another number repeats the pattern of those that differ.
        hidden_size: size of a token's activation between layers.
        num_heads: attention heads.
        vocab_size: rows of the embedding table.
        seq_len: tokens of a sample in training.
        ffn_hidden_size: hidden size of a dense MLP. Follows as 4 x hidden_size, but for "swiglu", where models differ.
        num_kv_heads: heads of keys and values (grouped-query attention). Follows as num_heads.
        head_dim: size of a head. Follows as hidden_size / num_heads.
        mlp: "gelu", "relu" or "relu2" (its square), two matrices with that function between them; or "swiglu" or
            "geglu", three.
        norm: "layernorm" or "rmsnorm".
        norm_placement: "pre", before attention and MLP; "post", behind them and before the sum (OLMo 2); or "both"
            (Gemma 2 and 3).
        norm_epsilon: what norms add to the variance.
        qk_norm: "head" for a norm of each head's query and key (Qwen 3, Gemma 3), "whole" for one of all heads
            together (OLMo 2), or "none".
        positions: "learned", a table that is added to the embedding; "rotary"; or "none" (ALiBi, say, which has no
            parameters). Follows from `norm`.
        num_positions: rows of the table of learned positions. Follows as seq_len.
        rope_theta: base of rotary positions.
        rope_share: share of a head that is rotated.
        rope_scaling: factor by which its low frequencies are stretched as Llama 3.1 does (`low_freq_factor` 1,
            `high_freq_factor` 4, beyond 8,192 tokens); 1 for none. It costs nothing.
        rope_factor: what it multiplies queries and keys by (YaRN's attention factor, 0.1 ln(scaling) + 1). Kernels of
            Megatron-Core do not, but for latent attention's: with another one than 1 PyTorch's operations rotate.
        bias: whether projections, MLP and layernorms have biases. Follows from `norm`. An rmsnorm and the head never
            do.
        qkv_bias: whether queries, keys and values have them. Follows as bias.
        output_bias: whether the attention's output projection has one. Follows as bias.
        mlp_bias: whether the MLP and the experts have them. Follows as bias.
        tied_embeddings: whether the head uses the embedding's table. Follows from `norm`.
        dropout: probability of dropout after embedding, attention and MLP; True is 0.1. What counts is whether it is 0.
        attention_dropout: probability of dropout of attention's probabilities. Follows as dropout.
        attention: "flash", which stores no scores, or "unfused", which stores them.
        window: keys that a query sees at most (sliding-window attention); None for all.
        window_layers: the transformer layers whose attention has the window, from 0. Follows as all if there is one.
        chunked_windows: whether windows lie side by side: a query sees what comes before it in its own (Llama 4).
        sinks: whether each head has a logit of its own in the softmax, which takes attention from all keys (gpt-oss).
        score_cap: soft cap of attention's scores, cap x tanh(score / cap) (Gemma 2); None for none.
        logit_cap: the same for the logits of the head.
        gate_clamp: bound of a gate and of what it multiplies, by kernels of their own (gpt-oss); None for none.
        latent: the sizes of multi-head latent attention; None for the usual projections.
        sparse: the indexer that chooses the keys of a query of latent attention; None for all.
        output_gate: whether a sigmoid of the hidden state weighs what attention makes (Qwen 3-Next).
        linear: the linear attention of some layers; None for none.
        linear_layers: the transformer layers that have it instead of attention, from 0. Follows as all if there is one.
        without_mixer: the transformer layers that have an MLP or experts alone, from 0 (Nemotron-H).
        without_mlp: those that have an attention alone, linear or not.
        num_experts: routed experts of an MoE layer; 0 for a dense model.
        experts_per_token: routed experts that a token is sent to.
        num_shared_experts: experts that every token is sent to.
        moe_ffn_hidden_size: hidden size of one expert. Follows as ffn_hidden_size.
        moe_layers: the transformer layers that have experts, from 0. Follows as all if there are experts.
        router_bias: whether the router has a bias for each expert (DeepSeek-V3's, which balances the load).
        shared_gate: whether what shared experts make of a token is weighed by a sigmoid of it (Qwen 2 and 3-Next).
        expert_groups: groups of experts, which follow one another; 1 for none.
        groups_per_token: groups that all experts of a token are in (DeepSeek-V2's device-limited routing).
        prediction_layers: further layers, each of which predicts one token more from what the one before has made and
            that token's embedding, by a matrix of its own, and with the head and a loss (DeepSeek-V3's multi-token
            prediction). Their copy of the embedding's table is left out.
        lora: low-rank adapters, which alone are trained: a `Lora`, or its rank; None trains all weights.
        frozen_layers: how many transformer layers, from the first, are not trained, and the embedding with them. What
            lies below all that is trained has no backward.
        documents: which documents are packed into its samples; None where each is one.
        optimizer: "adam"; or "muon", which moves the matrices of attention, MLPs and experts by their orthogonalised
            momentum (Jordan et al. 2024), and embeddings, head, norms and biases by Adam; or "adafactor", which keeps
            sums of rows and columns of second moments, and no first ones (Shazeer and Stern 2018).
        ema: decay of the exponential moving average of all weights that train, which each update takes on; None for
            none.
        precision: a `Precision`, or "bf16" (mixed), "fp16" (mixed) or "fp32".
        max_seq_len: the longest sequence that its source allows, where `seq_len` is shorter; None if not known.
        taken_as: what its source says that costs the same as what these fields say, and is not the same.
        name: what tables call the model.
        source: where its figures come from.

    Raises:
        UsageError: fields contradict each other or their rules; all faults at once.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    seq_len: int
    ffn_hidden_size: int = _FOLLOWS
    num_kv_heads: int = _FOLLOWS
    head_dim: int = _FOLLOWS
    mlp: str = "gelu"
    norm: str = "layernorm"
    norm_placement: str = "pre"
    norm_epsilon: float = 1e-5
    qk_norm: str = "none"
    positions: str = _FOLLOWS_TEXT
    num_positions: int = _FOLLOWS
    rope_theta: float = 10000.0
    rope_share: float = 1.0
    rope_scaling: float = 1.0
    rope_factor: float = 1.0
    bias: bool = _FOLLOWS_FLAG
    qkv_bias: bool = _FOLLOWS_FLAG
    output_bias: bool = _FOLLOWS_FLAG
    mlp_bias: bool = _FOLLOWS_FLAG
    tied_embeddings: bool = _FOLLOWS_FLAG
    dropout: float = 0.0
    attention_dropout: float = _FOLLOWS_SHARE
    attention: str = "flash"
    window: int | None = None
    window_layers: Sequence[int] = None  # type: ignore[assignment]  # as those above; a tuple afterwards
    chunked_windows: bool = False
    sinks: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    gate_clamp: float | None = None
    latent: LatentAttention | None = None
    sparse: SparseAttention | None = None
    output_gate: bool = False
    linear: LinearAttention | None = None
    linear_layers: Sequence[int] = None  # type: ignore[assignment]  # as those above; a tuple afterwards
    without_mixer: Sequence[int] = ()
    without_mlp: Sequence[int] = ()
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    moe_ffn_hidden_size: int = _FOLLOWS
    moe_layers: Sequence[int] = None  # type: ignore[assignment]  # as those above; a tuple afterwards
    router_bias: bool = False
    shared_gate: bool = False
    expert_groups: int = 1
    groups_per_token: int = 1
    prediction_layers: int = 0
    lora: Lora | None = None
    frozen_layers: int = 0
    documents: Documents | None = None
    optimizer: str = "adam"
    ema: float | None = None
    precision: Precision = PRECISIONS["bf16"]
    max_seq_len: int | None = None
    taken_as: Sequence[str] = ()
    name: str = "custom"
    source: str = ""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        complete, faults = completed(given)
        if faults:
            raise refuse(f"the transformer {self.name!r}", faults)
        for name, value in complete.items():
            object.__setattr__(self, name, value)

    @property
    def kind(self) -> str:
        """Return the kind of model by which validated runs are told apart."""
        if self.linear_layers or self.sparse is not None:
            return "linear-attention" if self.linear_layers else "sparse-attention"
        if self.moe_layers:
            return "mixture of experts"
        return "Llama-like" if self.is_gated else "GPT-like"

    @property
    def state_bytes(self) -> int:
        """Return the bytes of a parameter's optimizer state, of which the average of weights is a part."""
        return self.precision.optimizer_bytes + (0 if self.ema is None else AVERAGE_BYTES)

    @property
    def is_gated(self) -> bool:
        """Return whether MLPs have a third matrix, a gate."""
        return self.mlp in GATED

    @property
    def norm_bias(self) -> bool:
        """Return whether norms have a bias beside their weight."""
        return self.norm == "layernorm" and self.bias
