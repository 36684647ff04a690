"""What a run says of a transformer that it trains: its name, the length of its samples, the names of its layers.

How sure a run's figures are: how far validated runs like it were off, and figures that no device was measured at.

It is a file of its own, since it alone of this room imports `minitrain.evidence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from minitrain.machine.given_durations import CALIBRATED
from minitrain.operations import PRICE, STRIDE
from minitrain.run.above import above
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


MOST_MFU = 0.75
"""Published steps of transformers stay below this MFU; those of the package's tables do by far."""


class SurenessFigures:
    """How sure a run's figures are.

    Attributes:
        priced_by: what priced its operations.
        trained_model: the transformer that it trains, or None.
        meshes: sizes by axis, of each mesh that ranks were laid out on.
        hardware: the name of its hardware config.
        world_size: its ranks.
        prepared: how it was simulated; None of one that was read.
    """

    priced_by: str
    trained_model: TrainedModel | None
    meshes: Sequence[Mapping[str, int]]
    hardware: str
    world_size: int
    prepared: Any

    @property
    def sureness(self) -> str:
        """How far validated runs like this one were off, in words; see `minitrain.evidence.similar_runs`."""
        trained = self.trained_model
        kind = "" if trained is None else f"partly trained {trained.kind}" if trained.trained else trained.kind
        if self.priced_by.startswith(CALIBRATED):
            return self.priced_by
        axes = {axis: size for mesh in self.meshes for axis, size in mesh.items()}
        return sureness_of(self.priced_by, self.hardware, kind, axes, self.world_size)

    @property
    def headline_sureness(self) -> str:
        """What a headline adds to the step time of a transformer: ", +- 6 % (...)"."""
        is_said_before = self.trained_model is None or self.priced_by.startswith(CALIBRATED)
        return "" if is_said_before else f", {self.sureness}"

    @property
    def interval(self: Any) -> tuple[float, float] | None:
        """Where a measured step would lie, s, with the chance `minitrain.machine.given_durations.LEVEL`.

        None where no calibration priced the run, or one of too few measurements, and in a run that was read.
        """
        calibration = getattr(getattr(self.prepared, "predictor", None), "calibration", None)
        factors = calibration and calibration.factors()
        return factors and (factors[0] * self.step_time, factors[1] * self.step_time)

    @property
    def doubts(self: Any) -> list[str]:
        """What the step rests on that a calibration has not measured: what to measure next, in order of its share."""
        predictor: Any = getattr(self.prepared, "predictor", None)
        if not hasattr(predictor, "doubts"):
            return []
        counts = max((Counter(map(id, log._rows[PRICE::STRIDE])) for log in self.logs), key=Counter.total)
        found: list[str] = predictor.doubts(counts, self.step_time)
        return found


def sureness_of(priced_by: str, hardware: str, kind: str, axes: Mapping[str, int], world_size: int) -> str:
    """Return how far validated runs like one were off, in words.

    Args:
        priced_by: what priced its operations.
        hardware: the name of its hardware config.
        kind: of its model.
        axes: sizes by axis.
        world_size: its ranks.
    """
    likeness = above("sureness").Likeness
    given = likeness(priced_by=priced_by, hardware=hardware, kind=kind, axes=axes, world_size=world_size)
    return str(given.how_sure())


def remark_on(mfu: float | None, *, in_eight_bits: bool = False) -> str:
    """Return what is to be said of an MFU that is too good to be true; "" of others.

    Args:
        mfu: by the peak of sixteen bits.
        in_eight_bits: whether weights are multiplied in eight bits, at twice that peak.

    >>> remark_on(0.97, in_eight_bits=True)
    ''
    >>> remark_on(0.97)
    'MFU 97.0 % is more than any published step reaches (75 % at most): something that limits real ones has no price'
    """
    share = 0.0 if mfu is None else mfu / 2 if in_eight_bits else mfu
    if mfu is None or share <= MOST_MFU:
        return ""
    what = "beyond the device's peak" if share > 1 else "more than any published step reaches (75 % at most)"
    return f"MFU {100 * mfu:.1f} % is {what}: something that limits real ones has no price"
