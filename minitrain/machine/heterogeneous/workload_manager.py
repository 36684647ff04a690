"""The hardware-aware workload manager: which device computes what, what moves for it, and who waits for whom.

| question | answer |
|---|---|
| which device computes an operation | a list schedule by earliest finish, never worse than one device alone |
| how many samples each device gets | one after the other, to the device that would finish it first |
| which device does a whole task | the longest first, each where it ends first (`HeterogeneousScheduler`) |
| batch size | the smallest that comes within 5 % of the best throughput and fits into memory |
| precision | the quickest that the device has and the workload allows |
| memory, fusion | the first memory plan that fits, and the rules of the class of hardware |
| what moves, and from where | each array to each device once, from where it comes soonest (`DataMovementOptimizer`) |
| who waits | who reads what another device makes, unless an earlier wait implies it (`SynchronizationManager`) |

All times are prices of device simulators; none is measured. Operations that a device fuses stay together, and the last
of them has the price of all. Inputs begin on the host. Each device has its own link to
the host, as fast as its config's host memory can be read (`mem2`); for a CPU, which is a host, as fast as its memory.
Moves between devices pass the host, unless another way is quicker: devices of one config are taken to be in one node,
whose network they use (NVLink); relationships of the taxonomy say which devices share memory, are peers, or have hosts.

A device that has no rate of its own for an operation's datatype is not chosen, and neither is one that lacks what the
workload requires.

In a list schedule (HEFT) operations are sorted by their time to the end of the workload, the longest first. Each goes
to the device that finishes it first, given when devices are free and operands have come. A device's link carries one
array to it after the other. Left out: what else the sender's link carries, which the orchestrator's timeline takes into
account.

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13(3), 2002; for whole tasks Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl.
Math. 17(2), 1969.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from typing import Any

from minitrain.errors import HardwareConfigError, MinitrainError, UsageError, one_of, require_count, typed
from minitrain.machine import SystemConfig
from minitrain.machine.devices.operations import Operation
from minitrain.machine.heterogeneous.abstraction_layer import HardwareAbstractionLayer
from minitrain.machine.heterogeneous.taxonomy import (
    EnhancedHardwareTaxonomy,
    GivenDevices,
    HardwareCapabilityProfile,
    PrecisionType,
    profiles_of,
)
from minitrain.machine.heterogeneous.workloads import (
    DEFAULT_RULES,
    MEMORY_STRATEGIES,
    DeviceMapping,
    EnhancedTestTask,
    Fusion,
    FusionRule,
    MemoryPlan,
    MemoryStrategy,
    WorkloadProfile,
    dependencies,
    free_after_last_use,
    fusions,
    given_of,
)

HOST = "host"
NEVER = float("inf")
_ENOUGH = 0.95
_LARGEST_BATCH = 2**20
_STEPS, _FINE = 256, 2


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


@dataclass(frozen=True, slots=True)
class Way:
    """How an array gets from one device to another.

    Args:
        seconds: with the links for itself, s.
        peer_bytes_per_s: of the link between the devices, bytes/s; None where it passes the host.
    """

    seconds: float
    peer_bytes_per_s: float | None = None


class DataMovementOptimizer:
    """Plans moves so that each array goes to each device once, from where it comes soonest.

    Args:
        taxonomy: whose relationships say how devices are connected.
    """

    def __init__(self, taxonomy: EnhancedHardwareTaxonomy | None = None) -> None:
        self.taxonomy = EnhancedHardwareTaxonomy() if taxonomy is None else taxonomy

    def plan(self, workload: WorkloadProfile, device_mapping: DeviceMapping) -> DataMovementPlan:
        """Return the moves that a mapping needs.

        Raises:
            UsageError: an operation has no device.
        """
        require_mapped(workload, device_mapping)
        devices = {device.name: device for device in device_mapping.values()}
        holders: dict[str, list[str]] = {name: [HOST] for name in workload.inputs}
        moves: list[Move] = []

        def move(name: str, dest: str, needed_by: str) -> None:
            if dest not in holders[name]:
                size = workload.num_bytes(name)
                _, source = self.soonest(size, holders[name], dest, devices)
                moves.append(Move(name, source, dest, size, needed_by))
                holders[name].append(dest)

        for operation in workload.operations:
            dest = device_mapping[operation.name].name
            for name in operation.reads():
                move(name, dest, operation.name)
            holders[operation.name] = [dest]
        for name in workload.wanted:
            move(name, HOST, "")
        touched = (name for operation in workload.operations for name in (*operation.reads(), operation.name))
        return DataMovementPlan(tuple(moves), workload.num_bytes(*touched))

    def soonest(
        self, num_bytes: int, holders: Iterable[str], dest: str, devices: Mapping[str, HardwareCapabilityProfile]
    ) -> tuple[Way, str]:
        """Return how an array gets to a device from where it comes soonest, and where that is.

        The host comes before devices that are as quick: what it sends takes none of their bandwidth.

        Args:
            num_bytes: how large it is.
            holders: where it is: names of devices, or "host".
            dest: where it goes, likewise.
            devices: all devices by name.
        """
        ways = {place: self.way(num_bytes, devices.get(place), devices.get(dest)) for place in holders}
        place = min(ways, key=lambda at: (ways[at].seconds, at != HOST, at))
        return ways[place], place

    def way(
        self, num_bytes: int, source: HardwareCapabilityProfile | None, dest: HardwareCapabilityProfile | None
    ) -> Way:
        """Return the quickest way of an array from one device to another; None is the host."""
        if not num_bytes or self.taxonomy.related("shares_memory_with", source, dest):
            return Way(0.0)
        ends = [each for each in (source, dest) if each is not None]
        ways = [Way(max((self._host_s(num_bytes, each) for each in ends), default=0.0))]
        if source is not None and dest is not None:
            peers = self.taxonomy.related("peer_of", source, dest)
            rate = None if peers is None else float(peers.properties["bytes_per_s"])
            if rate is not None:
                ways.append(Way(num_bytes / rate, rate))
            if source.device == dest.device and source.device.networks:
                tier = source.device.network(2)
                ways.append(Way(tier.time("p2p", num_bytes, 2), tier.bandwidth * 1e9))
        return min(ways, key=lambda way: way.seconds)

    def _host_s(self, num_bytes: int, device: HardwareCapabilityProfile) -> float:
        """Return how long an array takes between a device and the host, s."""
        hosts = self.taxonomy.related("hosts", None, device)
        if hosts is not None and "bytes_per_s" in hosts.properties:
            return num_bytes / float(hosts.properties["bytes_per_s"])
        return num_bytes / device.device.mem_pcie.throughput(num_bytes)


class SynchronizationManager:
    """Says which operations wait for which on other devices."""

    def plan(self, workload: WorkloadProfile, device_mapping: DeviceMapping) -> dict[str, tuple[str, ...]]:
        """Return for each operation those of other devices that it waits for, and no more than it must.

        What an operation reads is made before it. A wait is left out where the order on the operation's own device or
        an earlier wait implies it.
        """
        require_mapped(workload, device_mapping)
        sure: dict[str, set[str]] = {}  # by operation: itself, and what has certainly ended before it
        latest: dict[str, set[str]] = {}
        waits: dict[str, tuple[str, ...]] = {}
        for operation, before in dependencies(workload).items():
            device, needed = device_mapping[operation].name, []
            ended = {operation} | latest.get(device, set())
            for other in sorted(before, key=lambda name: -len(sure[name])):
                if other not in ended:
                    needed.append(other)
                    ended |= sure[other]
            sure[operation] = latest[device] = ended
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
            f"device_mapping names {unknown[0]!r}, which is no operation of {workload.workload_id}; "
            f"{one_of(unknown[0], workload.by_name)}"
        )


def operation_s(cost: Operation, device: HardwareCapabilityProfile) -> float:
    """Return how long an operation takes on a device, s; infinitely long where the device has no rate for it."""
    if not device.computes(cost.datatype):
        return NEVER
    try:
        return device.simulator.predict(cost)
    except HardwareConfigError:
        return NEVER


def operations_s(
    workload: WorkloadProfile,
    device: HardwareCapabilityProfile,
    rules: Sequence[FusionRule] = DEFAULT_RULES,
    operations: Iterable[str] | None = None,
) -> tuple[dict[str, float], list[Fusion]]:
    """Return how long operations take on a device, s, and which of them it fuses, where that is quicker.

    The last operation of those that are fused takes as long as all of them, and those before it nothing. An operation
    that the device has no rate for takes infinitely long.

    Args:
        workload: whose operations.
        device: what computes them.
        rules: what may be fused.
        operations: those that it computes; all if None.
    """
    names = list(workload.by_name if operations is None else operations)
    seconds = {name: operation_s(workload.costs[name], device) for name in names}
    fused: list[Fusion] = []
    for chain in fusions(workload, rules, device.hardware_class, names):
        together, apart = operation_s(chain.cost, device), sum(seconds[name] for name in chain.operations)
        if together < apart < NEVER:
            seconds |= dict.fromkeys(chain.operations, 0.0) | {chain.operations[-1]: together}
            fused.append(chain)
    return seconds, fused


def workload_s(
    workload: WorkloadProfile, device: HardwareCapabilityProfile, rules: Sequence[FusionRule] = DEFAULT_RULES
) -> float:
    """Return how long all operations take on a device, s; infinitely long where it has no rate for one."""
    return sum(operations_s(workload, device, rules)[0].values())


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Where operations are computed, and when they end.

    Args:
        device_mapping: the device of each operation.
        finish_s: when each ends, s.
        seconds: when the last result that is wanted has reached the host, s.
    """

    device_mapping: DeviceMapping
    finish_s: Mapping[str, float]
    seconds: float


class ListScheduler:
    """Schedules the operations of a workload.

    Args:
        workload: what is to be computed.
        devices: what may compute it.
        operations: those that are still to be done; all if None.
        holders: where arrays are already, by name: devices, or "host"; the inputs on the host if None.
        movement: says how long moves take.
        rules: what devices fuse.
    """

    def __init__(
        self,
        workload: WorkloadProfile,
        devices: Sequence[HardwareCapabilityProfile],
        operations: Iterable[str] | None = None,
        holders: Mapping[str, Iterable[str]] | None = None,
        movement: DataMovementOptimizer | None = None,
        rules: Sequence[FusionRule] = DEFAULT_RULES,
    ) -> None:
        self.workload = workload
        self.devices = {device.name: device for device in devices}
        pending = workload.by_name if operations is None else set(operations)
        self.pending = [name for name in workload.by_name if name in pending]
        given = dict.fromkeys(workload.inputs, (HOST,)) if holders is None else holders
        self._there = {name: dict.fromkeys(places, 0.0) for name, places in given.items()}
        self._movement = DataMovementOptimizer() if movement is None else movement
        priced = {device.name: operations_s(workload, device, rules, self.pending) for device in devices}
        self._seconds = {
            name: {device: seconds[name] for device, (seconds, _) in priced.items()} for name in self.pending
        }
        self._fused = [chain.operations for _, chains in priced.values() for chain in chains]

    def schedule(self) -> ListSchedule:
        """Return the best of a list schedule over all devices and over each alone.

        Raises:
            UsageError: no device can compute an operation.
        """
        for name, seconds in self._seconds.items():
            if min(seconds.values(), default=NEVER) == NEVER:
                cost = self.workload.costs[name]
                raise UsageError(
                    f"no device of {', '.join(self.devices)} computes {cost.name} in {cost.datatype}; give one that "
                    "does, or another precision"
                )
        order = self.by_urgency()
        alone = [[device] for device in self.devices if len(self.devices) > 1]
        together = self._widest()
        tried = [self.placed(dict.fromkeys(order, names)) for names in (together, *alone)]
        best = min(tried, key=lambda schedule: schedule.seconds)
        if NEVER in best.finish_s.values():
            raise UsageError(
                f"no {len(together)} of {', '.join(self.devices)} compute all of {self.workload.workload_id} with its "
                "decomposable_components whole; give a larger width, or smaller components"
            )
        return best

    def _widest(self) -> list[str]:
        """Return as many devices as the workload is wide: those that would do all of it soonest."""
        width = given_of(self.workload, "parallelism_characteristics").get("width", len(self.devices))
        alone = {name: sum(seconds[name] for seconds in self._seconds.values()) for name in self.devices}
        chosen = sorted(self.devices, key=lambda name: alone[name])[: math.ceil(width)]
        return [name for name in self.devices if name in chosen]

    def _components(self) -> dict[str, list[str]]:
        """Return by operation those that stay on one device with it, itself among them."""
        group = {name: [name] for name in self.pending}
        given = given_of(self.workload, "decomposable_components").values()
        for together in (*(component["operations"] for component in given), *self._fused):
            joined = {other for name in together if name in group for other in group[name]}
            names = [name for name in self.pending if name in joined]
            group |= dict.fromkeys(names, names)
        return group

    def by_urgency(self) -> list[str]:
        """Return operations by the mean time from their beginning to the end, the longest first."""
        upward = dict.fromkeys(self.workload.by_name, 0.0)
        before = dependencies(self.workload)
        for name in reversed(self.pending):
            able = [each for each in self._seconds[name].values() if each < NEVER]
            upward[name] += sum(able) / len(able)
            for other in before[name]:
                upward[other] = max(upward[other], upward[name])
        return sorted(self.pending, key=lambda name: -upward[name])

    def placed(self, choices: Mapping[str, Sequence[str]]) -> ListSchedule:
        """Return the schedule that takes operations in an order, each to where it ends first of the devices it may.

        Args:
            choices: the names of the devices that each operation may go to, by operation, in that order.
        """
        free = dict.fromkeys(self.devices, 0.0)
        links = dict.fromkeys(self.devices, 0.0)
        arrived = {name: dict(places) for name, places in self._there.items()}
        mapping: dict[str, HardwareCapabilityProfile] = {}
        finish: dict[str, float] = {}
        before = dependencies(self.workload)

        def tried(name: str, device: str) -> tuple[float, float, dict[str, float]]:
            """Return when an operation would end on a device, when its link is free then, and when operands come."""
            link, came = links[device], dict[str, float]()
            for read in self.workload.by_name[name].reads():
                if device not in arrived[read]:
                    size, dest = self.workload.num_bytes(read), self.devices[device]
                    link = min(
                        max(link, at) + self._movement.way(size, self.devices.get(place), dest).seconds
                        for place, at in arrived[read].items()
                    )
                came[read] = arrived[read].get(device, link)
            ended = [finish[other] for other in before[name] if other in finish]
            return max([free[device], *came.values(), *ended]) + self._seconds[name][device], link, came

        group = self._components()
        for name, devices in choices.items():
            beside = [mapping[other].name for other in group[name] if other in mapping]
            able = [device for device in devices if all(self._seconds[each][device] < NEVER for each in group[name])]
            best = {device: tried(name, device) for device in beside[:1] or able or devices}
            device = min(best, key=lambda each: best[each][0])
            finish[name], links[device], came = best[device]
            free[device] = finish[name]
            for read, at in came.items():
                arrived[read][device] = at
            arrived[name], mapping[name] = {device: finish[name]}, self.devices[device]
        home = [
            finish[name] + self._movement.way(self.workload.num_bytes(name), mapping[name], None).seconds
            for name in self.workload.wanted
            if name in mapping
        ]
        return ListSchedule(
            {name: mapping[name] for name in self.pending},
            {name: finish[name] for name in self.pending},
            max(home, default=0.0),
        )


class HardwareAwareWorkloadManager:
    """Divides workloads over devices, and fits them to each.

    Args:
        hal: what computes.
        taxonomy: what the devices are.

    Attributes:
        operation_fusion_rules: by name.
        memory_optimization_strategies: by name, in the order in which they are tried.
    """

    def __init__(self, hal: HardwareAbstractionLayer, taxonomy: EnhancedHardwareTaxonomy) -> None:
        self.hal = hal
        self.taxonomy = taxonomy
        self.operation_fusion_rules: dict[str, FusionRule] = {rule.name: rule for rule in DEFAULT_RULES}
        self.memory_optimization_strategies: dict[str, MemoryStrategy] = dict(MEMORY_STRATEGIES)

    def able(self, workload: WorkloadProfile, available_hardware: GivenDevices) -> list[HardwareCapabilityProfile]:
        """Return the devices that have what a workload requires.

        Raises:
            UsageError: there is no device, or all lack something.
        """
        devices = profiles_of(available_hardware)
        lacking = {device.name: self.taxonomy.lacking(device, workload.requires) for device in devices}
        found = [device for device in devices if not lacking[device.name]]
        if not found:
            said = "; ".join(f"{name} lacks {', '.join(names)}" for name, names in lacking.items())
            raise UsageError(f"no device has what {workload.workload_id} requires: {said}; give another one")
        return found

    def decompose_workload(self, workload: WorkloadProfile, available_hardware: GivenDevices) -> dict[str, Any]:
        """Say which device computes each operation, and how many samples each would get of the batch.

        Args:
            workload: what is to be computed.
            available_hardware: the devices, as profiles or hardware configs.

        Returns:
            `device_mapping`, the device of each operation; `components`, the operations of each device;
            `finish_s`, when each operation would be done; `seconds`, when all results would be on the host;
            and where the workload has a batch, `shares`, the samples of each device if each did all operations.

        Raises:
            UsageError: there is no device, or none can compute an operation.
        """
        devices = self.able(workload, available_hardware)
        movement = DataMovementOptimizer(self.taxonomy)
        schedule = ListScheduler(workload, devices, movement=movement, rules=self.rules).schedule()
        components: dict[str, list[str]] = {device.name: [] for device in devices}
        for name, device in schedule.device_mapping.items():
            components[device.name].append(name)
        found = {
            "device_mapping": schedule.device_mapping,
            "components": {name: names for name, names in components.items() if names},
            "finish_s": schedule.finish_s,
            "seconds": schedule.seconds,
        }
        return {**found, "shares": self.share_samples(workload, devices)} if workload.batch_inputs else found

    def share_samples(self, workload: WorkloadProfile, available_hardware: GivenDevices) -> dict[str, int]:
        """Return how many samples of the batch each device gets: one after the other, to the first to finish it.

        A large batch is given out in steps of a 256th, the last ones sample by sample. On equal devices shares are
        equal, as far as the batch divides; a slow device may get none.

        Raises:
            UsageError: the workload has no batch, or no device can compute it.
        """
        devices = self.able(workload, available_hardware)
        shares = dict.fromkeys((device.name for device in devices), 0)
        seconds, batch = _batch_times(workload, self.rules), workload.batch_size
        able = [device for device in devices if seconds(device.device, 1) < NEVER]
        if not able:
            raise UsageError(f"no device of {', '.join(shares)} can compute {workload.workload_id}; give another one")
        if len(able) == 1:
            return {**shares, able[0].name: batch}
        large = -(-batch // _STEPS)
        coarse = max(0, batch - _FINE * large * len(able)) // large * large if large > 1 else 0
        for num_samples, step in ((coarse, large), (batch - coarse, 1)):
            finishing = [(seconds(each.device, shares[each.name] + step), place) for place, each in enumerate(able)]
            heapify(finishing)
            for _ in range(0, num_samples, step):
                place = finishing[0][1]
                name = able[place].name
                shares[name] += step
                heapreplace(finishing, (seconds(able[place].device, shares[name] + step), place))
        return shares

    def optimize_batch_size(
        self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile, largest: int = _LARGEST_BATCH
    ) -> int:
        """Return the smallest power of two whose throughput is within 5 % of the best, of those that fit.

        Args:
            workload: one with batch inputs.
            hardware: the device.
            largest: no more than so many samples.

        Raises:
            UsageError: it has no batch, or not even one sample fits into the device's memory.
        """
        require_count("largest", largest)
        throughput: dict[int, float] = {}
        size, capacity = 1, hardware.memory_bytes
        largest = min(largest, int(given_of(workload, "parallelism_characteristics").get("batch", largest)))
        while size <= largest:
            batch = workload.at_batch(size)
            if free_after_last_use(batch, capacity).peak_bytes > capacity:
                break
            throughput[size] = size / workload_s(batch, hardware, self.rules)
            size *= 2
        if not throughput:
            needed = free_after_last_use(workload.at_batch(1), capacity).peak_bytes
            raise UsageError(
                f"one sample of {workload.workload_id} must fit into {hardware.name}, and needs "
                f"{needed:,} bytes of its {capacity:,}; use a device with more memory, or a narrower precision",
                hardware=hardware.name,
            )
        best = max(throughput.values())
        return next(size for size, reached in throughput.items() if reached >= _ENOUGH * best)

    def select_precision(self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile) -> PrecisionType:
        """Return the quickest precision that a device has and a workload allows; of equally quick ones the widest.

        Raises:
            UsageError: it allows none that the device has.
        """
        specs = workload.with_inputs({name: workload.specs[name] for name in workload.inputs})
        datatypes = {cost.datatype for cost in workload.costs.values()}
        allowed = workload.precisions or tuple(each for each in PrecisionType if each.value in datatypes)
        seconds = {
            each: workload_s(specs.in_precision(each), hardware, self.rules)
            for each in allowed
            if each in hardware.precisions
        }
        if min(seconds.values(), default=NEVER) == NEVER:
            has = ", ".join(sorted(each.value for each in hardware.precisions)) or "none"
            raise UsageError(
                f"{workload.workload_id} may be computed in {', '.join(each.value for each in allowed) or 'nothing'}, "
                f"and {hardware.name} computes {has}; allow one of these by precisions=(...)",
                hardware=hardware.name,
            )
        return min(seconds, key=lambda each: (seconds[each], -each.element_bytes))

    def optimize_memory_footprint(self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile) -> MemoryPlan:
        """Return the first plan, in the order of the strategies, that fits into a device's memory.

        Raises:
            UsageError: none does.
        """
        for make in self.memory_optimization_strategies.values():
            plan = make(workload, hardware.memory_bytes)
            if plan is not None and plan.peak_bytes <= hardware.memory_bytes:
                return plan
        least = free_after_last_use(workload, hardware.memory_bytes)
        raise UsageError(
            f"no memory strategy ({', '.join(self.memory_optimization_strategies)}) brings {workload.workload_id} into "
            f"the {hardware.memory_bytes:,} bytes of {hardware.name}, of which it needs {least.peak_bytes:,}; use "
            "several devices, or batch_inputs to cut it",
            hardware=hardware.name,
        )

    def register_fusion_rule(self, rule: FusionRule) -> None:
        """Add a rule for fusing operations, which is tried before all others."""
        others = {name: each for name, each in self.operation_fusion_rules.items() if name != rule.name}
        self.operation_fusion_rules = {rule.name: rule, **others}

    def fuse_operations(self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile) -> list[Fusion]:
        """Return the chains of operations that a device computes in one pass, with what that saves."""
        return fusions(workload, self.rules, hardware.hardware_class)

    @property
    def rules(self) -> tuple[FusionRule, ...]:
        """The fusion rules, in the order in which they are tried."""
        return tuple(self.operation_fusion_rules.values())


def _batch_times(workload: WorkloadProfile, rules: Sequence[FusionRule]) -> Callable[[SystemConfig, int], float]:
    """Return what says how long a device takes for some samples of a workload, s; each is priced once."""
    at_batch, device = cache(workload.at_batch), cache(HardwareCapabilityProfile.from_device)
    return cache(lambda system, batch_size: workload_s(at_batch(batch_size), device(system), rules))


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task on a device.

    Args:
        task: prepared for it.
        device: which computes it.
        start_s: when it begins, s.
        end_s: when it has ended, s.
    """

    task: EnhancedTestTask
    device: HardwareCapabilityProfile
    start_s: float
    end_s: float


@typed
class HeterogeneousScheduler:
    """Gives whole tasks to devices, the longest first, each to where it ends first.

    Args:
        devices: profiles or hardware configs.

    Raises:
        UsageError: there are none, or two have one name.
        HardwareConfigError: a config cannot be found or read, or is invalid.
    """

    def __init__(self, devices: GivenDevices) -> None:
        self.devices = profiles_of(devices)

    def schedule(self, tasks: Sequence[EnhancedTestTask]) -> list[ScheduledTask]:
        """Return where and when each task is done, in the order in which they begin, and prepare each for its device.

        Raises:
            UsageError: no device can do a task, and why each cannot.
        """
        prices = [self._prices(task) for task in tasks]
        by_name = {device.name: device for device in self.devices}
        free = dict.fromkeys(by_name, 0.0)
        found: list[ScheduledTask] = []
        for task, seconds in sorted(zip(tasks, prices, strict=True), key=lambda pair: -min(pair[1].values())):
            name = min(seconds, key=lambda each: free[each] + seconds[each])
            task.prepare_for_hardware(by_name[name])
            found.append(ScheduledTask(task, by_name[name], free[name], free[name] + seconds[name]))
            free[name] += seconds[name]
        return sorted(found, key=lambda each: each.start_s)

    def _prices(self, task: EnhancedTestTask) -> dict[str, float]:
        """Return how long a task takes on each device that can do it, s."""
        found: dict[str, float] = {}
        reasons: list[str] = []
        for device in self.devices:
            try:
                found[device.name] = _task_s(task, device)
            except MinitrainError as error:
                reasons.append(f"{device.name}: {error}")
        if not found:
            raise UsageError(f"no device can do {task.task_id}; {'; '.join(reasons)}")
        return found


def _task_s(task: EnhancedTestTask, device: HardwareCapabilityProfile) -> float:
    """Return how long a task takes on a device, s.

    Raises:
        UsageError: it does not fit, or the device draws more than the task's budget.
        HardwareConfigError: the device has no rate for it.
    """
    needed = free_after_last_use(task.workload, device.memory_bytes).peak_bytes
    if needed > device.memory_bytes:
        raise UsageError(f"it needs {needed:,} bytes of {device.memory_bytes:,}")
    if task.power_budget is not None and (device.tdp_W is None or device.tdp_W > task.power_budget):
        drawn = "an unknown power" if device.tdp_W is None else f"{device.tdp_W:g} W"
        raise UsageError(f"it draws {drawn} of {task.power_budget:g} W")
    without = sorted({cost.datatype for cost in task.workload.costs.values() if not device.computes(cost.datatype)})
    if without:
        raise UsageError(f"it does not compute {', '.join(without)}")
    return device.simulator.predict(task.workload.program)
