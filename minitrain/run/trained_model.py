"""What a run says of a transformer that it trains: its name, the length of its samples, the names of its layers.

It is a file of its own, since saved runs, comparisons and figures share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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

    @property
    def precision_text(self) -> str:
        """What headlines say of the precision: nothing of bf16, which is usual.

        >>> TrainedModel("llama3-8b", 8192, (), precision="fp8", peak_of="float16").precision_text
        ', fp8 (MFU by the peak of float16)'
        """
        by_peak = f" (MFU by the peak of {self.peak_of})" if self.peak_of else ""
        return "" if self.precision in ("", "bf16") else f", {self.precision}{by_peak}"

    @property
    def dropped_token_fraction(self) -> float | None:
        """The share of copies of tokens that experts did not take; None where experts are not divided."""
        return self.dropped_copies / self.routed_copies if self.routed_copies else None

    def to_save(self) -> dict[str, Any]:
        """Return the fields as a saved run has them, copies only where there are some."""
        found = asdict(self)
        if not self.routed_copies:
            del found["routed_copies"], found["dropped_copies"]
        if self.max_seq_len is None:
            del found["max_seq_len"]
        for name in ("kind", "precision", "peak_of"):
            if not found[name]:
                del found[name]
        return found

    def figures(self) -> dict[str, Any]:
        """Return what a run's summary says of experts that are divided among ranks, if any are."""
        return {"dropped_token_fraction": self.dropped_token_fraction} if self.routed_copies else {}


def name_of_workload(workload: Any) -> str:
    """Return what runs call a workload, the specified one if None: its own name, or that of its class."""
    return SPECIFIED if workload is None else str(getattr(workload, "name", type(workload).__name__))


def described(name: str) -> str:
    """Return a workload's name, with what readers should know of it.

    >>> described("dense")
    'dense'
    """
    return ": ".join([name, *([NOTES[name]] if name in NOTES else [])])


class RunOfTransformer(Protocol):
    """The part of `Run` that these figures are made from."""

    @property
    def trained_model(self) -> TrainedModel | None:
        """The transformer."""

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that all ranks together train on in a second."""

    @property
    def tokens_per_second_per_rank(self) -> float | None:
        """One rank's share of them."""

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization."""

    @property
    def needed_memory_bytes(self) -> float | None:
        """What the fullest device must hold."""
        ...

    @property
    def memory_by_kind(self) -> Mapping[str, float] | None:
        """Bytes of each kind at the peak."""

    @property
    def priced_by(self) -> str:
        """What priced operations, in words."""

    @property
    def sureness(self) -> str:
        """How far validated runs like it were off, in words."""

    @property
    def peak_host_memory_bytes(self) -> float:
        """The most that any rank kept in its host's memory."""

    @property
    def communication_by_axis(self) -> Mapping[str, Any]:
        """What a rank communicates along each axis."""


def figures_of(run: RunOfTransformer) -> dict[str, Any]:
    """Return what a run's summary says of a transformer alone."""
    assert run.trained_model is not None
    memory = run.memory_by_kind
    return {
        **facts_of(run.trained_model),
        "priced_by": run.priced_by,
        "sureness": run.sureness,
        "tokens_per_second": run.tokens_per_second,
        "tokens_per_second_per_rank": run.tokens_per_second_per_rank,
        "hfu": run.hfu,
        "needed_memory_bytes": run.needed_memory_bytes,
        "memory_by_kind_bytes": None if memory is None else dict(memory),
        "peak_host_memory_bytes": run.peak_host_memory_bytes,
        "communication_by_axis": {axis: total._asdict() for axis, total in run.communication_by_axis.items()},
        **run.trained_model.figures(),
    }


_OF_RUNS = (
    "priced_by",
    "sureness",
    "tokens_per_second",
    "tokens_per_second_per_rank",
    "hfu",
    "needed_memory_bytes",
    "memory_by_kind_bytes",
    "peak_host_memory_bytes",
    "communication_by_axis",
)


def facts_of(trained_model: TrainedModel) -> dict[str, Any]:
    """Return the same keys for a strategy that failed: what is known without a run, and None."""
    known = {"model": trained_model.name, "seq_len": trained_model.seq_len, "precision": trained_model.precision}
    return {**known, **dict.fromkeys(_OF_RUNS)}


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
    return TrainedModel(*named, *counts, _longest(workload), kind, *_precision_of(workload))


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
