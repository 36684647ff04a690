"""Reading what the configs of many families of Hugging Face's transformers call alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from minitrain.workloads.config_reader import ConfigReader

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


def rotary(config: ConfigReader, theta: float = 10000.0, share_key: str = "partial_rotary_factor") -> Fields:
    """Read rotary positions, with what scales their frequencies."""
    newer = config.object("rope_parameters")
    scaling = {**newer, **config.object("rope_scaling")}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    is_of_llama = kind == "llama3" and all(scaling.get(key, value) == value for key, value in _LLAMA_SCALING.items())
    return {
        "positions": "rotary",
        "rope_scaling": scaling.get("factor", 8.0) if is_of_llama else 1.0,
        "rope_theta": config.positive("rope_theta", newer.get("rope_theta", theta)),
        "rope_share": config.positive(share_key, newer.get(share_key, 1.0)),
        "taken_as": () if is_of_llama or kind in (None, "default") else (f"rope_scaling {kind}",),
    }


_LLAMA_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def factors(config: ConfigReader, *keys: str) -> Iterator[str]:
    """Yield the factors that a config has, other than 1."""
    for key in keys:
        factor = config.positive(key, 1.0)
        if factor not in (None, 1.0):
            yield f"{key} {factor:g}"


def gated(config: ConfigReader, **defaults: int) -> Fields:
    """Read a model with rmsnorm, rotary positions, and three matrices in its MLP."""
    return {
        **usual(config, **defaults),
        **rotary(config),
        "ffn_hidden_size": config.count("intermediate_size"),
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


def heads(config: ConfigReader, *default: int) -> Fields:
    """Read heads of keys and values, and a size of heads of its own."""
    if default:
        return {"num_kv_heads": config.count("num_key_value_heads", *default)}
    return {
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "head_dim": config.optional_count("head_dim"),
    }


def windows(config: ConfigReader, fields: Fields, layers: Callable[[int], bool], default: int | None = None) -> Fields:
    """Read the window and its layers, by default those of which something holds."""
    window = config.optional_count("sliding_window", default)
    usual = [layer for layer in range(fields["num_layers"] or 0) if layers(layer)]
    found = config.windowed_layers(fields["num_layers"], usual)
    return {"window": window, "window_layers": found} if found and window else {"window": None, "window_layers": ()}
