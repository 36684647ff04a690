"""Adapters as Hugging Face's PEFT writes them: its adapter_config.json as a `Lora`.

Every key is read, known to cost nothing, or an error, as with configs of models (`hugging_face`). It is a file of its
own, since only who has such a file needs it.

Source: `LoraConfig` of github.com/huggingface/peft (0.21.2).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from minitrain.errors import closest, refuse, shown
from minitrain.workloads.architecture import Lora
from minitrain.workloads.hugging_face import ConfigReader, loaded

TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "o_proj": "output",
        "out_proj": "output",
        "q_b_proj": "query_up",
        "kv_b_proj": "kv_up",
        "gate_proj": "gate",
        "up_proj": "up",
        "down_proj": "down",
        "fc1": "up",
        "fc2": "down",
    }
)
"""The matrices of PEFT's `target_modules`, by what they are called here."""

ALL = "all-linear"
"""What PEFT calls all matrices but the head's."""

_NO_BEARING = (
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights", "peft_type", "revision"),
    *("task_type", "lora_dropout", "fan_in_fan_out", "megatron_config", "megatron_core", "corda_config", "eva_config"),
    *("loftq_config", "lora_ga_config", "runtime_config", "qalora_group_size", "peft_version"),
)
_NOTHING_ELSE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "bias": ("none",),
        "use_dora": (False,),
        "use_qalora": (False,),
        "lora_bias": (False,),
        "modules_to_save": (None, []),
        "layers_to_transform": (None,),
        "layers_pattern": (None,),
        "layer_replication": (None,),
        "rank_pattern": ({}, None),
        "alpha_pattern": ({}, None),
        "exclude_modules": (None, []),
        "target_parameters": (None, []),
        "trainable_token_indices": (None,),
        "alora_invocation_tokens": (None,),
        "arrow_config": (None,),
        "velora_config": (None,),
        "monteclora_config": (None,),
        "use_bdlora": (None,),
        "kasa_config": (None,),
        "ensure_weight_tying": (False,),
    }
)
"""What may be there and must not say anything else: all else trains more, or other weights in other layers."""


def read_lora(source: str | os.PathLike[str] | Mapping[str, Any]) -> Lora:
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
    reader.pass_over(*_NO_BEARING)
    reader.refuse_the_rest("PEFT's LoRA", ())
    if reader.faults:
        raise refuse(label, list(reader.faults.values()), keys=tuple(reader.faults))
    return Lora(rank=rank, alpha=float(alpha), targets=targets)


def _targets(reader: ConfigReader, given: Any) -> tuple[str, ...] | None:
    """Return which matrices have adapters; None for all."""
    reader.pass_over("target_modules")
    if given == ALL:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        reader.faults["target_modules"] = (
            f'target_modules must be "{ALL}" or a list of {", ".join(TARGETS)}, got {shown(given)}: patterns of names '
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
