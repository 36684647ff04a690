"""Reading configs of Hugging Face's transformers: the fields of a `Transformer` that a config.json describes.

A key is read, or it is known to have no bearing on parameters, FLOPs and memory (how weights are initialised, how text
is generated), or it is a fault: what cannot be modelled is never passed over in silence. Keys that are absent have the
values that transformers gives them; sizes must be there.

Three things are read as something else with the same parameters and multiplications: GPT-NeoX's parallel residual
connections as one after the other, rotary embeddings of a part of each head as of all of it, and the variants of GELU
as one. DeepSeek's multi-token prediction module is left out, as its published parameter counts do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.workloads.config_reader import ConfigReader
from minitrain.workloads.field_faults import closest, refuse, shown

Fields = dict[str, Any]

_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")


def fields_of(source: str | os.PathLike[str] | Mapping[str, Any], ignore: Sequence[str] = ()) -> Fields:
    """Return the fields of a `Transformer` that a config describes.

    Args:
        source: the path of a config.json or of its folder, or the config itself.
        ignore: further keys that have no bearing on shapes.

    Raises:
        UsageError: the file cannot be read, or there are keys that cannot (fact: `keys`); all at once.
    """
    label, config = ("config", source) if isinstance(source, Mapping) else _loaded(source)
    reader = ConfigReader(config)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(FAMILIES)
        hint = closest(family, FAMILIES) or "describe the model with mt.Transformer(...)"
        raise refuse(label, [f"model_type must be one of {known}, got {shown(family)}; {hint}"], keys=("model_type",))
    for key, default in (("is_encoder_decoder", False), ("add_cross_attention", False), ("pruned_heads", {})):
        reader.only(key, default, default, None)
    fields = FAMILIES[family](reader)
    reader.refuse_the_rest(family, ignore)
    if reader.faults:
        raise refuse(label, list(reader.faults.values()), keys=tuple(reader.faults))
    return {"attention": "flash", **fields, "name": _name(config, family), "source": f"Hugging Face config {label}"}


def _name(config: Mapping[str, Any], family: str) -> str:
    """Return the name that a config has, without the folder or the owner before it."""
    name = config.get("_name_or_path") or config.get("name_or_path")
    return name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else family


def _loaded(source: str | os.PathLike[str]) -> tuple[str, Mapping[str, Any]]:
    """Return a file's path as text and the JSON object that it holds."""
    try:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except TypeError:
        raise UsageError(
            f"the config must be a path or a mapping, got {shown(source)}; of a transformers config pass .to_dict()"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: not JSON, not UTF-8, a null byte in the path
        raise UsageError(f"{source} must be a config.json that can be read: {error}; check the path") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold a JSON object, got {shown(data)}; is it a config?")
    return str(path), data


def _usual(config: ConfigReader) -> Fields:
    """Read what most families call alike."""
    return {
        "num_layers": config.count("num_hidden_layers"),
        "hidden_size": config.count("hidden_size"),
        "num_heads": config.count("num_attention_heads"),
        "vocab_size": config.count("vocab_size"),
        "seq_len": config.count("max_position_embeddings"),
    }


def _like_llama(config: ConfigReader) -> Fields:
    """Read a model with SwiGLU, rmsnorm, rotary positions and no biases."""
    config.only("hidden_act", "silu", "silu", "swish")
    return {
        **_usual(config),
        "ffn_hidden_size": config.count("intermediate_size"),
        "mlp": "swiglu",
        "norm": "rmsnorm",
        "positions": "rotary",
        "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def _llama(config: ConfigReader) -> Fields:
    """Read Llama 1 to 3."""
    bias = config.flag("attention_bias", default=False)
    return {
        **_like_llama(config),
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "head_dim": config.optional_count("head_dim"),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": config.flag("mlp_bias", default=False),
    }


def _mistral(config: ConfigReader) -> Fields:
    """Read Mistral, with its window."""
    return {
        **_like_llama(config),
        "num_kv_heads": config.count("num_key_value_heads", 8),
        "head_dim": config.optional_count("head_dim"),
        "window": config.optional_count("sliding_window", 4096),
    }


def _mixtral(config: ConfigReader) -> Fields:
    """Read Mixtral: Mistral with experts in every layer, and no window unless it says so."""
    window = config.optional_count("sliding_window")
    return {
        **_mistral(config),
        "window": window,
        "num_experts": config.count("num_local_experts", 8),
        "experts_per_token": config.count("num_experts_per_tok", 2),
    }


def _qwen2(config: ConfigReader) -> Fields:
    """Read Qwen 2 and 2.5: Llama with biases for queries, keys and values."""
    config.only("use_sliding_window", False, False)
    config.only_full_attention("layer_types")
    config.pass_over("sliding_window", "max_window_layers", "use_mrope")
    return {
        **_like_llama(config),
        "num_kv_heads": config.count("num_key_value_heads", 32),
        "qkv_bias": True,
        "output_bias": False,
    }


def _deepseek_v3(config: ConfigReader) -> Fields:
    """Read DeepSeek-V3 and R1: latent attention, and experts after the first few layers."""
    from minitrain.workloads.latent_attention import LatentAttention  # noqa: PLC0415 - beside its only use

    config.only("attention_bias", False, False)
    config.only("moe_layer_freq", 1, 1)
    config.only("topk_method", "noaux_tc", "noaux_tc")
    config.pass_over(
        "aux_loss_alpha", "ep_size", "head_dim", "n_group", "norm_topk_prob", "num_key_value_heads", "qk_head_dim",
        "num_nextn_predict_layers", "routed_scaling_factor", "scoring_func", "seq_aux", "topk_group",
    )  # fmt: skip
    fields = _like_llama(config)
    dense = config.count("first_k_dense_replace", least=0)
    sizes = {
        "kv_rank": config.count("kv_lora_rank"),
        "rope_head_dim": config.count("qk_rope_head_dim"),
        "nope_head_dim": config.count("qk_nope_head_dim"),
        "value_head_dim": config.count("v_head_dim"),
        "query_rank": config.optional_count("q_lora_rank"),
    }
    return {
        **fields,
        "latent": None if config.faults else LatentAttention(**sizes),
        "num_experts": config.count("n_routed_experts"),
        "experts_per_token": config.count("num_experts_per_tok"),
        "num_shared_experts": config.count("n_shared_experts", least=0),
        "moe_ffn_hidden_size": config.count("moe_intermediate_size"),
        "moe_layers": None if config.faults else range(dense, fields["num_layers"]),
        "router_bias": True,
    }


def _like_gpt(config: ConfigReader, activation_key: str, activation: str, *, tied: bool) -> Fields:
    """Read a model with two matrices in its MLP, layernorm and biases."""
    function = config.only(activation_key, activation, *_GELUS, "relu")
    return {
        "mlp": "relu" if function == "relu" else "gelu",
        "norm": "layernorm",
        "bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", default=tied),
    }


def _gpt2(config: ConfigReader) -> Fields:
    """Read GPT-2."""
    config.pass_over(
        "n_ctx", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    dropout = config.probability("resid_pdrop", 0.1)
    config.only("embd_pdrop", dropout, dropout)
    positions = config.count("n_positions")
    return {
        **_like_gpt(config, "activation_function", "gelu_new", tied=True),
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


def _gpt_neox(config: ConfigReader) -> Fields:
    """Read GPT-NeoX and Pythia."""
    bias = config.flag("attention_bias", default=True)
    return {
        **_like_gpt(config, "hidden_act", "gelu", tied=False),
        **_usual(config),
        "ffn_hidden_size": config.count("intermediate_size"),
        "positions": "rotary",
        "qkv_bias": bias,
        "output_bias": bias,
        "dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def _opt(config: ConfigReader) -> Fields:
    """Read OPT, whose table of positions has two rows more than there are positions."""
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        config.only(key, True, True)
    config.only("_remove_final_layer_norm", False, False)
    config.pass_over("activation_dropout", "layerdrop")
    fields = _usual(config)
    config.only("word_embed_proj_dim", fields["hidden_size"], fields["hidden_size"])
    return {
        **_like_gpt(config, "activation_function", "relu", tied=True),
        **fields,
        "num_positions": fields["seq_len"] and fields["seq_len"] + 2,
        "ffn_hidden_size": config.count("ffn_dim"),
        "positions": "learned",
        "dropout": config.probability("dropout", 0.1),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "qwen2": _qwen2,
        "mixtral": _mixtral,
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "opt": _opt,
        "deepseek_v3": _deepseek_v3,
    }
)
"""How each `model_type` is read."""
