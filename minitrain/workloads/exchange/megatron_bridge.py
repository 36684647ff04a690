"""Megatron Bridge's configuration: a YAML of its `ConfigContainer`, or overrides such as `model.hidden_size=4096`.

Its `model` has the fields of Megatron Core by their names; what is absent has the defaults of `GPTModelProvider`. A
file that only overrides a recipe's fields has no layers, and then the model must come from elsewhere.

Source: `megatron/bridge/training/config.py` and `megatron/bridge/models/gpt_provider.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from minitrain.errors import refuse
from minitrain.workloads.exchange.megatron_core import layout_fields, layout_of, model_fields, model_of, notes_on
from minitrain.workloads.exchange.megatron_lm import OPTIONS, TABLES
from minitrain.workloads.exchange.recipe import Recipe, known_words

TOOL = "megatron-bridge"

_SECTION_OF = {field: section for section, fields in TABLES["sections_of_bridge"].items() for field in fields}
"""The section of a field, where it is not the model's."""
_PRECISIONS = {"bf16_mixed": {"bf16": True}, "16-mixed": {"fp16": True}, "fp16_mixed": {"fp16": True}}
_SILU = {"_target_": "torch.nn.functional.silu", "_call_": False}
_SQUARED_RELU = {"_target_": "megatron.core.activations.squared_relu", "_call_": False}
_KNOWN = frozenset({option.field for option in OPTIONS} | {"activation_func", "moe_grouped_gemm"})
_ONLY_OF_MEGATRON_LM = frozenset({"group_query_attention", "use_flash_attn", "squared_relu", "bf16", "fp16", "fp8"})
_WITHOUT_BEARING = known_words("Megatron Bridge")


def write(recipe: Recipe) -> str:
    """Return the YAML of a recipe that Megatron Bridge can have."""
    fields = layout_fields(recipe)
    precision = "bf16_mixed"
    if recipe.model is not None:
        fields |= model_fields(recipe.model)
        precision = next((word for word, flags in _PRECISIONS.items() if flags.keys() <= fields.keys()), "32-true")
        precision = "bf16_with_fp8_delayed_scaling_mixed" if fields.get("fp8") else precision
        if fields.pop("squared_relu"):
            fields["activation_func"] = _SQUARED_RELU
        elif fields["gated_linear_unit"]:
            fields["activation_func"] = _SILU
    sections: dict[str, Any] = {}
    for field, value in fields.items():
        if field not in _ONLY_OF_MEGATRON_LM:
            sections.setdefault(_SECTION_OF.get(field, "model"), {})[field] = value
    return yaml.safe_dump({**sections, "mixed_precision": precision}, sort_keys=False)


def read(config: Mapping[str, Any], name: str) -> Recipe:
    """Return the recipe of a configuration.

    Raises:
        UsageError: there are keys that are not known, or that cannot be modelled; all at once.
    """
    faults: list[str] = []
    given = {**_precision(config.get("mixed_precision"), faults), **dict(_fields(config, faults))}
    strategy, options = layout_of(given, faults)
    model = model_of(given, name, faults)
    if faults:
        raise refuse(f"the configuration of {TOOL}", faults)
    return Recipe(strategy, options, model, None, given.get("global_batch_size"), notes_on(given), TOOL)


def overrides(text: str) -> dict[str, Any]:
    """Return overrides as the sections of a configuration.

    Example:
        >>> overrides("model.num_layers=2 train.global_batch_size=8")
        {'model': {'num_layers': 2}, 'train': {'global_batch_size': 8}}
    """
    found: dict[str, Any] = {}
    for word in text.replace("\\\n", " ").split():
        key, _, value = word.lstrip("+").partition("=")
        section, dot, field = key.partition(".")
        if dot:
            found.setdefault(section, {})[field] = yaml.safe_load(value)
        else:
            found[section] = yaml.safe_load(value)
    return found


def _precision(word: Any, faults: list[str]) -> dict[str, Any]:
    """Return the flags of a precision by name, or of its fields."""
    if isinstance(word, Mapping):
        return {name: word[name] for name in ("bf16", "fp16", "fp8") if word.get(name)}
    if word in (None, "32-true"):
        return {}
    if isinstance(word, str) and word.startswith("bf16_with_fp8"):
        return {"bf16": True, "fp8": "hybrid"}
    if word not in _PRECISIONS:
        faults.append(f"mixed_precision must be {', '.join(_PRECISIONS)} or bf16_with_fp8_..., got {word!r}")
    return dict(_PRECISIONS.get(word, {}))


def _fields(config: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of all sections; faults are noted."""
    for section, values in config.items():
        if section == "optimizer" and isinstance(values, Mapping):
            yield from ((field, value) for field, value in values.items() if _SECTION_OF.get(field) == "optimizer")
        if (section in known_words("Megatron Bridge, sections") and section != "dist") or section == "mixed_precision":
            continue
        if section == "dataset":
            yield from _length(values)
        elif section not in ("model", "train", "ddp", "comm_overlap", "dist"):
            faults.append(f"{section} is not known")
        else:
            yield from _known(section, values or {}, faults)


def _length(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the length of samples that a dataset has."""
    for key in ("seq_length", "sequence_length"):
        if isinstance(values, Mapping) and values.get(key):
            yield "seq_length", values[key]


def _known(section: str, values: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a section; an activation function as what it makes of an MLP."""
    for field, value in values.items():
        if field == "activation_func":
            yield from _activation(str(value.get("_target_") if isinstance(value, Mapping) else value), faults)
        elif field in _KNOWN and field not in _ONLY_OF_MEGATRON_LM:
            if value is not None:
                yield field, value
        elif field not in _WITHOUT_BEARING and section != "dist" and value not in (None, False):
            faults.append(f"{section}.{field} is not known")


def _activation(name: str, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield what an activation function says of an MLP."""
    function = name.rpartition(".")[2]
    if function == "squared_relu":
        yield "squared_relu", True
    elif function not in ("silu", "gelu"):
        faults.append(f"model.activation_func must be silu, gelu or squared_relu, got {name}")
