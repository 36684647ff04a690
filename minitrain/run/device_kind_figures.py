"""What `Run` shows of `minitrain.run.device_kinds`: figures by kind of device, where a run has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.analysis.timeline import Timeline
    from minitrain.run.device_kinds import DeviceKind, KindFigures


class DeviceKindFigures:
    """Figures by kind of device; all of them are empty for a run on devices that are alike.

    Attributes:
        device_kinds: the kinds, which are the groups of a cluster.
    """

    device_kinds: Sequence[DeviceKind]

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
        from minitrain.run.device_kinds import figures_by_kind  # noqa: PLC0415  (numpy only when somebody looks)

        return figures_by_kind(self) if self.device_kinds else ()  # type: ignore[arg-type]  # a `Run` is one

    def _summary_by_kind(self) -> dict[str, Any]:
        """Return what a summary says beside its other figures, ready for JSON."""
        return {"by_device_kind": [each.data() for each in self.by_device_kind]} if self.device_kinds else {}
