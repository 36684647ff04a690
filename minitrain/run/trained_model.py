"""What a run says of a transformer that it trains: its name, the length of its samples, the names of its layers.

It is a file of its own, since saved runs, comparisons and figures share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from minitrain.workloads.matmul import NOTES, SPECIFIED


class CountingRank(Protocol):
    """The part of a rank's model that is read at its end."""

    recomputed_flop: float
    routed_copies: int
    dropped_copies: int


@final
@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The transformer of a run.

    Args:
        name: what tables call it.
        seq_len: tokens of a sample.
        layer_names: what figures call the layers: "embedding", "attention 0", "mlp 0" ..., "head".
        recomputed_flop: floating-point operations that all ranks did again, counted as the run's useful ones.
        routed_copies: copies of tokens that all routers made for experts that are divided among ranks.
        dropped_copies: of these, what experts did not take.
        kind: of the model, by which validated runs are told apart: "Llama-like".
        precision: its name; "" of a run that was saved before runs said so.
        peak_of: the datatype whose peak MFU is counted by, where multiplications with weights are in another one.
        trained: what of it is trained, in words: "adapters of rank 16 alone"; "" where all is.
        documents: which are packed into its samples, in words: "documents of 1,024 tokens"; "" where each is one.
        max_seq_len: the longest sample that its source allows, where these are shorter and nobody asked for that.
    """

    name: str
    seq_len: int
    layer_names: tuple[str, ...]
    recomputed_flop: float = 0.0
    routed_copies: int = 0
    dropped_copies: int = 0
    max_seq_len: int | None = None
    kind: str = ""
    precision: str = ""
    peak_of: str = ""
    trained: str = ""
    documents: str = ""

    @property
    def unusual_text(self) -> str:
        """What headlines say of precision and trained weights: nothing of bf16 and all, which are usual.

        >>> TrainedModel("llama3-8b", 8192, (), precision="fp8", peak_of="float16").unusual_text
        ', fp8 (MFU by the peak of float16)'
        """
        by_peak = f" (MFU by the peak of {self.peak_of})" if self.peak_of else ""
        precision = "" if self.precision in ("", "bf16") else f", {self.precision}{by_peak}"
        return precision + "".join(f", {words}" for words in (self.trained, self.documents) if words)

    @property
    def dropped_token_fraction(self) -> float | None:
        """The share of copies of tokens that experts did not take; None where experts are not divided."""
        return self.dropped_copies / self.routed_copies if self.routed_copies else None


def name_of_workload(workload: Any) -> str:
    """Return what runs call a workload, the specified one if None: its own name, or that of its class."""
    return SPECIFIED if workload is None else str(getattr(workload, "name", type(workload).__name__))


def described(name: str) -> str:
    """Return a workload's name, with what readers should know of it.

    >>> described("dense")
    'dense'
    """
    return ": ".join([name, *([NOTES[name]] if name in NOTES else [])])


def trained_model_of(workload: Any, models: Sequence[CountingRank] = (), times: int = 1) -> TrainedModel | None:
    """Return what there is to say of a workload; None where it is no transformer.

    Args:
        workload: what is trained.
        models: those of the ranks, at their end.
        times: how many ranks each of them stands for.
    """
    if not hasattr(workload, "layer_names"):
        return None
    counts = (
        times * sum(model.recomputed_flop for model in models),
        times * sum(model.routed_copies for model in models),
        times * sum(model.dropped_copies for model in models),
    )
    kind = getattr(getattr(workload, "model", None), "kind", "")
    named = workload.name, workload.seq_len, workload.layer_names
    packed = getattr(getattr(workload, "model", None), "documents", None)
    words = *_precision_of(workload), _trained_of(workload), "" if packed is None else packed.words
    return TrainedModel(*named, *counts, _longest(workload), kind, *words)


def _trained_of(workload: Any) -> str:
    """Return what of a model is trained, in words; nothing where all is."""
    model = getattr(workload, "model", None)
    lora, frozen, ema = (getattr(model, name, None) for name in ("lora", "frozen_layers", "ema"))
    words = [f"adapters of rank {lora.rank} alone"] if lora is not None else []
    words += [f"the first {frozen} layers frozen" if frozen > 1 else "the first layer frozen"] if frozen else []
    by = {"muon": ["matrices trained by Muon"], "adafactor": ["trained by Adafactor"]}
    words += by.get(getattr(model, "optimizer", "adam"), [])
    words += [f"weights averaged ({ema:g})"] if ema is not None else []
    return ", ".join(words)


def _precision_of(workload: Any) -> tuple[str, str]:
    """Return the name of a precision, and the datatype of its peak where that is not what weights are multiplied in."""
    precision = getattr(getattr(workload, "model", None), "precision", None)
    if precision is None:
        return "", ""
    is_one = precision.weight_datatype in (None, precision.datatype)
    return precision.name, "" if is_one else precision.datatype


def _longest(workload: Any) -> int | None:
    """Return the longest sample that the model's source allows, where samples are as long as nobody asked for."""
    longest: int | None = workload.model.max_seq_len
    return longest if workload.seq_len == workload.model.seq_len else None
