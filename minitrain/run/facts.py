"""What a run says of itself beside its events: the transformer that it trains, its steps, and its kinds of device.

*The transformer*: its name, the length of its samples, the names of its layers; and how sure the run's figures are: how
far validated runs like it were off, and figures that no device was measured at.

*Steps*: each begins where the one before has left the clocks and the weights of its ranks. A rank begins its next step
when all that it did in this one has ended, whatever other ranks do. The weights are those that it handed in, so that
later steps load nothing. Each step is simulated as a run of its own, from the clocks that the one before has left. Once
clocks return, relative to one another, all that follows returns with them: operations depend on differences of clocks
alone. The rest is then known without being simulated. That it comes to this is a theorem of max-plus algebra (Baccelli,
Cohen, Olsder, Quadrat 1992, *Synchronization and Linearity*, theorem 3.109).

*Kinds of device*: figures for a run on unlike devices, `run.by_device_kind`. Ranks *wait* while none of their streams
is at work. The share of the step that a kind waits is what equal shares of the work waste on unequal devices. A rank
waits for the last rank to come to a collective, for the sender of a message, or for the rank that ends the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError
from minitrain.operations import EventLog
from minitrain.run.above import above
from minitrain.run.analysis.labels import duration
from minitrain.tensors.index_sets import grouped
from minitrain.workloads.matmul import NOTES, SPECIFIED

if TYPE_CHECKING:
    from minitrain.engine.model import Model
    from minitrain.machine.price import RankPredictors


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


def trained_model_of(workload: Any, models: Sequence[Model] = (), times: int = 1) -> TrainedModel | None:
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


_SAME = 1e-12
"""The largest difference of two clocks, relative to the length of the steps so far, that is rounding."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run of many.

    Args:
        num_steps: how many.
        load_time: how long the first one loads the weights, s.
        ends: when the last rank ended each of those that were simulated, until clocks returned, s.
        period: how many steps it takes until they return; None where all steps were simulated and they did not.
        first: the `Run` of the first step; None of a run that was read from a file, and of steps of one round.
        returned: after how many steps clocks had returned; None for the last of `ends`.
    """

    num_steps: int
    load_time: float
    ends: tuple[float, ...]
    period: int | None
    first: Any = field(default=None, repr=False, compare=False)
    returned: int | None = None

    @property
    def borders(self) -> tuple[float, ...]:
        """When the steps that were simulated begin and end, s."""
        return (self.load_time, *self.ends)

    @property
    def times(self) -> list[float]:
        """The time of each step, s: from the end of the one before (of loading, for the first) on its last rank."""
        known = [end - begin for begin, end in pairwise(self.borders)]
        if self.period is None:
            return known
        again = known[-self.period :]
        missing = self.num_steps - len(known)
        return known + [again[index % self.period] for index in range(missing)]

    @property
    def steady_time(self) -> float:
        """The mean time of the steps that return, or the time of the last one, s."""
        length, place = self.period or 1, len(self.ends) if self.returned is None else self.returned
        return (self.borders[place] - self.borders[place - length]) / length

    @property
    def total_time(self) -> float:
        """From the beginning of loading to the end of the last step, s."""
        if self.period is None:
            return self.ends[-1]
        again = self.borders[-1 - self.period :]
        whole, part = divmod(self.num_steps - len(self.ends), self.period)
        return self.ends[-1] + whole * (again[-1] - again[0]) + (again[part] - again[0])

    def __str__(self) -> str:
        first, loading = duration(self.ends[0] - self.load_time), duration(self.load_time)
        return (
            f"{self.num_steps:,} steps take {duration(self.total_time)}: {loading} of loading, {first} for the first, "
            f"then {duration(self.steady_time)} each"
        )


def steps_of_round(begun: Sequence[Sequence[float]], ended: Sequence[float]) -> Steps:
    """Return the steps of a loop that a strategy has written, all of which were simulated.

    Args:
        begun: when each rank began each of them, s.
        ended: when each rank ended the last, s.
    """
    borders = [*zip(*begun, strict=True), ended]
    latest = [max(clocks) for clocks in borders]
    seen: list[Sequence[float]] = []
    for place, clocks in enumerate(borders[1:-1], 1):  # what is launched for a next step is missing in the last
        earliest = min(clocks)
        seen.append([clock - earliest for clock in clocks])
        period = period_of(seen, earliest)
        if period is not None:
            return Steps(len(latest) - 1, latest[0], tuple(latest[1:]), period, returned=place)
    return Steps(len(latest) - 1, latest[0], tuple(latest[1:]), None)


def require_one_step(run: Any, what: str) -> None:
    """Require a run of one step, whose ranks begin together.

    Args:
        run: a `Run`.
        what: asks for it.

    Raises:
        UsageError: it is one of many steps.
    """
    if run.steps is not None:
        raise UsageError(
            f"{what} follows one step whose ranks begin together, and the run of {run.strategy} has "
            f"{run.steps.num_steps:,}; simulate it without steps, or give `run.steps.first`"
        )


def require_events(run: Any, what: str, kind: Any = EventLog | list) -> None:
    """Require that a run has kept every event of every rank, in logs of a kind; those of a file are lists.

    Raises:
        UsageError: it kept totals alone, or has many steps.
    """
    require_one_step(run, what)
    if len(run.logs) != run.world_size or not all(isinstance(log, kind) for log in run.logs):
        raise UsageError(
            f"{what} needs every event of every rank, and the run of {run.strategy} has not kept them; simulate it "
            'with log="full"'
        )


def period_of(seen: Sequence[Sequence[float]], begin: float) -> int | None:
    """Return after how many steps the last clocks have come before; None if they have not.

    Args:
        seen: the clocks of all ranks after each step, relative to the earliest.
        begin: when the earliest was there after the last step, s.
    """
    tolerance = _SAME * begin
    last = seen[-1]
    for ago, before in enumerate(islice(reversed(seen), 1, None), 1):
        if all(abs(one - other) <= tolerance for one, other in zip(last, before, strict=True)):
            return ago
    return None


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The ranks of a run that have devices of one kind: a group of a cluster.

    Args:
        name: of the group.
        hardware: the name of its hardware config.
        ranks: those with such a device, ascending.
        capacity_bytes: memory of each; None where it is not known.
        peak_flop_per_s: of each by its data sheet; None likewise.
        watts: the most that each draws, W; None likewise.
        clock_share: what caps and heat leave of the usual clock.
        limited_by: "power cap", "node power cap" or "heat"; None where nothing slows the clock.
    """

    name: str
    hardware: str
    ranks: tuple[int, ...]
    capacity_bytes: float | None = None
    peak_flop_per_s: float | None = None
    watts: float | None = None
    clock_share: float = 1.0
    limited_by: str | None = None


@dataclass(frozen=True, slots=True)
class KindFigures:
    """The figures of the ranks of one kind.

    Args:
        kind: the kind.
        computing_fraction: share of their time spent computing.
        exposed_comm_fraction: share spent communicating with no compute beside it.
        idle_fraction: share spent waiting.
        waits_for_s: mean time that each of them waited, by the kind of the rank that it waited for; None where events
            were not kept.
        work_fraction: share of all ranks' samples x layers that they take forward; None likewise.
        peak_memory_bytes: the most that any of them held.
        energy_joules: what they draw in the step; None where a config does not say its power.
    """

    kind: DeviceKind
    computing_fraction: float
    exposed_comm_fraction: float
    idle_fraction: float
    waits_for_s: Mapping[str, float] | None
    work_fraction: float | None
    peak_memory_bytes: float
    energy_joules: float | None

    @property
    def is_out_of_memory(self) -> bool | None:
        """Whether any of them held more than its device's memory; None where that is not known."""
        capacity = self.kind.capacity_bytes
        return None if capacity is None else self.peak_memory_bytes > capacity

    def data(self) -> dict[str, Any]:
        """Return the figures, ready for JSON."""
        kind = asdict(self.kind)
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"}
        return {
            "device": kind.pop("name"),
            "num_ranks": len(kind.pop("ranks")),
            **own,
            **{name: value for name, value in kind.items() if name != "peak_flop_per_s"},
            "waits_for_s": None if self.waits_for_s is None else dict(self.waits_for_s),
            "out_of_memory": self.is_out_of_memory,
        }


def figures_by_kind(run: Any) -> list[KindFigures]:
    """Return the figures of each kind of device that a run has."""
    from minitrain.run.analysis.explanation import waits_by_device  # noqa: PLC0415  (numpy only when somebody looks)

    waits = waits_by_device(run.step_timeline_of_classes) if run.keeps_events else {}
    work = _work(run) if run.keeps_events else {}
    total_work = sum(work.values())
    return [
        _figures_of(run, kind, waits.get(kind.name), work[kind.name] / total_work if total_work else None)
        for kind in run.device_kinds
    ]


def _figures_of(
    run: Any, kind: DeviceKind, waits: Mapping[str, float] | None, work_fraction: float | None
) -> KindFigures:
    """Return the figures of one kind."""
    parts, energy, ranks, step = run.breakdown, run.energy, list(kind.ranks), run.step_time or 1.0
    return KindFigures(
        kind,
        float(parts.computing[ranks].mean() / step),
        float(parts.exposed[ranks].mean() / step),
        float(parts.waiting[ranks].mean() / step),
        waits,
        work_fraction,
        max(run.peak_memory_per_rank[rank] for rank in ranks) * run.bytes_per_element,
        None if energy is None else float((energy.busy_joules + energy.idle_joules)[ranks].sum()),
    )


def _work(run: Any) -> dict[str, int]:
    """Return the samples x layers that the ranks of each kind take forward, where each log stands for as many ranks."""
    work = {kind.name: 0 for kind in run.device_kinds}
    for rank, log in zip(run.ranks_of_class_logs, run.class_logs, strict=True):
        work[run.device_of_rank[rank]] += sum(len(event.samples) for event in log if event.typ == "forward")
    return work


def kinds_of(predictors: RankPredictors) -> tuple[DeviceKind, ...]:
    """Return the kinds of device that the ranks of a run on a cluster have."""
    ranks = grouped((name, rank) for rank, name in enumerate(predictors.devices))
    return tuple(
        DeviceKind(
            group.label,
            group.system.name,
            tuple(ranks[group.label]),
            predictors.predictors[ranks[group.label][0]].capacity_bytes,
            predictors.predictors[ranks[group.label][0]].peak_flop_per_s,
            group.watts,
            group.clock_share,
            group.limited_by,
        )
        for group in predictors.cluster.devices
        if group.label in ranks
    )
