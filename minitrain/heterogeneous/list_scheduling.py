"""Which device computes which operation: list scheduling by earliest finish (HEFT), never worse than one device alone.

Operations are sorted by their time to the end of the workload, the longest first. Each goes to the device that finishes
it first, given when devices are free and operands have come. `holders` says which arrays exist already, and where
(inputs on the host, or results of a run in which a device died). A device's link carries one array to it after the
other. Left out: what else the sender's link carries, which the orchestrator's timeline takes into account.

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13(3), 2002.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile
from minitrain.heterogeneous.data_movement import HOST, DataMovementOptimizer
from minitrain.heterogeneous.workloads import WorkloadProfile, dependencies

NEVER = float("inf")


@final
@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Where operations are computed, and when they end.

    Args:
        device_mapping: the device of each operation.
        finish_s: when each ends, s.
        seconds: when the last result that is wanted has reached the host, s.
    """

    device_mapping: Mapping[str, HardwareCapabilityProfile]
    finish_s: Mapping[str, float]
    seconds: float


@final
@dataclass(slots=True)
class _PartialSchedule:
    """A schedule so far: devices, ends, when devices and links are free, and when arrays arrive where."""

    free: dict[str, float]
    link: dict[str, float]
    mapping: dict[str, HardwareCapabilityProfile] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)
    arrived: dict[tuple[str, str], float] = field(default_factory=dict)


@final
class ListScheduler:
    """Schedules the operations of a workload.

    Args:
        workload: what is to be computed.
        devices: what may compute it.
        operations: those that are still to be done; all if None.
        holders: where arrays are already, by name: devices, or "host"; the inputs on the host if None.
    """

    def __init__(
        self,
        workload: WorkloadProfile,
        devices: Sequence[HardwareCapabilityProfile],
        operations: Iterable[str] | None = None,
        holders: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.workload = workload
        self.devices = devices
        pending = workload.by_name if operations is None else set(operations)
        self.pending = [name for name in workload.by_name if name in pending]
        given = dict.fromkeys(workload.inputs, (HOST,)) if holders is None else holders
        self._there = {name: tuple(places) for name, places in given.items()}
        self._before = dependencies(workload)
        self._by_name = {device.name: device for device in devices}
        self._movement = DataMovementOptimizer()
        self._seconds = {
            name: {device.name: operation_s(workload, name, device) for device in devices} for name in self.pending
        }

    def schedule(self) -> ListSchedule:
        """Return the best of a list schedule over all devices and over each alone.

        Raises:
            UsageError: no device can compute an operation.
        """
        for name in self.pending:
            self._require_able(name)
        order = self._by_urgency()
        alone = [[device] for device in self.devices if len(self.devices) > 1]
        tried = [self._place(order, dict.fromkeys(order, devices)) for devices in (self.devices, *alone)]
        return min(tried, key=lambda schedule: schedule.seconds)

    def _place(self, order: Sequence[str], choices: Mapping[str, Sequence[HardwareCapabilityProfile]]) -> ListSchedule:
        """Return the schedule that takes operations in an order, each to where it ends first of the devices it may."""
        done = _PartialSchedule(free=dict.fromkeys(self._by_name, 0.0), link=dict.fromkeys(self._by_name, 0.0))
        for name in order:
            may = choices[name]
            ends = [(self._end(name, self._arrivals(name, device, done), device, done), device) for device in may]
            end, device = min(ends, key=lambda pair: pair[0])
            came = self._arrivals(name, device, done)
            moved = [at for read, at in came.items() if self._must_move(read, device, done)]
            done.link[device.name] = max([done.link[device.name], *moved])
            done.arrived |= {(read, device.name): at for read, at in came.items()}
            done.mapping[name] = device
            done.finish[name] = done.free[device.name] = end
        home = [self._home_s(name, done) for name in self.workload.wanted]
        there = {name: done.mapping[name] for name in self.pending}
        return ListSchedule(there, {name: done.finish[name] for name in self.pending}, max(home, default=0.0))

    def _end(
        self, name: str, came: Mapping[str, float], device: HardwareCapabilityProfile, done: _PartialSchedule
    ) -> float:
        """Return when an operation would end on a device, s."""
        return max([done.free[device.name], *came.values()]) + self._seconds[name][device.name]

    def _arrivals(self, name: str, device: HardwareCapabilityProfile, done: _PartialSchedule) -> dict[str, float]:
        """Return when each array that an operation reads could be on a device, one after the other over its link."""
        link, found = done.link[device.name], dict[str, float]()
        for read in self.workload.by_name[name].reads():
            if self._must_move(read, device, done):
                link = found[read] = max(link, done.finish.get(read, 0.0)) + self._move_s(read, device, done)
            else:
                found[read] = done.arrived.get((read, device.name), done.finish.get(read, 0.0))
        return found

    def _must_move(self, name: str, device: HardwareCapabilityProfile, done: _PartialSchedule) -> bool:
        """Return whether an array is not on a device yet."""
        if (name, device.name) in done.arrived:
            return False
        if name in done.mapping:
            return done.mapping[name] is not device
        return device.name not in self._there[name]

    def _move_s(self, name: str, device: HardwareCapabilityProfile, done: _PartialSchedule) -> float:
        """Return how long an array takes to a device from where it comes soonest, s."""
        size = self.workload.specs[name].num_bytes
        if name in done.mapping:
            return self._movement.seconds(size, done.mapping[name], device)
        return min(self._movement.seconds(size, self._by_name.get(place), device) for place in self._there[name])

    def _home_s(self, name: str, done: _PartialSchedule) -> float:
        """Return when a result that is wanted has come to the host, s."""
        if name not in done.mapping:
            return 0.0
        size = self.workload.specs[name].num_bytes
        return done.finish[name] + self._movement.seconds(size, done.mapping[name], None)

    def _by_urgency(self) -> list[str]:
        """Return operations by the mean time from their beginning to the end, the longest first."""
        upward = dict.fromkeys(self.workload.by_name, 0.0)
        for name in reversed(self.pending):
            able = [each for each in self._seconds[name].values() if each < NEVER]
            upward[name] += sum(able) / len(able)
            for other in self._before[name]:
                upward[other] = max(upward[other], upward[name])
        return sorted(self.pending, key=lambda name: (-upward[name], self.pending.index(name)))

    def _require_able(self, name: str) -> None:
        """Require that some device can compute an operation."""
        if min(self._seconds[name].values(), default=NEVER) == NEVER:
            cost = self.workload.costs[name]
            raise UsageError(
                f"no device of {', '.join(self._by_name)} computes {cost.name} in {cost.datatype}; give one that does, "
                "or another precision",
                operation=name,
            )


def operation_s(workload: WorkloadProfile, name: str, device: HardwareCapabilityProfile) -> float:
    """Return how long an operation takes on a device, s; infinitely long where the device has no rate for it."""
    try:
        return device.simulator.predict(workload.costs[name])
    except HardwareConfigError:
        return NEVER
