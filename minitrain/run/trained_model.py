"""What a run says of a transformer that it trains: its name, the length of its samples, the names of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The transformer of a run.

    Args:
        name: what tables call it.
        seq_len: tokens of a sample.
        layer_names: what figures call the layers: "embedding", "attention 0", "mlp 0" ..., "head".
        recomputed_flop: floating-point operations that all ranks did again, counted as the run's useful ones.
    """

    name: str
    seq_len: int
    layer_names: tuple[str, ...]
    recomputed_flop: float = 0.0


def trained_model_of(workload: Any, recomputed_flop: float) -> TrainedModel | None:
    """Return what there is to say of a workload; None where it is no transformer."""
    if not hasattr(workload, "layer_names"):
        return None
    return TrainedModel(workload.name, workload.seq_len, workload.layer_names, recomputed_flop)
