"""Moving data between devices: what must move, from where, and how long it takes.

Inputs begin on the host. An array moves to a device once, however many operations there read it, and from the device
that sends it soonest: one that made it, or one that it was moved to. All moves pass the host: each device has its own
link to it, as fast as its config's host memory can be read (`mem2`); for a CPU, which is a host, as fast as its memory.

`SynchronizationManager` says which operations wait for which. Waits are left out where the order on the operation's own
device, or earlier waits, already guarantee them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from minitrain.errors import UsageError
from minitrain.hardware.device import Memory
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.workloads import WorkloadProfile, dependencies
from minitrain.workloads.field_faults import closest

HOST = "host"

DeviceMapping = Mapping[str, HardwareCapabilityProfile]
"""The device of each operation, by the operation's name."""


@final
@dataclass(frozen=True, slots=True)
class Move:
    """An array on its way from one device to another.

    Args:
        array: its name.
        source: a device, or "host".
        dest: the device that needs it, or "host" for what is wanted in the end.
        num_bytes: how large it is.
        needed_by: the first operation there that reads it; "" for the host.
    """

    array: str
    source: str
    dest: str
    num_bytes: int
    needed_by: str


@final
@dataclass(frozen=True, slots=True)
class DataMovementPlan:
    """All moves of a workload.

    Args:
        moves: in the order in which they are needed.
        bytes_without_plan: what would move if every operation fetched each of its operands from the host, and sent its
            result back there.
    """

    moves: tuple[Move, ...]
    bytes_without_plan: int

    @property
    def total_bytes(self) -> int:
        """What moves, bytes."""
        return sum(move.num_bytes for move in self.moves)

    def to(self, dest: str) -> tuple[Move, ...]:
        """Return the moves to a device."""
        return tuple(move for move in self.moves if move.dest == dest)


@final
class DataMovementOptimizer:
    """Plans moves so that each array goes to each device once, from where it comes soonest."""

    def plan(self, workload: WorkloadProfile, device_mapping: DeviceMapping) -> DataMovementPlan:
        """Return the moves that a mapping needs.

        Raises:
            UsageError: an operation has no device.
        """
        require_mapped(workload, device_mapping)
        profiles = {profile.name: profile for profile in device_mapping.values()}
        holders: dict[str, list[str]] = {name: [HOST] for name in workload.inputs}
        moves: list[Move] = []
        for operation in workload.operations:
            dest = device_mapping[operation.name].name
            for name in operation.reads():
                if dest not in holders[name]:
                    moves.append(self._move(workload, name, holders[name], dest, profiles, operation.name))
                    holders[name].append(dest)
            holders[operation.name] = [dest]
        for name in workload.wanted:
            if HOST not in holders[name]:
                moves.append(Move(name, holders[name][0], HOST, workload.specs[name].num_bytes, ""))
        return DataMovementPlan(tuple(moves), _bytes_without_plan(workload))

    def _move(
        self,
        workload: WorkloadProfile,
        name: str,
        holders: Sequence[str],
        dest: str,
        profiles: Mapping[str, HardwareCapabilityProfile],
        reader: str,
    ) -> Move:
        """Return the move of an array from the holder that sends it soonest."""
        size = workload.specs[name].num_bytes
        seconds = [(self.seconds(size, profiles.get(holder), profiles[dest]), holder) for holder in holders]
        return Move(name, min(seconds)[1], dest, size, reader)

    def seconds(
        self, num_bytes: int, source: HardwareCapabilityProfile | None, dest: HardwareCapabilityProfile | None
    ) -> float:
        """Return how long an array takes from one device to another with the links for itself, s; None is the host."""
        links = [memory for memory in map(link_of, (source, dest)) if memory is not None]
        return max((num_bytes / memory.throughput(num_bytes) for memory in links), default=0.0) if num_bytes else 0.0


def link_of(profile: HardwareCapabilityProfile | None) -> Memory | None:
    """Return the memory whose rate a device's link to the host has; None for the host itself."""
    return None if profile is None else profile.device.mem_pcie


@final
class SynchronizationManager:
    """Says which operations wait for which on other devices."""

    def plan(self, workload: WorkloadProfile, device_mapping: DeviceMapping) -> dict[str, tuple[str, ...]]:
        """Return for each operation those of other devices that it waits for, and no more than it must.

        What an operation reads is made before it. A wait is left out where the order on the operation's own device or
        an earlier wait implies it (vector clocks: Fidge 1988, Mattern 1989).
        """
        require_mapped(workload, device_mapping)
        before = dependencies(workload)
        clocks: dict[str, dict[str, int]] = {}
        latest: dict[str, str] = {}
        numbers: dict[str, tuple[str, int]] = {}
        waits: dict[str, tuple[str, ...]] = {}
        for operation in workload.by_name:
            device = device_mapping[operation].name
            seen = dict(clocks[latest[device]]) if device in latest else {}
            needed = []
            for other in sorted(before[operation], key=lambda name: -sum(clocks[name].values())):
                where, number = numbers[other]
                if seen.get(where, 0) < number:
                    needed.append(other)
                    seen = {
                        name: max(seen.get(name, 0), clocks[other].get(name, 0)) for name in {*seen, *clocks[other]}
                    }
            seen[device] = seen.get(device, 0) + 1
            clocks[operation], latest[device], numbers[operation] = seen, operation, (device, seen[device])
            waits[operation] = tuple(needed)
        return waits

    def barrier(self, finish_s: Mapping[str, float]) -> float:
        """Return when all devices have come to the end of their operations, s, of when each operation ends."""
        return max(finish_s.values(), default=0.0)


def require_mapped(workload: WorkloadProfile, device_mapping: DeviceMapping) -> None:
    """Require a device for each operation, and operations for each name.

    Raises:
        UsageError: an operation has none, or a name is no operation's.
    """
    missing = [name for name in workload.by_name if name not in device_mapping]
    unknown = [name for name in device_mapping if name not in workload.by_name]
    if missing:
        raise UsageError(
            f"every operation of {workload.workload_id} needs a device, and {', '.join(missing)} has none; add it to "
            "device_mapping, or use decompose_workload",
            missing=tuple(missing),
        )
    if unknown:
        raise UsageError(
            f"device_mapping names {unknown[0]!r}, which is no operation of {workload.workload_id} "
            f"{closest(unknown[0], workload.by_name)}; there are {', '.join(workload.by_name)}",
            unknown=tuple(unknown),
        )


def _bytes_without_plan(workload: WorkloadProfile) -> int:
    """Return the bytes that move if every operation fetches its operands and sends its result."""
    sizes = {name: spec.num_bytes for name, spec in workload.specs.items()}
    fetched = sum(sizes[name] for operation in workload.operations for name in operation.reads())
    return fetched + sum(sizes[name] for name in workload.by_name)
