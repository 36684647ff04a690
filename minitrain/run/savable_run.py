"""The part of a run that is saved, as a Protocol, since `minitrain.run.saved_runs` cannot import `Run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from minitrain.events import Event, MemoryChange, Outage
from minitrain.run.memory_reports import MemoryOutsideStores, OutOfMemory
from minitrain.run.trained_model import TrainedModel

if TYPE_CHECKING:
    from minitrain.run.device_kinds import DeviceKind


class SavableRun(Protocol):
    """The part of a run that is saved, beside the figures of the first line."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def logs(self) -> Sequence[Sequence[Event]]:
        """The events of each rank."""

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The strategy's options."""

    @property
    def oom(self) -> OutOfMemory | None:
        """Where the device's memory was exceeded."""

    @property
    def memory_journals(self) -> Sequence[Sequence[MemoryChange]]:
        """Every change of every store of each rank."""

    @property
    def network(self) -> str:
        """How transfers were priced."""

    @property
    def num_nodes(self) -> int:
        """In how many units of the smallest network tier the ranks sit."""

    @property
    def workload(self) -> str:
        """Name of what was trained."""

    @property
    def priced_by(self) -> str:
        """How operations were priced."""

    @property
    def outages(self) -> Sequence[Outage]:
        """When the step was interrupted."""

    @property
    def device_kinds(self) -> Sequence[DeviceKind]:
        """Which ranks have which device."""

    @property
    def held_outside(self) -> MemoryOutsideStores | None:
        """What was held outside the stores."""

    @property
    def trained_model(self) -> TrainedModel | None:
        """The transformer that was trained."""

    @property
    def needed_memory_bytes(self) -> float | None:
        """What the fullest device must hold."""

    @property
    def memory_by_kind(self) -> Mapping[str, float] | None:
        """Bytes of each kind at the peak."""

    @property
    def peak_host_memory_bytes(self) -> float:
        """The most that any rank kept in its host's memory."""

    @property
    def meshes(self) -> Sequence[Mapping[str, int]]:
        """Size by axis of each mesh."""
