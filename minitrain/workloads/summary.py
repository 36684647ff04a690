"""A transformer's figures as plain data, ready for JSON.

It is a file of its own, since the model itself does not know what is printed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minitrain.workloads.shapes import RECOMPUTE, Recompute, Work
from minitrain.workloads.transformer import Transformer


def summary(model: Transformer) -> dict[str, Any]:
    """Return a model's fields and what follows from them.

    Returns:
        name, source, fields (as `Transformer` takes them), num_parameters, num_active_parameters, parameters_by_kind,
        flop_per_token (of a step, all pairs of attention) and saved_bytes_per_token, the last two by recomputation.
    """
    fields = asdict(model)
    return {
        "name": fields.pop("name"),
        "source": fields.pop("source"),
        "fields": fields,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "parameters_by_kind": model.parameters_by_kind(),
        "flop_per_token": {mode: model.flop_per_token(recompute=mode) for mode in RECOMPUTE},
        "saved_bytes_per_token": {mode: saved_bytes_per_token(model, mode) for mode in RECOMPUTE},
    }


def saved_bytes_per_token(model: Transformer, recompute: Recompute) -> float:
    """Return the bytes that the whole model keeps for backward for each token, on one device."""
    sample = Work(num_samples=1, seq_len=model.seq_len)
    return sum(unit.saved_bytes(sample, recompute) for unit in model.units()) / model.seq_len
