"""The transformer of a row: its sizes are the row's, its kind follows from the MLP and the framework.

A gated MLP ("swiglu", "geglu") means a model like Llama: RMSNorm, rotary positions, no biases. "relu2" means one like
Nemotron: LayerNorm, rotary positions, no biases. "gelu" means one like GPT: LayerNorm, learned positions, biases,
unless the row says "no bias".
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from minitrain.errors import UsageError
from minitrain.validation.frameworks import Framework
from minitrain.validation.rows import LackingError, Row
from minitrain.workloads.precision import PRECISIONS, Precision
from minitrain.workloads.transformer import Transformer

_VOCABULARY_MULTIPLE = 128  # Megatron-LM pads to a multiple of this times tp; others have vocabularies that divide


def model_of(row: Row, framework: Framework, tp: int = 1) -> Transformer:
    """Return what a row trains.

    Args:
        row: the row.
        framework: what trained it.
        tp: parts of a layer, whose multiple the vocabulary is padded to.

    Raises:
        LackingError: a size is missing, or sizes contradict one another.
    """
    fields = {**_sizes(row, tp), **_kind(row.text("mlp").lower()), **_experts(row)}
    tied = row.text("tied_emb").lower()
    if tied:
        fields["tied_embeddings"] = tied in ("true", "1", "yes")
    fields["attention"] = _attention(row, framework)
    fields["dropout"] = framework.dropout if fields["mlp"] == "gelu" and fields.get("bias", True) else 0.0
    try:
        return Transformer(name=row.text("model") or "custom", precision=_precision(row, framework), **fields)
    except UsageError as error:
        raise LackingError(f"its sizes are no transformer's: {error}") from error


def _sizes(row: Row, tp: int) -> dict[str, Any]:
    """Return the sizes of a row."""
    heads = row.count("n_heads")
    multiple = _VOCABULARY_MULTIPLE * tp
    sizes: dict[str, Any] = {
        "num_layers": row.count("n_layers"),
        "hidden_size": row.count("hidden"),
        "num_heads": heads,
        "num_kv_heads": row.count("n_kv_heads", heads),
        "vocab_size": -(-row.count("vocab") // multiple) * multiple,
        "seq_len": row.count("seq_len"),
    }
    for column, field in (("ffn", "ffn_hidden_size"), ("head_dim", "head_dim")):
        if row.text(column):
            sizes[field] = row.count(column)
    return sizes


def _kind(mlp: str) -> dict[str, Any]:
    """Return what kind of model has an MLP of that name.

    Raises:
        LackingError: there is no such MLP.
    """
    if re.search("swiglu|geglu|silu", mlp):
        return {"mlp": "swiglu", "norm": "rmsnorm"}
    if "relu" in mlp:
        return {"mlp": "relu", "norm": "layernorm", "positions": "rotary", "bias": False}
    if "gelu" in mlp:
        return {"mlp": "gelu", "norm": "layernorm", "bias": "no bias" not in mlp}
    raise LackingError(f"mlp is {mlp!r}, where one of gelu, relu, relu2, swiglu and geglu is needed")


def _experts(row: Row) -> dict[str, Any]:
    """Return the experts of a row; nothing for a dense model."""
    if row.number("n_experts") in (None, 0, 1):
        return {}
    return {
        "num_experts": row.count("n_experts"),
        "experts_per_token": row.count("top_k"),
        "moe_ffn_hidden_size": row.count("moe_ffn"),
    }


def _attention(row: Row, framework: Framework) -> str:
    """Return "flash" or "unfused"."""
    text = row.text("attention").lower()
    if "not stated" in text or not text:
        return framework.attention
    return "unfused" if "unfused" in text else "flash"


def _precision(row: Row, framework: Framework) -> Precision:
    """Return the precision that a row trains in; fp8 concerns multiplications with weights alone."""
    text = row.text("precision").lower()
    if "fp32" in text.split(",")[0].split(" with ")[0] or "single" in text:
        return PRECISIONS["fp32"]
    precision = PRECISIONS["fp16" if text.startswith("fp16") else "bf16"]
    precision = replace(precision, gradient_bytes=_gradient_bytes(text + " " + row.text("overlap").lower(), framework))
    return replace(precision, weight_datatype="float8") if "fp8" in text else precision


def _gradient_bytes(text: str, framework: Framework) -> int:
    """Return the bytes of an element of a gradient, as a row says it or as the framework does by default."""
    if "fp32 grad" in text:
        return 4
    return 2 if "bf16 grad" in text or "mp=pure" in text else framework.gradient_bytes
