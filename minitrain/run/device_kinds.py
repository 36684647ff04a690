"""Figures by kind of device, for a run on unlike devices: `run.by_device_kind`.

Ranks *wait* while none of their streams is at work. The share of the step that a kind waits is what equal shares of the
work waste on unequal devices. A rank waits for the last rank to come to a collective, for the sender of a message, or
for the rank that ends the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, final

from minitrain.run.analysis.explanation import waits_by_device

if TYPE_CHECKING:
    from minitrain.machine.price import RankPredictors


@final
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


@final
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
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(predictors.devices):
        ranks.setdefault(name, []).append(rank)
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
