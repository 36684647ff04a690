"""The result of a simulated step: `Run`, its event logs and the figures that are read from them.

The step begins when the weights are there. A rank's *loading* is its loads before its first other operation. It is in
the events and on the clocks, and in no figure of the step: it has one of its own, `load_time`. A load in mid-step is
part of the step.

Figures are made from `class_logs`, and pictures from `drawn`. In a run of all ranks these are the logs themselves. A
folded run has one log for each class of ranks (see `minitrain.run.folding.expansion`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.errors import require_number, typed, typed_methods
from minitrain.files import StrPath
from minitrain.machine.given_durations import CALIBRATED
from minitrain.machine.price import accounts_of
from minitrain.operations import PASSES, PRICE, RECV, STRIDE, UPDATE_ON_HOST, Event, MemoryChange, Outage
from minitrain.run.above import above
from minitrain.run.allocator_replay import DeviceMemoryFigures
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.device_memory import MemoryOutsideStores, OutOfMemory
from minitrain.run.facts import Steps, TrainedModel, figures_by_kind, remark_on, steps_of_round, sureness_of
from minitrain.run.figures import (
    FiguresOfStep,
    StepEnergy,
    data_frame,
    energy_of,
    event_columns,
    peak_watts,
    summary_of,
    usd_per_hour_of,
)
from minitrain.run.ranks_once import Repeated, by_rows
from minitrain.run.saved_runs import read_run, save_run
from minitrain.workloads.matmul import NOTES, SPECIFIED

if TYPE_CHECKING:
    from minitrain.engine.model import Model
    from minitrain.machine.device import DataSheet
    from minitrain.machine.price import Account
    from minitrain.run.analysis.breakdown import AxisTotal, Breakdown, PassTime, TypeTotal
    from minitrain.run.analysis.explanation import Explanation
    from minitrain.run.analysis.timeline import Timeline, Trace
    from minitrain.run.facts import DeviceKind, KindFigures


_OF_THIS_PROCESS = ("models", "sheets", "prepared")
SECONDS_A_DAY = 86_400
JOULES_A_MEGAWATT_HOUR = 3.6e9


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What training on some tokens takes, in steps that are all alike.

    Args:
        tokens: how many.
        seconds: how long, s.
        dollars: renting the devices for it, USD; None where a config does not say the price.
        joules: what the devices draw, J; None where a config does not say their power.
    """

    tokens: float
    seconds: float
    dollars: float | None
    joules: float | None

    @classmethod
    def of(
        cls, tokens: float, num_tokens: int | None, step_time_s: float, dollars: float | None, joules: float | None
    ) -> TokenBudget | None:
        """Return the budget of steps of `num_tokens` tokens; None where a step has none.

        Example:
            >>> TokenBudget.of(1e6, 1000, 2.0, 0.5, None)
            TokenBudget(tokens=1000000.0, seconds=2000.0, dollars=500.0, joules=None)
        """
        require_number("tokens", tokens)
        if not num_tokens:
            return None
        steps = tokens / num_tokens
        dollars, joules = (None if one is None else steps * one for one in (dollars, joules))
        return cls(tokens, steps * step_time_s, dollars, joules)

    @property
    def days(self) -> float:
        """How long, days."""
        return self.seconds / SECONDS_A_DAY

    @property
    def megawatt_hours(self) -> float | None:
        """What the devices draw, MWh."""
        return None if self.joules is None else self.joules / JOULES_A_MEGAWATT_HOUR

    def summary(self) -> dict[str, float | None]:
        """Return the figures, ready for JSON."""
        figures = {"tokens": self.tokens, "days": self.days, "dollars": self.dollars}
        return {**figures, "megawatt_hours": self.megawatt_hours}


@typed_methods
@dataclass(frozen=True)
class Run(DeviceMemoryFigures, FiguresOfStep):
    """One simulated training step of all ranks.

    Args:
        strategy: its name.
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of the step.
        hardware: name of the hardware config.
        options: the strategy's options.
        logs: the events of each rank, in program order.
        peak_memory_per_rank: high-water mark of each rank, elements.
        bytes_per_element: size of an element.
        useful_flop: floating-point operations that the step has to do; without those of tokens that experts did not
            take.
        peak_flop_per_s: the device's peak rate, the mean of all ranks' where they differ; None where durations were
            given by hand.
        capacity_bytes: the device's memory (what processes may use of it, for a transformer); None likewise, or where
            ranks have different ones.
        oom: where and when the device's memory was exceeded, or None.
        memory_journals: every change of every store, one list a rank, if they were asked for.
        held_outside: what was held outside the stores; None unless the run was strict.
        network: how transfers were priced: "hierarchical", "measured", or "flat" where all pairs of ranks were alike.
        priced_by: "roofline", or what else priced operations: "kernels", a platform, a table of measured layers.
        num_nodes: how many units of the smallest network tier the ranks sit in.
        trained_model: the transformer that was trained; None for other workloads.
        models: the model of each rank; empty for a run that was read from a file.
        sheets: the data sheet of each rank's device, or one for all; empty for a run that was read from a file.
        links: what shared links carried, and why transfers took longer than their price (see
            `minitrain.whatif.replayed_runs.LinkUse`); None unless they were timed so.
        tokens_per_sample: what a sample counts as; None where the workload does not say.
        memory_by_kind: bytes of weights, gradients, optimizer, activations, logits and buffers (communication in
            flight) on the rank that held most, when it did; None where layers are alike or the run was strict.
        meshes: size by axis of each mesh that the ranks have made.
        outages: when the step was interrupted by devices that died, in order.
        needed_memory_bytes: what the fullest device must hold (`device_memory`); None where tensors alone count.
        peak_host_memory_bytes: the most that any rank kept in its host's memory.
        prepared: what was simulated (`minitrain.run.rank_tasks.PreparedRun`), to price it otherwise; None for a run
            that was read from a file, or in which devices died.
        device_kinds: which ranks have which device, of a run on a cluster; empty where all devices are alike.
        workload: name of what was trained: "specified", "dense", or what a transformer or a workload is called.
        steps: all steps of a run of many, of which this is a steady one; None of a single step.
        typical: of several measured steps, when each operation begins, how long it lasts, and when it is submitted,
            with the medians of durations and of what lies between, s, in the order of events; None of others.
    """

    strategy: str
    world_size: int
    num_layers: int
    global_batch_size: int
    hardware: str
    options: Mapping[str, Any]
    logs: Sequence[Sequence[Event]] = field(repr=False)
    peak_memory_per_rank: list[float] = field(repr=False)
    bytes_per_element: int
    useful_flop: float
    peak_flop_per_s: float | None
    capacity_bytes: float | None
    oom: OutOfMemory | None = None
    memory_journals: Sequence[Sequence[MemoryChange]] = field(default=(), repr=False)
    held_outside: MemoryOutsideStores | None = None
    network: str = "flat"
    num_nodes: int = 1
    priced_by: str = "roofline"
    trained_model: TrainedModel | None = None
    models: Sequence[Model] = field(default=(), repr=False, compare=False)
    sheets: Sequence[DataSheet | None] = field(default=(), repr=False, compare=False)
    tokens_per_sample: int | None = field(default=None, repr=False, compare=False)
    links: Any = field(default=None, repr=False, compare=False)
    memory_by_kind: Mapping[str, float] | None = field(default=None, repr=False)
    meshes: Sequence[Mapping[str, int]] = field(default=(), repr=False, compare=False)
    needed_memory_bytes: float | None = field(default=None, repr=False)
    peak_host_memory_bytes: float = field(default=0.0, repr=False)
    outages: Sequence[Outage] = field(default=(), repr=False)
    prepared: Any = field(default=None, repr=False, compare=False)
    device_kinds: Sequence[DeviceKind] = field(default=(), repr=False)
    workload: str = SPECIFIED
    steps: Steps | None = field(default=None, repr=False, compare=False)
    typical: tuple[Sequence[float], Sequence[float], Sequence[float]] | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy deep as `load_run` reads it: without what it was simulated by; a folded run with all logs."""
        kind = Run if self.is_folded else type(self)
        kept = {each.name: getattr(self, each.name) for each in fields(kind) if each.name not in _OF_THIS_PROCESS}
        return _made_of, (kind, kept)

    def __copy__(self) -> Run:
        return replace(self)

    @property
    def is_folded(self) -> bool:
        """Whether one rank of each class of ranks that do the same was simulated, and not every rank."""
        return False

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each of `class_logs` stands for; 1 unless the run was folded."""
        return 1

    @property
    def class_logs(self) -> Sequence[Sequence[Event]]:
        """The logs that figures are made from: one for each class of a folded run, else all."""
        return self.logs

    @property
    def class_models(self) -> Sequence[Any]:
        """The models that those logs are of."""
        return self.models

    @property
    def meant(self) -> Any:
        """What the strategy declares that a step computes; None for one update, and in a run read from a file."""
        return next((model._semantics for model in self.class_models[:1]), None)

    @property
    def notes(self) -> Sequence[str]:
        """What pictures and tables say beside the figures."""
        by_hand = self.peak_flop_per_s is None
        of_layers = () if by_hand or self.workload not in NOTES else (NOTES[self.workload],)
        trained = self.trained_model
        remark = remark_on(self.mfu, in_eight_bits=bool(trained.peak_of)) if trained else ""
        doubts = [f"the calibration has not measured {doubt}" for doubt in self.doubts[:3]]
        predictor = getattr(getattr(self, "prepared", None), "predictor", None)
        calibration = getattr(predictor, "calibration", None)
        meant = self.meant
        rounds = meant and f"{self.strategy}: a step is a round of {meant}; it computes something else than one update"
        return (*of_layers, *filter(None, [rounds, remark, calibration and calibration.warning]), *doubts)

    @property
    def messages(self) -> str | None:
        """How ranks receive messages: "hidden" behind compute, or "waited for"; None without any, or in a read file."""
        peers = [found for model in self.class_models for found in model._peers.items()]
        waits = [stream.is_waited_for for (kind, _), stream in peers if kind == RECV]
        return ("waited for" if any(waits) else "hidden") if waits else None

    @property
    def ranks_of_class_logs(self) -> Sequence[int]:
        """The rank whose log each of them is."""
        return range(self.world_size)

    def repeated_ranks(self, most_events: int | None = None) -> Sequence[Repeated] | None:
        """Return the ranks that did what others did (see `minitrain.run.ranks_once`).

        Args:
            most_events: None is returned where the others have more events.
        """
        return by_rows(self.logs, most_events)

    @property
    def timeline_of_classes(self) -> Timeline:
        """The columns of `class_logs`, whose peers are rows."""
        return self.timeline

    @property
    def draws_classes(self) -> bool:
        """Whether pictures have a row for each class of ranks that do the same, and not for each rank."""
        return False

    @property
    def ranks_of_rows(self) -> Sequence[Sequence[int]]:
        """The ranks that each row of `drawn` stands for."""
        return [[rank] for rank in range(self.world_size)]

    @property
    def drawn(self) -> Timeline:
        """What pictures show: the timeline of the step, a row a rank."""
        return self.step_timeline

    @property
    def drawn_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of what pictures show."""
        return self.memory_journals

    @property
    def sureness(self) -> str:
        """How far validated runs like this one were off, in words; see `minitrain.evidence.similar_runs`."""
        trained = self.trained_model
        kind = "" if trained is None else f"partly trained {trained.kind}" if trained.trained else trained.kind
        if self.priced_by.startswith(CALIBRATED):
            return self.priced_by
        axes = {axis: size for mesh in self.meshes for axis, size in mesh.items()}
        found = sureness_of(self.priced_by, self.hardware, kind, axes, self.world_size)
        is_by_host = self.peak_host_memory_bytes and UPDATE_ON_HOST in self.by_type
        return f"{found}; the host's step by a rate that differs by up to 80 times elsewhere" if is_by_host else found

    @property
    def headline_sureness(self) -> str:
        """What a headline adds to the step time of a transformer: ", +- 6 % (...)"."""
        is_said_before = self.trained_model is None or self.priced_by.startswith(CALIBRATED)
        return "" if is_said_before else f", {self.sureness}"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where a measured step would lie, s, with the chance `minitrain.machine.given_durations.LEVEL`.

        None where no calibration priced the run, or one of too few measurements, and in a run that was read.
        """
        calibration = getattr(getattr(self.prepared, "predictor", None), "calibration", None)
        factors = calibration and calibration.factors()
        return factors and (factors[0] * self.step_time, factors[1] * self.step_time)

    @property
    def doubts(self) -> list[str]:
        """What the step rests on that a calibration has not measured: what to measure next, in order of its share."""
        predictor: Any = getattr(self.prepared, "predictor", None)
        if not hasattr(predictor, "doubts"):
            return []
        logs: Any = self.logs
        counts = max((Counter(map(id, log._rows[PRICE::STRIDE])) for log in logs), key=Counter.total)
        found: list[str] = predictor.doubts(counts, self.step_time)
        return found

    @cached_property
    def timeline(self) -> Timeline:
        """The event logs as columns."""
        from minitrain.run.analysis.timeline import as_timeline  # noqa: PLC0415  (numpy only when somebody looks)

        return self._named(as_timeline(self.logs), range(self.world_size))

    def _named(self, timeline: Timeline, ranks: Sequence[int]) -> Timeline:
        """Return columns that know what the layers are called, and which devices the rows have.

        Args:
            timeline: the columns.
            ranks: the rank of each row.
        """
        if self.trained_model:
            packed = bool(self.trained_model.documents)
            timeline = replace(timeline, layer_names=self.trained_model.layer_names, is_packed=packed)
        if self.outages:
            timeline = replace(timeline, outages=tuple(self.outages))
        return self._with_devices(timeline, ranks) if self.device_kinds else timeline

    @property
    def _trace(self) -> Trace:
        """What figures are read from: the engine's own logs as they are, other logs as columns, which are made once."""
        from minitrain.run.analysis.breakdown import are_flat  # noqa: PLC0415

        logs = self.class_logs
        return logs if are_flat(logs) and self.loads_alike else self.step_timeline_of_classes

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        from minitrain.run.analysis.breakdown import breakdown  # noqa: PLC0415

        return breakdown(self._trace, self.step_end, None if self.steps is None else self.step_time)

    @property
    def peak_memory(self) -> float:
        """The highest memory of all ranks at any moment, elements."""
        return max(self.peak_memory_per_rank)

    @property
    def peak_memory_bytes(self) -> float:
        """The highest memory of all ranks at any moment, bytes."""
        return self.peak_memory * self.bytes_per_element

    @property
    def bubble_fraction(self) -> float:
        """Share of world_size x step time spent waiting."""
        return self.breakdown.bubble_fraction

    @property
    def exposed_comm_fraction(self) -> float:
        """Share of world_size x step time spent communicating with no compute beside it."""
        return self.breakdown.exposed_comm_fraction

    @property
    def num_tokens(self) -> int | None:
        """Tokens of the batch; None for workloads that count none."""
        model = self.trained_model
        each = self.tokens_per_sample if model is None else model.seq_len
        return None if each is None else self.global_batch_size * each

    @cached_property
    def _passes(self) -> list[PassTime]:
        """When each rank passes microbatches through its layers."""
        from minitrain.run.analysis.breakdown import pass_times  # noqa: PLC0415

        return pass_times(self._trace, PASSES)

    @cached_property
    def span_bubble(self) -> float:
        """The longest idle time of a rank between its first and its last pass through a layer, s.

        This is the bubble that zero-bubble papers quote (Qi et al. 2023): load and update are outside of it.
        """
        idle = (passes.last_end - passes.first_start - passes.busy for passes in self._passes)
        return max(0.0, max(idle, default=0.0))

    @cached_property
    def makespan_bubble(self) -> float:
        """Time from the first pass of any rank to the last, less the compute of the busiest rank, s."""
        if not self._passes:
            return 0.0
        first_starts, last_ends, busy = zip(*self._passes, strict=True)
        return max(0.0, float(max(last_ends) - min(first_starts) - max(busy)))

    @property
    def _load_ends(self) -> Sequence[float]:
        """When the weights of each rank, or class of ranks, that does anything are there, s."""
        from minitrain.run.analysis.breakdown import are_flat, load_end_of  # noqa: PLC0415

        logs = self.class_logs
        if are_flat(logs):
            return [load_end_of(log._rows) for log in logs if len(log)]
        ends: list[float] = self.timeline.load_ends.tolist()
        return ends

    @cached_property
    def load_time(self) -> float:
        """When the weights of all ranks are there, s: the latest end of a rank's loads before its other operations."""
        return max(self._load_ends, default=0.0)

    @cached_property
    def loads_alike(self) -> bool:
        """Whether the weights of all ranks are there at the same time, or an outage has come between."""
        from minitrain.run.analysis.breakdown import are_alike  # noqa: PLC0415

        return bool(self.outages) or are_alike(self._load_ends)

    @cached_property
    def last_clock(self) -> float:
        """The latest final clock of all ranks, s: loading and the step."""
        models = self.class_models
        if models and models[0]._log is self.class_logs[0]:  # the run was not timed again for contention
            latest: float = max(model.time for model in models)
            return latest
        return self.timeline.last_end

    @cached_property
    def step_time(self) -> float:
        """From the end of loading to the latest final clock of all ranks, s.

        Where ranks load for unequal times: as if the weights of all of them were there at 0. Of many steps, the time
        from one to the next: ranks may begin a step while others end the one before.
        """
        if self.steps is not None:
            return self.steps.steady_time
        return self.last_clock - self.load_time if self.loads_alike else self.step_timeline_of_classes.step_time

    @property
    def step_end(self) -> float | None:
        """When the step ends on the clock of `step_timeline`, s; None for its last end."""
        return self.last_clock if self.loads_alike else None

    @property
    def step_times(self) -> list[float]:
        """The time of each step, s; of a round of own steps, of each of these."""
        steps = self.steps or self.round
        return [self.step_time] if steps is None else steps.times

    @cached_property
    def round(self) -> Steps | None:
        """The steps that a strategy takes in a loop of its own; None without, and in a run read from a file."""
        begun = [model._begun for model in self.class_models]
        was_timed_again = begun and self.class_models[0]._log is not self.class_logs[0]
        if not (begun and begun[0]) or was_timed_again:
            return None
        return steps_of_round(begun, [model.time for model in self.class_models])

    @property
    def clocks(self) -> Sequence[float]:
        """When each rank has ended all that it did, s."""
        return [model.time for model in self.models]

    @cached_property
    def step_timeline(self) -> Timeline:
        """The columns that figures of the step are made from; where ranks load alike, the timeline as it is."""
        return self._of_step(self.timeline)

    @cached_property
    def typical_timeline(self) -> Timeline:
        """The columns of a step without chance, where several were measured: `typical`; `step_timeline` of others."""
        if self.typical is None:
            return self.step_timeline
        import numpy as np  # noqa: PLC0415  (only when somebody looks)

        begin, lasts, launched = map(np.array, self.typical)
        return self._of_step(replace(self.timeline, time=begin, end=begin + lasts, duration=lasts, launched=launched))

    @property
    def step_timeline_of_classes(self) -> Timeline:
        """The same of `timeline_of_classes`."""
        return self.step_timeline

    def _of_step(self, timeline: Timeline) -> Timeline:
        from minitrain.run.analysis.retiming import step_alone  # noqa: PLC0415  (numpy only where ranks load unlike)

        return timeline if self.loads_alike else step_alone(timeline)

    @property
    def dropped_token_fraction(self) -> float | None:
        """Share of the copies of tokens that experts did not take; None where experts are not divided among ranks."""
        return None if self.trained_model is None else self.trained_model.dropped_token_fraction

    @property
    def hfu_to_mfu(self) -> float | None:
        """How many times the MFU the HFU is, on any machine; None for workloads that say nothing of recomputation."""
        if self.trained_model is None or not self.useful_flop:
            return None
        return 1 + self.trained_model.recomputed_flop / self.useful_flop

    @property
    def tokens_trained(self) -> float | None:
        """Tokens that the step trains on, but for the share of copies that experts did not take; None without any."""
        if self.trained_model is None:
            return None
        return (1 - (self.dropped_token_fraction or 0.0)) * self.global_batch_size * self.trained_model.seq_len

    @cached_property
    def communication_by_axis(self) -> dict[str, AxisTotal]:
        """What a rank communicates along each axis of its mesh, on average: operations, bytes, and s, exposed too."""
        from minitrain.run.analysis.breakdown import mean_by_axis, totals_of_log  # noqa: PLC0415

        ranks = zip(self.ranks_of_class_logs, self.class_logs, strict=True)
        return mean_by_axis([totals_of_log(log, rank, self.world_size, self.meshes) for rank, log in ranks])

    @cached_property
    def energy(self) -> StepEnergy | None:
        """What each rank draws, busy and idle apart."""
        return energy_of(self.breakdown, self.sheets)

    @property
    def energy_joules(self) -> float | None:
        """What all devices draw in the step, J."""
        return self.energy and self.energy.joules

    @property
    def average_watts(self) -> float | None:
        """What all devices draw together on average, W."""
        return self.energy and self.energy.average_watts

    @cached_property
    def peak_watts(self) -> float | None:
        """The most that all devices draw together at any moment, W."""
        return peak_watts(self.step_timeline, self.sheets)

    @property
    def joules_per_token(self) -> float | None:
        """What a token of the batch takes, J; None also where the workload counts no tokens."""
        return None if self.energy is None or not self.num_tokens else self.energy.joules / self.num_tokens

    @property
    def usd_per_hour(self) -> float | None:
        """What renting all devices costs, USD an hour."""
        return usd_per_hour_of(self.sheets, self.world_size)

    def for_tokens(self, tokens: float) -> TokenBudget | None:
        """Return what training on so many tokens takes, in steps like this one; None where no tokens are counted.

        Left out: loading, failures (see `mt.goodput`), and all that is not a device.
        """
        return TokenBudget.of(tokens, self.num_tokens, self.step_time, self.dollars, self.energy_joules)

    def accounts_of_prices(self) -> Mapping[int, Callable[[], Account]]:
        """Return what explains the prices of the timeline, by the price's id; see `minitrain.machine.price`."""
        predictors = {id(model._runtime_predictor): model._runtime_predictor for model in self.class_models}
        return {key: account for each in predictors.values() for key, account in accounts_of(each).items()}

    @property
    def why_unexplained(self) -> str:
        """What is said in the place of an account where there is none."""
        if not self.class_models:
            return (
                "a run file has how long operations took, and no prices; simulate the run to see what they are made of"
            )
        if self.links is not None:
            return "it took longer than its price, as it shared links; see what was delayed, below the timeline"
        return "given by hand" if self.peak_flop_per_s is None else ""

    @property
    def keeps_events(self) -> bool:
        """Whether the logs can be read."""
        return True

    @cached_property
    def device_of_rank(self) -> Mapping[int, str]:
        """The name of each rank's kind of device."""
        return {rank: kind.name for kind in self.device_kinds for rank in kind.ranks}

    def _with_devices(self, timeline: Timeline, ranks: Sequence[int]) -> Timeline:
        """Return a timeline that says which device the rank of each row has, and is so called: "3 old"."""
        devices = [self.device_of_rank[rank] for rank in ranks]
        names = [f"{rank} {device}" for rank, device in zip(ranks, devices, strict=True)]
        return replace(timeline, rank_names=tuple(names), devices=tuple(devices))

    @cached_property
    def by_device_kind(self) -> Sequence[KindFigures]:
        """The figures of each kind, in the order of the cluster's groups: idle time, memory, energy."""
        return figures_by_kind(self) if self.device_kinds else ()

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""
        return sum(len(log) for log in self.class_logs) * self.num_ranks_a_class

    @cached_property
    def by_type(self) -> dict[str, TypeTotal]:
        """Number of events of each type on all ranks, and the time that they worked, s."""
        from minitrain.run.analysis.breakdown import totals_by_type  # noqa: PLC0415

        return totals_by_type(self.class_logs, self.num_ranks_a_class)

    @property
    def events(self) -> list[Event]:
        """All events, ordered by (time, rank)."""
        in_order = (sorted(log, key=attrgetter("time")) for log in self.logs)
        return list(heapq.merge(*in_order, key=attrgetter("time", "rank")))

    def summary(self) -> dict[str, Any]:
        """Return the run's figures, ready for JSON: times in s, sizes as their names say."""
        return summary_of(self)

    def save(self, path: StrPath, *, every_rank: bool = True) -> None:
        """Write the run to a file that `load_run` reads: see `minitrain.run.saved_runs` for the format.

        Args:
            path: where to.
            every_rank: write the events of every rank; otherwise those of ranks that did the same once, and then no
                journals of memory.
        """
        repeated = () if every_rank else self.repeated_ranks()
        save_run(self, path, repeated or ())

    def figure(self) -> Any:
        """Return a Plotly figure: what every rank does, over the memory it holds, on one time axis."""
        drawn = above("figure").figure(self.drawn, self._view(), self.drawn_journals)
        return above("notebook").NotebookFigure(drawn, self._repr_html_)

    def write_html(self, path: StrPath, include_plotlyjs: bool | str = True) -> Path:
        """Write the timeline as one page that opens without internet, and return its path.

        Args:
            path: where to.
            include_plotlyjs: True, "directory" or "parent"; the page has no script of Plotly's, so all give the same.
        """
        target = Path(path)
        above("page").write_html(target, self.drawn, self._view(), include_plotlyjs, self.drawn_journals)
        return target

    def write_chrome_trace(self, path: StrPath) -> Path:
        """Write the events as Chrome Trace Event JSON, for ui.perfetto.dev, and return the path."""
        target = Path(path)
        above("chrome trace").write_chrome_trace(target, self.timeline, self.bytes_per_element, self.memory_journals)
        return target

    def explain(self) -> Explanation:
        """Return why every rank waits, what sets the step time, what would help, and what fills the memory."""
        from minitrain.run.analysis.explanation import Explanation  # noqa: PLC0415

        line, journals = self.step_timeline, self.memory_journals
        return Explanation(line, self.bytes_per_element, self.step_end, self.strategy, self.options, journals)

    def to_pandas(self) -> Any:
        """Return all events as a pandas DataFrame, ordered by (time, rank), a column for each field of `Event`.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(event_columns(self.events))

    def __repr__(self) -> str:
        step = f"{duration(self.step_time)}{self.headline_sureness}, peak {self.peak_memory_bytes / GIB:.4g} GiB"
        kind = "Run" if self.is_folded else type(self).__name__  # a folded run is as good as another
        return f"<{kind} {self.strategy}: {above('words').conditions(self)}, step {step}>"

    def _repr_html_(self) -> str:
        """Show the figures and a picture that needs no script, which an exported notebook keeps."""
        return f"{self._facts_html()}{self._picture_html()}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:  # noqa: ARG002  (IPython's names)
        """Show the timeline in a notebook."""
        return {"text/plain": repr(self), "text/html": f"{self._facts_html()}{self._timeline_html()}"}

    def _picture_html(self) -> str:
        """Return a picture that needs no script, of the first ranks where the run is large."""
        return str(above("excerpt").picture_of_first_ranks(self, self._view()))

    def _timeline_html(self) -> str:
        """Return the timeline for a notebook."""
        return str(above("page").notebook_html(self.drawn, self._view(), self.drawn_journals))

    def _facts_html(self) -> str:
        """Return title and figures of the run as HTML."""
        view = self._view()
        return f"<p><b>{escape(view.title)}</b><br>{escape(', '.join(view.facts))}</p>"

    def _view(self) -> Any:
        """Return what pictures say of the run: a `minitrain.view.layout.View`."""
        return above("words").view_of(self)


def _made_of(kind: type[Run], kept: Mapping[str, Any]) -> Run:
    """Make a run again from its pickled fields."""
    return kind(**kept)


@typed
def load_run(path: StrPath) -> Run:
    """Read a run that `Run.save` wrote.

    Everything in the file is validated, in time and memory that are bounded by its size.

    Raises:
        UsageError: the file is missing, damaged, or of an unknown version; the first faults are named by line and key.
    """
    return Run(**read_run(path))
