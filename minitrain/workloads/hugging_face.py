"""Reading configs of Hugging Face's transformers: the fields of a `Transformer` that a config.json describes.

A key is read, or it is known to have no bearing on parameters, FLOPs and memory (how weights are initialised, how text
is generated), or it is a fault: what cannot be modelled is never passed over in silence. Keys that are absent have the
values that transformers gives them; sizes must be there.

Some things are read as something else with the same parameters and multiplications, which `Transformer.taken_as` then
names, since other tools' arguments made of the model would train another one: `hugging_face_families` says which.

`max_position_embeddings` is the longest sequence that a model takes, and no wish: samples have 8,192 tokens or less.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minitrain.errors import UsageError
from minitrain.workloads.config_reader import ConfigReader
from minitrain.workloads.field_faults import closest, refuse, shown
from minitrain.workloads.hugging_face_families import FAMILIES
from minitrain.workloads.hugging_face_fields import Fields

USUAL_SEQ_LEN = 8192
"""Tokens of a sample where nobody says how many: those of most of the pre-training of Llama 3 and its like."""


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
    names = {"name": _name(config, family), "source": f"Hugging Face config {label}"}
    return {"attention": "flash", **fields, **_lengths(fields["seq_len"]), **names}


def _lengths(longest: int) -> Fields:
    """Return the length of samples, and the longest that there may be where that is longer."""
    return {"seq_len": min(longest, USUAL_SEQ_LEN), "max_seq_len": longest if longest > USUAL_SEQ_LEN else None}


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
