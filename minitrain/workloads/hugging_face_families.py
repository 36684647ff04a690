"""How the config of each family of Hugging Face's transformers is read.

Read as something else with the same parameters and multiplications, and named in `taken_as`: GPT-NeoX's parallel
residual connections as one after the other; rotary frequencies that are scaled for longer contexts as they were before,
and those of layers with windows as those of the others; Granite's and Gemma's factors on embeddings, residuals, scores
and logits as 1; gpt-oss's clamped SwiGLU as SwiGLU; the vision tower of Gemma 3 as absent, and DeepSeek's multi-token
prediction module too, as published parameter counts do. Without a name there: the variants of GELU, and Nemotron's
norms, whose weights are kept less 1, as Gemma's are.

Source: `configuration_*.py` and `modeling_*.py` of transformers 4.57, whose parameter counts a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from minitrain.workloads.config_reader import ConfigReader
from minitrain.workloads.hugging_face_fields import (
    GELUS,
    Fields,
    attention_bias,
    factors,
    gated,
    heads,
    like_llama,
    rotary,
    windows,
)
from minitrain.workloads.hugging_face_gpts import gpt2, gpt_neox, nemotron, opt
from minitrain.workloads.latent_attention import LatentAttention


def _llama(config: ConfigReader) -> Fields:
    """Read Llama 1 to 3."""
    return {
        **like_llama(config),
        **heads(config),
        **attention_bias(config),
        "mlp_bias": config.flag("mlp_bias", default=False),
    }


def _granite(config: ConfigReader) -> Fields:
    """Read Granite 3: Llama with factors."""
    fields = _llama(config)
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    return {**fields, "taken_as": (*fields["taken_as"], *factors(config, *names))}


def _mistral(config: ConfigReader) -> Fields:
    """Read Mistral, with its window."""
    return {
        **like_llama(config),
        **heads(config, 8),
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


def _phi3(config: ConfigReader) -> Fields:
    """Read Phi 3 and 4, which make queries, keys and values in one multiplication, and gate and up."""
    config.pass_over("original_max_position_embeddings")
    dropout = config.probability("resid_pdrop", 0.0)
    config.only("embd_pdrop", dropout, dropout)
    return {
        **like_llama(config),
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "window": config.optional_count("sliding_window"),
        "dropout": dropout,
    }


def _windows_of_qwen(config: ConfigReader, fields: Fields) -> Fields:
    """Read Qwen's windows, which layers have from some layer on, if any do."""
    first = config.count("max_window_layers", 28, least=0)
    has_windows = config.flag("use_sliding_window", default=False)
    return windows(config, fields, lambda layer: bool(has_windows) and layer >= (first or 0), 4096)


def _qwen2(config: ConfigReader) -> Fields:
    """Read Qwen 2 and 2.5: Llama with biases for queries, keys and values."""
    config.pass_over("use_mrope")
    fields = like_llama(config)
    return {
        **fields,
        **_windows_of_qwen(config, fields),
        **heads(config, 32),
        "qkv_bias": True,
        "output_bias": False,
    }


def _qwen3(config: ConfigReader) -> Fields:
    """Read Qwen 3: Llama with norms of queries and keys."""
    fields = like_llama(config)
    return {
        **fields,
        **_windows_of_qwen(config, fields),
        **heads(config, 32),
        **attention_bias(config),
        "head_dim": config.optional_count("head_dim", 128),
        "qk_norm": "head",
    }


def _qwen3_moe(config: ConfigReader) -> Fields:
    """Read Qwen 3 with experts in some layers."""
    config.pass_over("norm_topk_prob")
    fields = _qwen3(config)
    step, dense = config.count("decoder_sparse_step", 1), config.layers("mlp_only_layers") or ()
    layers = range(fields["num_layers"] or 0)
    return {
        **fields,
        **heads(config, 4),
        "num_experts": config.count("num_experts", 128),
        "experts_per_token": config.count("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": config.count("moe_intermediate_size", 768),
        "moe_layers": [layer for layer in layers if layer not in dense and not (layer + 1) % (step or 1)],
    }


def _olmo2(config: ConfigReader) -> Fields:
    """Read OLMo 2: norms behind attention and MLP, and of all queries and all keys."""
    fields = {**like_llama(config), **attention_bias(config), "norm_epsilon": config.positive("rms_norm_eps", 1e-5)}
    return {
        **fields,
        "num_kv_heads": config.optional_count("num_key_value_heads"),
        "norm_placement": "post",
        "qk_norm": "whole",
    }


def _gpt_oss(config: ConfigReader) -> Fields:
    """Read gpt-oss: sinks, windows in every other layer, experts with biases in all."""
    config.pass_over("experts_per_token", "initial_context_length", "swiglu_limit")
    fields = like_llama(config)
    return {
        **fields,
        **rotary(config, 150000.0),
        **attention_bias(config, default=True),
        **windows(config, fields, lambda layer: layer % 2 == 0, 128),
        **heads(config, 8),
        "norm_epsilon": config.positive("rms_norm_eps", 1e-5),
        "head_dim": config.count("head_dim", 64),
        "sinks": True,
        "mlp_bias": True,
        "moe_ffn_hidden_size": fields["ffn_hidden_size"],
        "num_experts": config.count("num_local_experts", 128),
        "experts_per_token": config.count("num_experts_per_tok", 4),
        "router_bias": True,
        "taken_as": (*fields["taken_as"], "clamped SwiGLU", "a bias of the router's product"),
    }


def _gemma(config: ConfigReader, **defaults: int) -> Fields:
    """Read what Gemma 2 and 3 have in common: norms before and behind, and a gate with GELU."""
    config.only("hidden_activation", "gelu_pytorch_tanh", *GELUS)
    config.only("hidden_act", "gelu_pytorch_tanh", *GELUS)
    config.only("use_bidirectional_attention", False, False, None)
    config.pass_over("cache_implementation", "query_pre_attn_scalar")
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


def _gemma2(config: ConfigReader) -> Fields:
    """Read Gemma 2: soft caps, and windows in every other layer."""
    fields = _gemma(config)
    return {
        **fields,
        **windows(config, fields, lambda layer: layer % 2 == 0, 4096),
        "score_cap": config.optional_positive("attn_logit_softcapping", 50.0),
        "logit_cap": config.optional_positive("final_logit_softcapping", 30.0),
    }


def _gemma3_text(config: ConfigReader) -> Fields:
    """Read the language model of Gemma 3: norms of queries and keys, and a window in all but every sixth layer."""
    every = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
    config.pass_over("rope_local_base_freq")
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


def _gemma3(config: ConfigReader) -> Fields:
    """Read Gemma 3 with its vision tower, of which the language model alone is taken."""
    config.pass_over("vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image")
    inner = ConfigReader(config.object("text_config"))
    fields = _gemma3_text(inner)
    inner.refuse_the_rest("gemma3_text", ())
    config.faults |= {f"text_config.{key}": fault for key, fault in inner.faults.items()}
    return {**fields, "taken_as": (*fields["taken_as"], "its vision tower")}


def _deepseek(config: ConfigReader, *, dense: int, router_bias: bool) -> Fields:
    """Read what DeepSeek-V2 and V3 have in common: latent attention, and experts after the first few layers."""
    config.only("attention_bias", False, False)
    config.only("moe_layer_freq", 1, 1)
    config.pass_over(
        "aux_loss_alpha", "ep_size", "head_dim", "n_group", "norm_topk_prob", "num_key_value_heads", "qk_head_dim",
        "routed_scaling_factor", "scoring_func", "seq_aux", "topk_group",
    )  # fmt: skip
    fields = like_llama(config)
    prediction = config.count("num_nextn_predict_layers", 0, least=0)
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
        "router_bias": router_bias,
        "taken_as": (*fields["taken_as"], *(["multi-token prediction"] if prediction else [])),
    }


def _deepseek_v2(config: ConfigReader) -> Fields:
    """Read DeepSeek-V2 and V2-Lite, whose load is balanced by losses."""
    config.only("topk_method", "greedy", "greedy", "group_limited_greedy")
    config.only("mlp_bias", False, False)
    return _deepseek(config, dense=config.count("first_k_dense_replace", 0, least=0), router_bias=False)


def _deepseek_v3(config: ConfigReader) -> Fields:
    """Read DeepSeek-V3 and R1, whose load is balanced by biases."""
    config.only("topk_method", "noaux_tc", "noaux_tc")
    return _deepseek(config, dense=config.count("first_k_dense_replace", least=0), router_bias=True)


FAMILIES: Mapping[str, Callable[[ConfigReader], Fields]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "qwen2": _qwen2,
        "mixtral": _mixtral,
        "gpt2": gpt2,
        "gpt_neox": gpt_neox,
        "opt": opt,
        "deepseek_v3": _deepseek_v3,
        "deepseek_v2": _deepseek_v2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gemma3_text": _gemma3_text,
        "gpt_oss": _gpt_oss,
        "olmo2": _olmo2,
        "phi3": _phi3,
        "granite": _granite,
        "nemotron": nemotron,
    }
)
"""How each `model_type` is read."""
