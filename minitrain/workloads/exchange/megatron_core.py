"""A transformer and a layout as fields of Megatron Core's configuration, and such fields as a transformer and options.

What Megatron Core has no field for is a fault by name. Fields that are absent have the defaults of Megatron-LM, which
are those of Megatron Bridge's `GPTModelProvider` too: biases, layernorm, learned positions, tied embeddings, and
dropout of 0.1. All that a model's arguments depend on is therefore written, whether it is a default or not.

Source: `megatron/training/arguments.py` and `megatron/core/transformer/transformer_config.py` of Megatron-LM 0.14.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minitrain.workloads.architecture import PRECISIONS, Precision
from minitrain.workloads.exchange.recipe import Recipe, called_as_shipped
from minitrain.workloads.mixers import LatentAttention
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.workload import MODULES, OURS, as_recompute, modules_of

Fields = dict[str, Any]

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
_BIASES = {
    (True, True, True): (True, False),
    (False, False, False): (False, False),
    (True, False, False): (False, True),
}
_USUAL_DROPOUT = 0.1
_LLAMA_SCALING = 8.0


def model_faults(model: Transformer) -> list[str]:
    """Return why Megatron Core cannot train a model, a line each."""
    found = {
        f"norm_placement={model.norm_placement!r}": model.norm_placement != "pre",
        "qk_norm='whole'": model.qk_norm == "whole",
        f"mlp={model.mlp!r}": model.mlp in ("geglu", "relu"),
        "score_cap": model.score_cap is not None,
        "logit_cap": model.logit_cap is not None,
        "gate_clamp": model.gate_clamp is not None,
        "shared_gate": model.shared_gate,
        "output_gate": model.output_gate,
        "layers of a mixer or an MLP alone": bool(model.without_mixer or model.without_mlp),
        "sparse attention": model.sparse is not None,
        "linear attention": bool(model.linear_layers),
        "chunked_windows": model.chunked_windows,
        "rope_factor": model.rope_factor != 1,
        "layernorm without biases": model.norm == "layernorm" and not model.norm_bias,
        "biases of some projections": _biases(model) not in _BIASES,
        "experts of some layers, and no hidden size of dense ones": model.ffn_hidden_size is None,
        f"precision {model.precision.name!r}": _precision_words(model.precision) is None,
    }
    return [*(what for what, is_so in found.items() if is_so), *model.taken_as]


def _biases(model: Transformer) -> tuple[bool, bool, bool]:
    return model.qkv_bias, model.output_bias, model.mlp_bias


def model_fields(model: Transformer) -> Fields:
    """Return the fields of Megatron Core that make a model which it can train."""
    add_bias, add_qkv_bias = _BIASES[_biases(model)]
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        **_attention_fields(model),
        "seq_length": model.seq_len,
        "max_position_embeddings": model.num_positions if model.positions == "learned" else model.seq_len,
        "vocab_size": model.vocab_size,
        **({"mtp_num_layers": model.prediction_layers} if model.prediction_layers else {}),
        "make_vocab_size_divisible_by": 1,
        "gated_linear_unit": model.is_gated,
        "squared_relu": model.mlp == "relu2",
        "normalization": _NORMS[model.norm],
        "layernorm_epsilon": model.norm_epsilon,
        "add_bias_linear": add_bias,
        "add_qkv_bias": add_qkv_bias,
        "position_embedding_type": _POSITIONS[model.positions],
        "rotary_base": _whole(model.rope_theta),
        "rotary_percent": model.rope_share,
        **({"rope_scaling": True, "rope_scaling_factor": model.rope_scaling} if model.rope_scaling != 1 else {}),
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "hidden_dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        **_expert_fields(model),
        **(_precision_words(model.precision) or {}),
    }


def _whole(number: float) -> float:
    """Return a number as an integer where it is one."""
    return int(number) if number == int(number) else number


def _attention_fields(model: Transformer) -> Fields:
    """Return the fields of the attention."""
    found: Fields = {"attention_backend": "flash" if model.attention == "flash" else "unfused"}
    if (latent := model.latent) is not None:
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": latent.query_rank,
            "kv_lora_rank": latent.kv_rank,
            "qk_head_dim": latent.nope_head_dim,
            "qk_pos_emb_head_dim": latent.rope_head_dim,
            "v_head_dim": latent.value_head_dim,
        }
    else:
        found |= {"num_query_groups": model.num_kv_heads, "kv_channels": model.head_dim}
    found["qk_layernorm"] = latent is not None or model.qk_norm == "head"  # of the latents
    if model.window:
        found["window_size"] = [model.window - 1, 0]  # the query's own key beside those to its left
        if len(model.window_layers) < model.num_layers:
            found["window_attn_skip_freq"] = _pattern(model.window_layers, model.num_layers)
    if model.sinks:
        found["softmax_type"] = "learnable"
    return found


def _expert_fields(model: Transformer) -> Fields:
    """Return the fields of experts, if there are any."""
    if not model.num_experts:
        return {}
    found: Fields = {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
        "moe_layer_freq": _pattern(model.moe_layers, model.num_layers),
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
    }
    if model.num_shared_experts:
        found["moe_shared_expert_intermediate_size"] = model.num_shared_experts * model.moe_ffn_hidden_size
    if model.router_bias:
        found |= {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
    if model.expert_groups > 1:
        found |= {"moe_router_num_groups": model.expert_groups, "moe_router_group_topk": model.groups_per_token}
    return found


def _pattern(layers: Sequence[int], num_layers: int) -> list[int]:
    """Return 1 for each layer among some, 0 for the others."""
    return [int(layer in layers) for layer in range(num_layers)]


def _precision_words(precision: Precision) -> Fields | None:
    """Return the fields of a precision, or None where there are none."""
    of_weights = {"fp8": "hybrid"} if precision.weight_datatype == "float8" else {}
    if of_weights and (precision.parameter_bytes, precision.activation_bytes) == (2, 2):
        return {"bf16": True, **of_weights}
    return {"bf16": {"bf16": True}, "fp16": {"fp16": True}, "fp32": {}}.get(precision.name)


def model_of(given: Mapping[str, Any], name: str, faults: list[str]) -> Transformer | None:
    """Return the transformer that fields make, or None where they have no layers at all; faults are noted.

    Args:
        given: fields of Megatron Core by name, as their types.
        name: what tables are to call the model.
        faults: where to write what is missing or cannot be modelled.
    """
    if "num_layers" not in given:
        return None
    required = ("hidden_size", "num_attention_heads", "vocab_size", "seq_length")
    faults += [f"{key} is missing, and the model has no other source for it" for key in required if key not in given]
    faults += _model_not_modelled(given)
    if faults:
        return None
    return called_as_shipped(Transformer(**_transformer_fields(given), name=name))


def _model_not_modelled(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a transformer cannot be."""
    for key, known in (
        ("normalization", _NORMS.values()),
        ("position_embedding_type", _POSITIONS.values()),
        ("softmax_type", ("vanilla", "learnable")),
        ("attention_backend", ("flash", "fused", "unfused", "local", "auto")),
    ):
        if given.get(key) is not None and given[key] not in known:
            yield f"{key} must be {' or '.join(known)}, since others are not modelled, got {given[key]!r}"
    size, ffn = given.get("moe_shared_expert_intermediate_size"), given.get("moe_ffn_hidden_size")
    if size and size % (ffn or given.get("ffn_hidden_size") or 1):
        yield f"moe_shared_expert_intermediate_size ({size}) must be a multiple of moe_ffn_hidden_size ({ffn})"
    window = _list(given.get("window_size"))
    if window and (len(window) != 2 or window[1] != 0 or window[0] < 0):
        yield f"window_size must be (keys to the left, 0), since others are not modelled, got {window}"


def _transformer_fields(given: Mapping[str, Any]) -> Fields:
    """Return the fields of a `Transformer`, the defaults of Megatron-LM filled in."""
    norm = {word: name for name, word in _NORMS.items()}[given.get("normalization", "LayerNorm")]
    positions = {word: name for name, word in _POSITIONS.items()}[
        given.get("position_embedding_type", "learned_absolute")
    ]
    bias, dropout = given.get("add_bias_linear", True), given.get("hidden_dropout", _USUAL_DROPOUT)
    return {
        "num_layers": given["num_layers"],
        "prediction_layers": given.get("mtp_num_layers") or 0,
        "hidden_size": given["hidden_size"],
        "num_heads": given["num_attention_heads"],
        "vocab_size": given["vocab_size"],
        "seq_len": given["seq_length"],
        "ffn_hidden_size": given.get("ffn_hidden_size") or _usual_ffn(given),
        "mlp": _mlp(given),
        "norm": norm,
        "norm_epsilon": given.get("layernorm_epsilon", 1e-5),
        "positions": positions,
        "num_positions": given.get("max_position_embeddings") if positions == "learned" else None,
        "rope_theta": given.get("rotary_base", 10000),
        "rope_share": given.get("rotary_percent", 1.0),
        "rope_scaling": given.get("rope_scaling_factor", _LLAMA_SCALING) if given.get("rope_scaling") else 1.0,
        "bias": bias or norm == "layernorm",
        "qkv_bias": bias or given.get("add_qkv_bias", False),
        "output_bias": bias,
        "mlp_bias": bias,
        "tied_embeddings": given.get("share_embeddings_and_output_weights", True),
        "dropout": dropout,
        "attention_dropout": given.get("attention_dropout", _USUAL_DROPOUT),
        "precision": _precision(given),
        **_attention_of(given),
        **_experts_of(given),
    }


def _usual_ffn(given: Mapping[str, Any]) -> int:
    """Return Megatron-LM's hidden size of an MLP where none is given."""
    hidden_size: int = given["hidden_size"]
    return int((4 * hidden_size * 2 / 3) / 64) * 64 if given.get("gated_linear_unit") else 4 * hidden_size


def _mlp(given: Mapping[str, Any]) -> str:
    if given.get("gated_linear_unit"):
        return "swiglu"
    return "relu2" if given.get("squared_relu") else "gelu"


def _precision(given: Mapping[str, Any]) -> Precision:
    """Return the precision: single unless something else is said."""
    found = PRECISIONS["bf16" if given.get("bf16") else "fp16" if given.get("fp16") else "fp32"]
    if not given.get("fp8"):
        return found
    return PRECISIONS.get("fp8") or replace(found, name="fp8", weight_datatype="float8")


def _attention_of(given: Mapping[str, Any]) -> Fields:
    """Return the fields of the attention; multi-head latent attention has norms of latents, not of heads."""
    num_layers, window = given["num_layers"], _list(given.get("window_size"))
    found: Fields = {
        "attention": "unfused" if given.get("attention_backend") in ("unfused", "local") else "flash",
        "sinks": given.get("softmax_type") == "learnable",
        "window": window[0] + 1 if window else None,
        "window_layers": _layers(given.get("window_attn_skip_freq"), num_layers, is_last_out=True) if window else None,
    }
    if given.get("multi_latent_attention"):
        found["latent"] = LatentAttention(
            query_rank=given.get("q_lora_rank"),
            kv_rank=given.get("kv_lora_rank", 32),
            rope_head_dim=given.get("qk_pos_emb_head_dim", 64),
            nope_head_dim=given.get("qk_head_dim", 128),
            value_head_dim=given.get("v_head_dim", 128),
        )
        return found
    groups, size = given.get("num_query_groups"), given.get("kv_channels")
    return found | {
        "num_kv_heads": groups,
        "head_dim": size,
        "qk_norm": "head" if given.get("qk_layernorm") else "none",
    }


def _experts_of(given: Mapping[str, Any]) -> Fields:
    """Return the fields of experts, if there are any."""
    if not given.get("num_moe_experts"):
        return {}
    size = given.get("moe_ffn_hidden_size") or given.get("ffn_hidden_size") or _usual_ffn(given)
    return {
        "num_experts": given["num_moe_experts"],
        "experts_per_token": given.get("moe_router_topk", 2),
        "moe_ffn_hidden_size": size,
        "num_shared_experts": (given.get("moe_shared_expert_intermediate_size") or 0) // size,
        "moe_layers": _layers(given.get("moe_layer_freq"), given["num_layers"], is_last_out=False),
        "router_bias": bool(given.get("moe_router_enable_expert_bias")),
        "expert_groups": given.get("moe_router_num_groups") or 1,
        "groups_per_token": given.get("moe_router_group_topk") or 1,
    }


def _layers(frequency: Any, num_layers: int, *, is_last_out: bool) -> list[int] | None:
    """Return the layers of a pattern of 0 and 1, or of a frequency: every one, or all but every last."""
    found = evaluated(frequency)
    if found is None:
        return None
    if isinstance(found, int):
        chosen = (lambda layer: (layer + 1) % found) if is_last_out else (lambda layer: not layer % found)
        return [layer for layer in range(num_layers) if chosen(layer)]
    return [layer for layer, is_one in enumerate(found[:num_layers]) if is_one]


def _list(value: Any) -> list[int]:
    """Return a list that may be written as text, "127,0" or "(127, 0)"."""
    found = evaluated(value)
    return [] if found is None else [*found]


_OPERATORS = {ast.Mult: operator.mul, ast.Add: operator.add}


def evaluated(value: Any) -> Any:
    """Return an integer, or a list that may be written as a sum of products: "[0]*3+[1]*58", "([1,0]*2)", "127,0".

    Raises:
        ValueError: it is something else.

    Example:
        >>> evaluated("([0]*1+[1]*2)*2")
        [0, 1, 1, 0, 1, 1]
    """
    if not isinstance(value, str):
        return list(value) if isinstance(value, Sequence) else value
    try:
        return _value(ast.parse(value, mode="eval").body)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{value!r} must be an integer, or a list such as [0]*3+[1]*58") from error


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, a list, or a sum or product of these."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise TypeError(f"no list: {ast.dump(node)}")


DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
STRATEGIES = ("megatron", "fsdp")
_SHARDS_ALL = "optim_grads_params"


def layout_faults(recipe: Recipe) -> list[str]:
    """Return why Megatron Core cannot lay work out so, a line each."""
    options = recipe.options
    again = as_recompute(options.get("recompute", "none"))
    found = {
        f"the strategy {recipe.strategy}": recipe.strategy not in STRATEGIES,
        f"replicas of shards ({options.get('replicas')})": options.get("replicas", 1) > 1,
        f"offload of {options.get('offload')}": bool(options.get("offload"))
        and (options["offload"] != "activations" or not options.get("offloaded_layers")),
        "an optimizer on the host without zero=1": bool(options.get("optimizer_offload_fraction"))
        and not options.get("zero"),
        **{f"recompute={module}": module in modules_of(again) for module in OURS},
    }
    return [what for what, is_so in found.items() if is_so]


def layout_fields(recipe: Recipe) -> Fields:
    """Return the fields of a layout that Megatron Core can have."""
    options = recipe.options
    found: Fields = {
        name: options[option]
        for option, name in DEGREES.items()
        if options.get(option, 1) > 1 or (option in ("tp", "pp") and option in options)
    }
    if options.get("ep", 1) > 1:
        found["expert_tensor_parallel_size"] = 1  # by default Megatron Core divides experts as other layers
    if options.get("cp", 1) > 1:
        found["cp_comm_type"] = options.get("cp_comm_type", "p2p")
    if options.get("capacity_factor") is not None:
        found["moe_expert_capacity_factor"] = options["capacity_factor"]
    found |= {"micro_batch_size": options["microbatch_size"], "global_batch_size": recipe.global_batch_size}
    if recipe.strategy == "fsdp":
        found |= {"use_torch_fsdp2": True}
        found |= {} if options.get("reshard_after_forward", True) else {"torch_fsdp2_reshard_after_forward": False}
    if (chunks := options.get("num_chunks", 1)) > 1:
        found |= {"virtual_pipeline_model_parallel_size": chunks}
        found |= {"overlap_p2p_comm": bool(options.get("overlap_messages", True))}
    if options.get("sequence_parallel"):
        found |= {"sequence_parallel": True, "tp_comm_overlap": bool(options.get("overlap_parts"))}
    zero, overlaps = bool(options.get("zero")), bool(options.get("overlap_replicas"))
    found |= {
        "use_distributed_optimizer": zero,
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": zero and overlaps,
    }
    return found | _host_fields(options) | _recompute_fields(as_recompute(options.get("recompute", "none")))


def _host_fields(options: Mapping[str, Any]) -> Fields:
    """Return the fields that say what lies in the host's memory."""
    if layers := options.get("offloaded_layers"):
        return {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    if share := options.get("optimizer_offload_fraction"):
        overlap = "overlap_cpu_optimizer_d2h_h2d"
        return {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": share,
            overlap: bool(options.get(overlap)),
            "use_precision_aware_optimizer": True,  # Megatron-LM's arguments.py asks for it
        }
    return {}


def _recompute_fields(recompute: str) -> Fields:
    """Return the fields that say what backward computes again."""
    if recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    modules = modules_of(recompute)
    if not modules:
        return {}
    found: Fields = {"recompute_granularity": "selective"}
    return found if recompute == "selective" else found | {"recompute_modules": sorted(modules)}


def _recompute_of(given: Mapping[str, Any]) -> str:
    """Return what backward computes again by the fields that are given."""
    granularity = "selective" if given.get("recompute_activations") else given.get("recompute_granularity") or "none"
    modules = given.get("recompute_modules")
    return as_recompute("+".join(modules)) if granularity == "selective" and modules else str(granularity)


def layout_of(given: Mapping[str, Any], faults: list[str]) -> tuple[str, Fields]:
    """Return the strategy and its options; faults are noted.

    Args:
        given: fields of Megatron Core by name.
        faults: where to write what no strategy does.
    """
    faults += _layout_not_modelled(given)
    recompute = "none" if faults else _recompute_of(given)
    found: Fields = {option: given[name] for option, name in DEGREES.items() if given.get(name, 1) > 1}
    found |= {"microbatch_size": given["micro_batch_size"]} if "micro_batch_size" in given else {}
    found |= {} if recompute == "none" else {"recompute": recompute}
    found |= {"sequence_parallel": True} if given.get("sequence_parallel") and found.get("tp", 1) > 1 else {}
    if given.get("use_torch_fsdp2") or given.get("use_megatron_fsdp"):
        layers = int(given.get("cpu_offloading_num_layers") or 0)
        found |= {} if given.get("torch_fsdp2_reshard_after_forward", True) else {"reshard_after_forward": False}
        return "fsdp", found | ({"offload": "activations", "offloaded_layers": layers} if layers else {})
    found |= _of_experts_and_context(given)
    found |= {"zero": 1} if given.get("use_distributed_optimizer") else {}
    found |= {"overlap_replicas": True} if given.get("overlap_grad_reduce") else {}
    found |= {"overlap_parts": True} if given.get("tp_comm_overlap") and found.get("sequence_parallel") else {}
    if given.get("optimizer_cpu_offload") and (share := given.get("optimizer_offload_fraction", 1.0)):
        found |= {"optimizer_offload_fraction": share}
        found |= {"overlap_cpu_optimizer_d2h_h2d": True} if given.get("overlap_cpu_optimizer_d2h_h2d") else {}
    chunks = _num_chunks(given, faults)
    if chunks > 1:
        hidden = bool(given.get("overlap_p2p_comm", True))
        found |= {"num_chunks": chunks, "overlap_messages": hidden} | ({} if hidden else {"batch_messages": True})
    return "megatron", found


def _of_experts_and_context(given: Mapping[str, Any]) -> Fields:
    """Return how keys and values are exchanged where that is not round a ring, and what experts take at most."""
    how, most = _cp_comm_type(given), given.get("moe_expert_capacity_factor")
    found: Fields = {} if how == "p2p" or given.get(DEGREES["cp"], 1) == 1 else {"cp_comm_type": how}
    return found if most is None else found | {"capacity_factor": most}


def _cp_comm_type(given: Mapping[str, Any]) -> str:
    return str(given.get("cp_comm_type") or "p2p").replace("allgather", "all_gather")


def notes_on(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of a layout is read as something else."""
    tp, ep = given.get(DEGREES["tp"], 1), given.get(DEGREES["ep"], 1)
    divides = ep > 1 and given.get("expert_tensor_parallel_size", tp) > 1
    notes = ["experts are taken whole on their ranks, not divided by tensor parallelism"] * divides
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    if given.get("num_moe_experts") and ep > 1 and not str(dispatcher).startswith("alltoall"):
        notes.append(
            f"tokens travel to experts by all_to_all, not by the dispatcher {dispatcher}; --platform "
            "megatron:dispatcher=deepep, hybridep or allgather prices others"
        )
    return tuple(notes)


def _num_chunks(given: Mapping[str, Any], faults: list[str]) -> int:
    """Return the stages of a rank."""
    layers = given.get("num_layers_per_virtual_pipeline_stage")
    if layers is None:
        return int(given.get("virtual_pipeline_model_parallel_size") or 1)
    pp, num_layers = given.get(DEGREES["pp"], 1), given.get("num_layers")
    if num_layers is None or num_layers % (pp * layers):
        faults.append(f"num_layers ({num_layers}) must be a multiple of stages x layers a stage ({pp} x {layers})")
        return 1
    return int(num_layers // (pp * layers))


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "recompute_granularity": ("full", "selective"),
    "recompute_method": ("uniform", "block"),
    "cp_comm_type": ("p2p", "all_gather", "allgather", "a2a", "a2a+p2p"),
    "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", _SHARDS_ALL),
    "moe_token_dispatcher_type": ("alltoall", "alltoall_seq", "allgather", "flex"),
    "moe_router_score_function": ("softmax", "sigmoid"),
    "fp8": ("e4m3", "hybrid"),
}
"""What Megatron Core knows of fields whose other values would change nothing here."""


def _not_known(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield values that Megatron Core does not know."""
    for field, known in _CHOICES.items():
        if given.get(field) not in (None, "", False) and str(given[field]) not in known:
            yield f"{field} must be one of {', '.join(known)}, got {given[field]!r}"
    for field in DEGREES.values():
        if not given.get(field, 1) >= 1:
            yield f"{field} must be at least 1, got {given[field]}"
    if not (given.get("moe_expert_capacity_factor") or 1) > 0:
        yield f"moe_expert_capacity_factor must be above 0, got {given['moe_expert_capacity_factor']}"
    for one, other in (("bf16", "fp16"), ("gated_linear_unit", "squared_relu")):
        if given.get(one) and given.get(other):
            yield f"{one} and {other} exclude each other; leave one out"


def _layout_not_modelled(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what no strategy does, and what Megatron Core does not know."""
    yield from _not_known(given)
    granularity = given.get("recompute_granularity")
    if granularity == "full" and (given.get("recompute_method"), given.get("recompute_num_layers")) != ("uniform", 1):
        yield "full recomputation must be uniform, of one layer each; that of several layers or some is not modelled"
    known = [module for module in MODULES if module not in OURS]
    unknown = [module for module in given.get("recompute_modules") or () if module not in known]
    if unknown:
        yield f"recompute_modules must be some of {', '.join(known)}, got {', '.join(unknown)}"
    sharding = given.get(
        "data_parallel_sharding_strategy", _SHARDS_ALL if given.get("use_megatron_fsdp") else "no_shard"
    )
    if given.get("use_megatron_fsdp") and sharding != _SHARDS_ALL:
        yield f"data_parallel_sharding_strategy must be {_SHARDS_ALL} with Megatron FSDP, got {sharding}"
    if given.get(DEGREES["cp"], 1) > 1 and _cp_comm_type(given) not in ("p2p", "all_gather"):
        yield f"cp_comm_type must be p2p or all_gather, since others are not modelled, got {given['cp_comm_type']}"
    is_fsdp = given.get("use_torch_fsdp2") or given.get("use_megatron_fsdp")
    for option in ("pp", "cp", "ep") if is_fsdp else ():
        if given.get(DEGREES[option], 1) > 1:
            yield f"{DEGREES[option]} ({given[DEGREES[option]]}) beside FSDP is not modelled"
    field = "optimizer_cpu_offload" if is_fsdp else "cpu_offloading_num_layers"
    if given.get(field):
        yield f"{field} {'beside' if is_fsdp else 'without'} FSDP is not modelled"
