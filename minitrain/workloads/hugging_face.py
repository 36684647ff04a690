"""Reading configs of Hugging Face's transformers: the fields of a `Transformer` that a config.json describes.

`ConfigReader` reads a config key by key, and collects missing, wrong and unknown keys for one error. A key is read, or
it is known to have no bearing on parameters, FLOPs and memory (how weights are initialised, how text is generated), or
it is a fault: what cannot be modelled is never passed over in silence. Keys that are absent have the values that
transformers gives them; sizes must be there. `max_position_embeddings` is the longest sequence that a model takes, and
no wish: samples have 8,192 tokens or less.

A table says how families differ from one another, or from what a function reads. Some things are read as something else
with the same parameters and multiplications. `Transformer.taken_as` then names them, since other tools' arguments made
of the model would train another one: GPT-NeoX's parallel residual connections as one after the other; rotary
frequencies that are scaled for longer contexts as they were before, those of layers with windows as those of the
others, and layers without any as those with; Granite's and Gemma's factors on embeddings, residuals, scores and logits
as 1; gpt-oss's clamped SwiGLU as SwiGLU; vision towers as absent. Without a name there: the variants of GELU, and
Nemotron's norms, whose weights are kept less 1, as Gemma's are.

`read_lora` reads adapters as PEFT writes them: an adapter_config.json as a `Lora`, as strictly.

Source: `configuration_*.py` and `modeling_*.py` of transformers 4.57 and 5.24, whose parameter counts a test compares;
`LoraConfig` of github.com/huggingface/peft (0.21.2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError, closest, is_count, is_number, refuse, shown, typed
from minitrain.files import StrPath, read_json
from minitrain.workloads.mixers import LatentAttention, LinearAttention, SparseAttention
from minitrain.workloads.shapes import Lora

_ABSENT = object()
_ALIKE = 0.85  # ratio of `difflib`: a letter or two

_TABLES: Mapping[str, Any] = json.loads(files("minitrain.workloads").joinpath("hugging_face.json").read_text("utf-8"))
_NO_BEARING: Mapping[str, list[str]] = _TABLES["no_bearing"]
"""Keys of every config, and of families, that say nothing about shapes: generation, initialisation, bookkeeping."""


class ConfigReader:
    """A config; `faults` says what is wrong, by key.

    Args:
        config: the config's keys and values.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()
        self.faults: dict[str, str] = {}

    def _value(self, key: str, default: Any, expected: str, accept: Callable[[Any], bool]) -> Any:
        """Return a key's value or its default; a fault unless it is accepted."""
        self._read.add(key)
        value = self._config.get(key, default)
        if value is _ABSENT:
            self.faults[key] = f"{key} is missing: expected {expected}"
        elif not accept(value):
            self.faults[key] = f"{key} must be {expected}, got {shown(value)}"
        else:
            return value
        return None

    def count(self, key: str, default: Any = _ABSENT, least: int = 1) -> Any:
        """Return a count."""
        return self._value(key, default, f"an integer of at least {least}", lambda value: is_count(value, least))

    def optional_count(self, key: str, default: Any = None, least: int = 1) -> Any:
        """Return a count or None."""
        return self._value(key, default, "an integer or null", lambda value: value is None or is_count(value, least))

    def positive(self, key: str, default: Any = _ABSENT) -> Any:
        """Return a positive number."""
        return self._value(key, default, "a positive number", lambda value: is_number(value) and value > 0)

    def optional_positive(self, key: str, default: float | None = None) -> Any:
        """Return a positive number or None."""
        return self._value(
            key, default, "a positive number or null", lambda value: value is None or (is_number(value) and value > 0)
        )

    def object(self, key: str) -> Mapping[str, Any]:
        """Return an object; an empty one where there is none."""
        return self._value(key, None, "an object", lambda value: value is None or isinstance(value, Mapping)) or {}

    def layers(self, key: str, default: Sequence[int] = ()) -> Any:
        """Return a list of layers."""
        expected = "a list of layers from 0"
        return self._value(
            key, default, expected, lambda value: isinstance(value, Sequence) and all(is_count(one, 0) for one in value)
        )

    def flag(self, key: str, *, default: bool) -> Any:
        """Return true or false."""
        return self._value(key, default, "true or false", lambda value: isinstance(value, bool))

    def probability(self, key: str, default: float) -> Any:
        """Return a number in [0, 1)."""
        return self._value(
            key, default, "a number in [0, 1)", lambda value: isinstance(value, int | float) and 0 <= value < 1
        )

    def only(self, key: str, default: Any, *modelled: Any) -> Any:
        """Return a value of which only some can be modelled."""
        listed = " or ".join(json.dumps(value) for value in modelled)
        return self._value(key, default, f"{listed}, since others are not modelled", lambda value: value in modelled)

    def kinds_of_layers(self, key: str, *kinds: str) -> Any:
        """Return a kind for each layer, or None where they are not listed."""
        num_layers = self.count("num_hidden_layers")
        return self._value(
            key,
            None,
            f"{' or '.join(map(json.dumps, kinds))} for each layer, since others are not modelled",
            lambda value: (
                value is None
                or (isinstance(value, list) and len(value) == num_layers and {*map(str, value)} <= {*kinds})
            ),
        )

    def moe_layers(self, listed: str = "", **keys: Sequence[Any]) -> Any:
        """Return the layers with experts.

        Args:
            listed: the key that lists them, if there is one.
            keys: the keys, each with its default, of the `first` such layer and of the `last`, -1 for that of all; of
                their `step`, which counts from 1; and of those that are `dense` in spite of it.
        """
        num_layers = self.count("num_hidden_layers") or 0
        of_each = {"first": ("", 0), "last": ("", -1), "step": ("", 1)} | keys
        first, last, step = (
            self._value(key, default, "an integer", lambda value: is_count(value, -1)) if key else default
            for key, default in (of_each["first"], of_each["last"], of_each["step"])
        )
        dense = self.layers(keys["dense"][0]) if "dense" in keys else ()
        kinds = self.kinds_of_layers("mlp_layer_types", "dense", "sparse")
        if listed and listed in self._config:
            return self.layers(listed)
        if kinds is not None:
            return [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
        if None in (first, last, step, dense):
            return None
        end = num_layers if last == -1 else min(last + 1, num_layers)
        return [layer for layer in range(max(first, 0), end) if layer not in dense and not (layer + 1) % max(step, 1)]

    def times(self, key: str, default: int, of: Sequence[Any]) -> Any:
        """Return how often a size, 0 for none, has another, which it must be a multiple of."""
        least, size = self.count(of[0], of[1]) or 1, self.count(key, default, 0) or 0
        if size % least:
            self.faults[key] = (
                f"{key} must be a multiple of {of[0]} ({least}), since others are not modelled, got {size}"
            )
        return size // least

    def same(self, key: str, default: Any = _ABSENT, least: int = 1) -> Any:
        """Return a count, which may be listed for each layer if it is that of all."""
        listed = self._config.get(key, default)
        if isinstance(listed, list) and len({*map(str, listed)}) == 1:
            self._config = {**self._config, key: listed[0]}
        return self.count(key, default, least)

    def share(self, key: str, of: str) -> Any:
        """Return a size as a share of another, or 1 where it is not given."""
        part, whole = self.optional_count(key), self.optional_count(of)
        return part / whole if part and whole else 1.0

    def mapped(self, key: str, of: Sequence[tuple[Any, Any]]) -> Any:
        """Return what a value stands for, of pairs of both; the first where the key is absent."""
        known = {json.dumps(value): made for value, made in of}
        return known.get(json.dumps(self.only(key, of[0][0], *(value for value, _ in of))))

    def rename(self, names: Mapping[str, str]) -> None:
        """Call keys as others do; a dot leads to those within another."""
        within = {name.partition(".")[0] for name in names if "." in name}
        for outer in within:
            inner = self.object(outer)
            self._config = {**self._config, **{f"{outer}.{key}": value for key, value in inner.items()}}
        self._config = {names.get(key, key): value for key, value in self._config.items()}

    def blocks(self, known: Mapping[str, str]) -> list[str]:
        """Return what each layer is, of a pattern of letters or a list of words, which say how many there are."""
        expected = f"a list or a string of {', '.join(map(json.dumps, known))}, since others are not modelled"
        given = self._value("hybrid_override_pattern", "", expected, lambda value: isinstance(value, str))
        listed = self._value(
            "layers_block_type",
            [*(given or "")],
            expected,
            lambda value: isinstance(value, list) and bool(value) and all(str(one) in known for one in value),
        )
        self._config = {"num_hidden_layers": len(listed or ()), **self._config}
        if listed is not None:
            self.only("num_hidden_layers", len(listed), len(listed))
        return [known[one] for one in listed or ()]

    def has(self, key: str) -> bool:
        """Return whether there is a key."""
        return key in self._config

    def refuse_the_rest(self, family: str, ignore: Sequence[str]) -> None:
        """Note a fault for every key that was not read."""
        known = self._read.union(_NO_BEARING["transformers"], _NO_BEARING.get(family, ()), ignore)
        for key in self._config:
            if key not in known:
                close = get_close_matches(key[:60], self._read - self._config.keys(), 1, _ALIKE)
                meant = f"did you mean {close[0]}?" if close else f"if it changes no shape, pass ignore=({key!r:.60},)"
                self.faults[key] = f"{key:.60} is not known for {family}: {meant}"


Fields = dict[str, Any]

GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")


def usual(config: ConfigReader, **defaults: int) -> Fields:
    """Read what most families call alike."""
    keys = {
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "vocab_size": "vocab_size",
        "seq_len": "max_position_embeddings",
    }
    return {name: config.count(key, *_given(defaults, key)) for name, key in keys.items()}


def _given(defaults: Mapping[str, int], key: str) -> list[int]:
    return [defaults[key]] if key in defaults else []


def rotary(
    config: ConfigReader, theta: float = 10000.0, share_key: str = "partial_rotary_factor", share: float = 1.0
) -> Fields:
    """Read rotary positions, with what scales their frequencies."""
    newer = config.object("rope_parameters")
    scaling = {**newer, **config.object("rope_scaling")}
    for key in sorted(scaling.keys() - _OF_SCALING):
        config.faults["rope_scaling"] = (
            f"rope_scaling.{key:.60} is not known; {closest(key, _OF_SCALING) or 'leave it out'}"
        )
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    is_of_llama = kind == "llama3" and all(scaling.get(key, value) == value for key, value in _LLAMA_SCALING.items())
    return {
        "positions": "rotary",
        "rope_scaling": scaling.get("factor", 8.0) if is_of_llama else 1.0,
        "rope_factor": _yarn_factor(scaling) if kind == "yarn" else 1.0,
        "rope_theta": config.positive("rope_theta", newer.get("rope_theta", theta)),
        "rope_share": config.positive(share_key, newer.get(share_key, share)),
        "taken_as": () if is_of_llama or kind in (None, "default") else (f"rope_scaling {kind}",),
    }


def _yarn_factor(scaling: Mapping[str, Any]) -> float:
    """Return what YaRN multiplies queries and keys by (Peng et al. 2023, section 3.4), as transformers has it.

    >>> round(_yarn_factor({"factor": 32.0}), 4), _yarn_factor({"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0})
    (1.3466, 1.0)
    """
    given = scaling.get("attention_factor")
    scale, of_scores = scaling.get("mscale"), scaling.get("mscale_all_dim")
    log = math.log(max(1.0, scaling.get("factor", 1.0)))
    whole = (0.1 * scale * log + 1) / (0.1 * of_scores * log + 1) if scale and of_scores else 0.1 * log + 1
    return float(given or whole)


_OF_SCALING = frozenset(_TABLES["of_scaling"])
_LLAMA_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def gated(config: ConfigReader, **defaults: int) -> Fields:
    """Read a model with rmsnorm, rotary positions, and three matrices in its MLP."""
    return {
        **usual(config, **defaults),
        **rotary(config),
        "ffn_hidden_size": (config.optional_count if config.has("moe_intermediate_size") else config.count)(
            "intermediate_size"
        ),
        "norm": "rmsnorm",
        "norm_epsilon": config.positive("rms_norm_eps", 1e-6),
        "bias": False,
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def like_llama(config: ConfigReader) -> Fields:
    """Read a model with SwiGLU, rmsnorm, rotary positions and no biases."""
    config.only("hidden_act", "silu", "silu", "swish")
    return {**gated(config), "mlp": "swiglu", "tied_embeddings": config.flag("tie_word_embeddings", default=False)}


def attention_bias(config: ConfigReader, *, default: bool = False) -> Fields:
    """Read whether queries, keys, values and the output have biases."""
    bias = config.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "output_bias": bias}


def windows(
    config: ConfigReader,
    fields: Fields,
    layers: Callable[[int], bool],
    default: int | None = None,
    key: str = "sliding_window",
    kind: str = "sliding_attention",
    rotated: str = "",
) -> Fields:
    """Read the window and its layers, by default those of which something holds, or that have rotary positions."""
    window = config.optional_count(key, default, least=0)
    kinds = config.kinds_of_layers("layer_types", "full_attention", kind)
    usual = [layer for layer in range(fields["num_layers"] or 0) if layers(layer)]
    if rotated and (listed := config.layers(rotated)):
        usual = [layer for layer, is_rotated in enumerate(listed) if is_rotated]
    found = usual if kinds is None else [layer for layer, one in enumerate(kinds) if one == kind]
    return {"window": window, "window_layers": found} if found and window else {"window": None, "window_layers": ()}


def _like_gpt(config: ConfigReader, activation_key: str, activation: str, epsilon_key: str, *, tied: bool) -> Fields:
    """Read a model with two matrices in its MLP, layernorm and biases."""
    function = config.only(activation_key, activation, *GELUS, "relu")
    return {
        "mlp": "relu" if function == "relu" else "gelu",
        "norm": "layernorm",
        "norm_epsilon": config.positive(epsilon_key, 1e-5),
        "bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", default=tied),
    }


def nemotron(config: ConfigReader) -> Fields:
    """Read Nemotron 4 and Minitron: layernorm, and the square of ReLU."""
    config.only("hidden_act", "relu2", "relu2")
    return {
        **usual(config),
        **rotary(config),
        **attention_bias(config),
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "head_dim": config.optional_count("head_dim"),
        "rope_share": config.positive("partial_rotary_factor", 0.5),
        "ffn_hidden_size": config.count("intermediate_size"),
        "mlp": "relu2",
        "norm": "layernorm",
        "norm_epsilon": config.positive("norm_eps", 1e-5),
        "bias": True,  # of the norms
        "mlp_bias": config.flag("mlp_bias", default=False),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def gpt2(config: ConfigReader) -> Fields:
    """Read GPT-2."""
    dropout = config.probability("resid_pdrop", 0.1)
    config.only("embd_pdrop", dropout, dropout)
    positions = config.count("n_positions")
    return {
        **_like_gpt(config, "activation_function", "gelu_new", "layer_norm_epsilon", tied=True),
        "num_layers": config.count("n_layer"),
        "hidden_size": config.count("n_embd"),
        "num_heads": config.count("n_head"),
        "vocab_size": config.count("vocab_size"),
        "seq_len": positions,
        "num_positions": positions,
        "ffn_hidden_size": config.optional_count("n_inner"),
        "positions": "learned",
        "dropout": dropout,
        "attention_dropout": config.probability("attn_pdrop", 0.1),
    }


def gpt_neox(config: ConfigReader) -> Fields:
    """Read GPT-NeoX and Pythia."""
    positions = rotary(config, config.positive("rotary_emb_base", 10000.0), "rotary_pct")
    is_parallel = config.flag("use_parallel_residual", default=True)
    return {
        **_like_gpt(config, "hidden_act", "gelu", "layer_norm_eps", tied=False),
        **usual(config),
        **positions,
        **attention_bias(config, default=True),
        "rope_share": config.positive("rotary_pct", 0.25),
        "ffn_hidden_size": config.count("intermediate_size"),
        "dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "taken_as": (*positions["taken_as"], *(["parallel residual connections"] if is_parallel else [])),
    }


def opt(config: ConfigReader) -> Fields:
    """Read OPT, whose table of positions has two rows more than there are positions."""
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        config.only(key, True, True)
    config.only("_remove_final_layer_norm", False, False)
    fields = usual(config)
    config.only("word_embed_proj_dim", fields["hidden_size"], fields["hidden_size"])
    return {
        **_like_gpt(config, "activation_function", "relu", "layer_norm_eps", tied=True),
        **fields,
        "num_positions": fields["seq_len"] and fields["seq_len"] + 2,
        "ffn_hidden_size": config.count("ffn_dim"),
        "positions": "learned",
        "dropout": config.probability("dropout", 0.1),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def _phi3(config: ConfigReader) -> Fields:
    """Read Phi 3 and 4, which make queries, keys and values in one multiplication, and gate and up."""
    dropout = config.probability("resid_pdrop", 0.0)
    config.only("embd_pdrop", dropout, dropout)
    for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.only(bias, False, False)
    return {
        **like_llama(config),
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "window": config.optional_count("sliding_window"),
        "dropout": dropout,
    }


def _qwen(config: ConfigReader) -> Fields:
    """Read Qwen: Llama with windows in layers from some layer on, if in any."""
    fields = like_llama(config)
    first = config.count("max_window_layers", 28, least=0)
    has_windows = config.flag("use_sliding_window", default=False)
    return {**fields, **windows(config, fields, lambda layer: bool(has_windows) and layer >= (first or 0), 4096)}


def _gemma(config: ConfigReader, **defaults: int) -> Fields:
    """Read what Gemma 2 and 3 have in common: norms before and behind, and a gate with GELU."""
    config.only("hidden_activation", "gelu_pytorch_tanh", *GELUS)
    config.only("hidden_act", "gelu_pytorch_tanh", *GELUS)
    config.only("use_bidirectional_attention", False, False, None)
    fields = gated(config, **defaults)
    return {
        **fields,
        **attention_bias(config),
        "mlp": "geglu",
        "norm_placement": "both",
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
        "num_kv_heads": config.count("num_key_value_heads", 4),
        "head_dim": config.count("head_dim", 256),
        "taken_as": (*fields["taken_as"], "Gemma's factors on embeddings and scores"),
    }


def _gemma3_text(config: ConfigReader) -> Fields:
    """Read the language model of Gemma 3: norms of queries and keys, and a window in all but every sixth layer."""
    every = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
    fields = _gemma(config, num_attention_heads=8, vocab_size=262208, max_position_embeddings=131072)
    return {
        **fields,
        **rotary(config, 1000000.0),
        **windows(config, fields, lambda layer: bool((layer + 1) % (every or 1)), 4096),
        "qk_norm": "head",
        "score_cap": config.optional_positive("attn_logit_softcapping"),
        "logit_cap": config.optional_positive("final_logit_softcapping"),
        "taken_as": (*fields["taken_as"], "a rotary base of its own in layers with windows"),
    }


def _language_model(config: ConfigReader, family: str) -> Fields:
    """Read a model with a vision tower, of which the language model alone is taken."""
    given = config.object("text_config")
    inner, kind = ConfigReader(given), given.get("model_type", family)
    if kind not in (*FAMILIES, *_ROWS):
        config.faults["text_config"] = (
            f"text_config.model_type must be one that can be read by itself, got {shown(kind)}"
        )
        kind = family
    fields = _read(inner, kind)
    inner.refuse_the_rest(kind, ())
    config.faults |= {f"text_config.{key}": fault for key, fault in inner.faults.items()}
    return {**fields, "taken_as": (*fields["taken_as"], "its vision tower")}


def _deepseek(config: ConfigReader) -> Fields:
    """Read what DeepSeek-V2 and V3 have in common: latent attention, and experts after the first few layers."""
    config.only("attention_bias", False, False)
    config.only("moe_layer_freq", 1, 1)
    fields = like_llama(config)
    sizes = {
        "kv_rank": config.count("kv_lora_rank"),
        "rope_head_dim": config.count("qk_rope_head_dim"),
        "nope_head_dim": config.count("qk_nope_head_dim"),
        "value_head_dim": config.count("v_head_dim"),
        "query_rank": config.optional_count("q_lora_rank"),
    }
    return {**fields, "latent": None if config.faults else LatentAttention(**sizes)}


_BLOCKS = {"M": "linear", "*": "attention", "-": "mlp", "E": "moe", "mamba": "linear"}
_BLOCKS |= {"linear_attention": "linear", "full_attention": "attention", **{kind: kind for kind in ("mlp", "moe")}}
_BLOCKS["attention"] = "attention"


def _like_nemotron_h(config: ConfigReader) -> Fields:
    """Read Nemotron-H's layers, each of which is one mixer, MLP or layer of experts."""
    kinds = config.blocks(_BLOCKS)
    places = {kind: [layer for layer, one in enumerate(kinds) if one == kind] for kind in _BLOCKS.values()}
    num_experts = config.count("n_routed_experts", 8)
    return {
        **gated(config),
        "linear_layers": places["linear"],
        "without_mixer": sorted((*places["mlp"], *places["moe"])),
        "without_mlp": sorted((*places["linear"], *places["attention"])),
        "moe_layers": places["moe"],
        "num_experts": num_experts if places["moe"] else 0,
    }


FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = MappingProxyType(
    {
        "like_llama": like_llama,
        "gated": gated,
        "like_qwen": _qwen,
        "like_deepseek": _deepseek,
        "like_gemma": _gemma,
        "like_nemotron_h": _like_nemotron_h,
        "gpt2": gpt2,
        "gpt_neox": gpt_neox,
        "opt": opt,
        "gemma3_text": _gemma3_text,
        "phi3": _phi3,
        "nemotron": nemotron,
    }
)
"""How a `model_type` is read, or what several have in common."""

_ROWS: Mapping[str, Any] = _TABLES["families"]
"""How others differ from one of these, or from one another.

A row names what it is `like`, and what function reads the rest where that is another (`root`); keys that are
`renamed`; the values that keys must have, the first where they are absent (`only`), or that list 1 for all layers
(`ones`); keys of `factors`; arguments of `rotary`; the window's default, and of how many layers the last has none
(`windows`); the sizes of a `linear` attention or of a `sparse` one's indexer; and of `fields` a value, or the method of
`ConfigReader` and the key that give it, with its further arguments.
"""


def _row(family: str) -> Mapping[str, Any]:
    """Return a row with what it has of those that it is like."""
    row: Mapping[str, Any] = _ROWS[family]
    if row["like"] in FAMILIES:
        return row
    base = _row(row["like"])
    parts = {part: {**base.get(part, {}), **row.get(part, {})} for part in ("only", "fields", "rotary")}
    taken_as = [*base.get("taken_as", ()), *row.get("taken_as", ())]
    return {**base, **row, **parts, "like": row.get("root", base["like"]), "taken_as": taken_as}


def _read(config: ConfigReader, family: str) -> Fields:
    """Return the fields of a family's config."""
    if family in FAMILIES:
        return FAMILIES[family](config)
    if "language_model" in _ROWS[family]:
        return _language_model(config, _ROWS[family]["language_model"])
    row = _row(family)
    config.rename(row.get("renamed", {}))
    fields = FAMILIES[row["like"]](config)
    for key, values in row.get("only", {}).items():
        config.only(key, *values)
    fields |= {**rotary(config, **row.get("rotary", {})), "taken_as": fields["taken_as"]}
    if "windows" in row:
        default, every, *names = row["windows"]
        fields |= windows(config, fields, lambda layer: bool((layer + 1) % every), default, *names)
    fields |= {name: _one(config, how) for name, how in row.get("fields", {}).items()}
    fields = {**_mixers(config, row), **fields}
    if fields.get("num_experts") == 0:
        fields = {name: value for name, value in fields.items() if name not in _OF_EXPERTS}
    return {**fields, "taken_as": (*fields["taken_as"], *row.get("taken_as", ()), *_factors(config, row))}


_OF_EXPERTS = ("experts_per_token", "num_shared_experts", "moe_ffn_hidden_size", "moe_layers", "router_bias")


def _mixers(config: ConfigReader, row: Mapping[str, Any]) -> Fields:
    """Read what some layers have instead of attention, or to choose its keys."""
    for key in row.get("ones", ()):
        config.same(key, 1)
    if "linear" in row:
        return _linear(config, row["linear"])
    if "sparse" not in row:
        return {}
    sizes = {name: config.count(*how) for name, how in row["sparse"].items()}
    config.kinds_of_layers("layer_types", "indexed_attention")
    config.kinds_of_layers("indexer_types", "full")
    return {"sparse": None if config.faults else SparseAttention(**sizes)}


def _linear(config: ConfigReader, row: Mapping[str, Any]) -> Fields:
    """Read a linear attention and its layers, as the config lists them, or all but each that is a multiple of one."""
    sizes = {
        name: config.count(*how) if isinstance(how, list) else _one(config, how) for name, how in row["sizes"].items()
    }
    num_layers, every = config.count("num_hidden_layers") or 0, config.count(*row["every"]) or 1
    kinds = config.kinds_of_layers("layer_types", *_ATTENTIONS, *_LINEAR)
    listed = config.layers("attn_type_list")
    layers = [layer for layer in range(num_layers) if (not listed[layer] if listed else (layer + 1) % every)]
    if attentions := config.layers("full_attn_layers"):  # from 1
        layers = [layer for layer in range(num_layers) if layer + 1 not in attentions]
    if kinds is not None:
        layers = [layer for layer, kind in enumerate(kinds) if kind in _LINEAR]
    return {"linear": None if config.faults else LinearAttention(**sizes), "linear_layers": layers}


_ATTENTIONS, _LINEAR = ("full_attention", "attention"), ("linear_attention", "mamba")


def _one(config: ConfigReader, how: Any) -> Any:
    """Return a field's value, as a row says where it comes from."""
    if not isinstance(how, dict):
        return how
    (method, key), *more = how.items()
    return getattr(config, method)(*([key] if key else []), **dict(more))


def _factors(config: ConfigReader, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the factors that a config has, other than 1."""
    for key in row.get("factors", ()):
        factor = config.positive(key, 1.0)
        if factor not in (None, 1.0):
            yield f"{key} {factor:g}"


MODEL_TYPES = tuple(name for name in (*_ROWS, *FAMILIES) if not name.startswith("like_") and name != "gated")
"""Each `model_type` that can be read."""

USUAL_SEQ_LEN = 8192
"""Tokens of a sample where nobody says how many: those of most of the pre-training of Llama 3 and its like."""


def fields_of(source: StrPath | Mapping[str, Any], ignore: Sequence[str] = ()) -> Fields:
    """Return the fields of a `Transformer` that a config describes.

    Args:
        source: the path of a config.json or of its folder, or the config itself.
        ignore: further keys that have no bearing on shapes.

    Raises:
        UsageError: the file cannot be read, or there are keys that cannot (fact: `keys`); all at once.
    """
    label, config = ("config", source) if isinstance(source, Mapping) else loaded(source)
    reader = ConfigReader(config)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in MODEL_TYPES:
        known, why = ", ".join(MODEL_TYPES), _TABLES["refused"].get(family if isinstance(family, str) else "")
        hint = closest(family, MODEL_TYPES) or "describe the model with mt.Transformer(...)"
        hint = f"it has {why}, which are not modelled; mt.Transformer(...) describes what is near" if why else hint
        raise refuse(label, [f"model_type must be one of {known}, got {shown(family)}; {hint}"], keys=("model_type",))
    for key, default in (("is_encoder_decoder", False), ("add_cross_attention", False), ("pruned_heads", {})):
        reader.only(key, default, default, None)
    _require_trainable(reader)
    fields = _read(reader, family)
    reader.refuse_the_rest(family, ignore)
    if reader.faults:
        raise refuse(label, list(reader.faults.values()), keys=tuple(reader.faults))
    names = {"name": _name(config, family), "source": f"Hugging Face config {label}"}
    return {"attention": "flash", **fields, **_lengths(fields["seq_len"]), **names}


def _require_trainable(config: ConfigReader) -> None:
    """Note a fault for weights that are stored in integers; those in FP8 and MXFP4 were trained in more bits."""
    method = config.object("quantization_config").get("quant_method")
    if method not in (None, "fp8", "mxfp4"):
        config.faults["quantization_config"] = (
            f"quantization_config.quant_method must be fp8 or mxfp4, got {shown(method)}: others have no training here"
        )


def _lengths(longest: int) -> Fields:
    """Return the length of samples, and the longest that there may be where that is longer."""
    return {"seq_len": min(longest, USUAL_SEQ_LEN), "max_seq_len": longest if longest > USUAL_SEQ_LEN else None}


def _name(config: Mapping[str, Any], family: str) -> str:
    """Return the name that a config has, without the folder or the owner before it."""
    name = config.get("_name_or_path") or config.get("name_or_path")
    return name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else family


def loaded(source: StrPath, name: str = "config.json") -> tuple[str, Mapping[str, Any]]:
    """Return a file's path as text and the JSON object that it holds."""
    try:
        path = Path(source)
        path = path / name if path.is_dir() else path
        data = read_json(path, what="config")
    except TypeError:
        raise UsageError(
            f"the config must be a path or a mapping, got {shown(source)}; of a transformers config pass .to_dict()"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: not JSON, not UTF-8, a null byte in the path
        wanted = f"{'an' if name.startswith('a') else 'a'} {name} that can be read"
        raise UsageError(f"{source} must be {wanted}: {error}; check the path") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold a JSON object, got {shown(data)}; is it a config?")
    return str(path), data


TARGETS: Mapping[str, str] = MappingProxyType(_TABLES["targets"])
"""The matrices of PEFT's `target_modules`, by what they are called here."""

_ALL = "all-linear"
"""What PEFT calls all matrices but the head's."""

_NOTHING_ELSE: Mapping[str, Sequence[Any]] = _TABLES["nothing_else"]
"""What may be there and must not say anything else: all else trains more, or other weights in other layers."""


@typed
def read_lora(source: StrPath | Mapping[str, Any]) -> Lora:
    """Return the adapters that a config of PEFT describes.

    Args:
        source: the path of an adapter_config.json or of its folder, or the config itself.

    Raises:
        UsageError: the file cannot be read, or there are keys that cannot (fact: `keys`); all at once.
    """
    label, config = ("config", source) if isinstance(source, Mapping) else loaded(source, "adapter_config.json")
    reader = ConfigReader(config)
    if config.get("peft_type", "LORA") != "LORA":
        fault = f'peft_type must be "LORA", since other adapters are not modelled, got {shown(config["peft_type"])}'
        raise refuse(label, [fault], keys=("peft_type",))
    for key, modelled in _NOTHING_ELSE.items():
        reader.only(key, modelled[0], *modelled)
    rank, alpha = reader.count("r", 8), reader.positive("lora_alpha", 8)
    if reader.flag("use_rslora", default=False) and not reader.faults:
        alpha *= rank**0.5  # alpha / root of the rank (Kalajdzievski 2023)
    targets = _targets(reader, config.get("target_modules"))
    reader.refuse_the_rest("PEFT's LoRA", ())
    if reader.faults:
        raise refuse(label, list(reader.faults.values()), keys=tuple(reader.faults))
    return Lora(rank=rank, alpha=float(alpha), targets=targets)


def _targets(reader: ConfigReader, given: Any) -> tuple[str, ...] | None:
    """Return which matrices have adapters; None for all."""
    if given == _ALL:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        reader.faults["target_modules"] = (
            f'target_modules must be "{_ALL}" or a list of {", ".join(TARGETS)}, got {shown(given)}: patterns of names '
            "are not read"
        )
        return None
    unknown = [name for name in given if not isinstance(name, str) or name not in TARGETS]
    for name in unknown[:1]:
        hint = closest(name, TARGETS) or f"known are {', '.join(TARGETS)}"
        reader.faults["target_modules"] = (
            f"target_modules has {shown(name)}, and matrices of experts, of routers and fused ones have no adapters "
            f"here; {hint}"
        )
    return None if unknown else tuple(dict.fromkeys(TARGETS[name] for name in sorted(given)))
