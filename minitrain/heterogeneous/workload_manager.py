"""The hardware-aware workload manager: which device computes what, in which batch size, precision and memory.

| question | answer |
|---|---|
| which device computes an operation | `minitrain.heterogeneous.list_scheduling` |
| how many samples each device gets | one after the other, to the device that would finish it first |
| batch size | the smallest that comes within 5 % of the best throughput and fits into memory |
| precision | the quickest that the device has and the workload allows |
| memory | the first strategy of `minitrain.heterogeneous.memory_plans` that fits |
| fusion | `minitrain.heterogeneous.fusion_rules`, by class of hardware |

All times are prices of device simulators; none is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Any, final

from minitrain.errors import UsageError, require_count
from minitrain.heterogeneous.abstraction_layer import HardwareAbstractionLayer
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, PrecisionType, profiles_of
from minitrain.heterogeneous.fusion_rules import DEFAULT_RULES, Fusion, FusionRule, fusions
from minitrain.heterogeneous.list_scheduling import NEVER, ListScheduler, operation_s
from minitrain.heterogeneous.memory_plans import MEMORY_STRATEGIES, MemoryPlan, MemoryStrategy, free_after_last_use
from minitrain.heterogeneous.taxonomy import EnhancedHardwareTaxonomy
from minitrain.heterogeneous.workloads import WorkloadProfile

_ENOUGH = 0.95
_LARGEST_BATCH = 2**20
_STEPS, _FINE = 256, 2


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

    def decompose_workload(
        self, workload: WorkloadProfile, available_hardware: Sequence[HardwareCapabilityProfile | str]
    ) -> dict[str, Any]:
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
        devices = profiles_of(available_hardware)
        schedule = ListScheduler(workload, devices).schedule()
        components: dict[str, list[str]] = {device.name: [] for device in devices}
        for name, device in schedule.device_mapping.items():
            components[device.name].append(name)
        found: dict[str, Any] = {
            "device_mapping": dict(schedule.device_mapping),
            "components": {name: names for name, names in components.items() if names},
            "finish_s": dict(schedule.finish_s),
            "seconds": schedule.seconds,
        }
        return {**found, "shares": self.share_samples(workload, devices)} if workload.batch_inputs else found

    def share_samples(
        self, workload: WorkloadProfile, available_hardware: Sequence[HardwareCapabilityProfile | str]
    ) -> dict[str, int]:
        """Return how many samples of the batch each device gets: one after the other, to the first to finish it.

        A large batch is given out in steps of a 256th, the last ones sample by sample. On equal devices shares are
        equal, as far as the batch divides; a slow device may get none.

        Raises:
            UsageError: the workload has no batch, or no device can compute it.
        """
        devices = profiles_of(available_hardware)
        shares = dict.fromkeys((device.name for device in devices), 0)
        times, batch = _BatchTimes(workload), workload.batch_size
        able = [device for device in devices if times.seconds(device, 1) < NEVER]
        if not able:
            raise UsageError(f"no device of {', '.join(shares)} can compute {workload.workload_id}; give another one")
        step = -(-batch // _STEPS)
        coarse = max(0, batch - _FINE * step * len(able)) // step * step if step > 1 else 0
        _give(shares, able, times, coarse, step)
        _give(shares, able, times, batch - coarse, 1)
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
        times, size = _BatchTimes(workload), 1
        while size <= largest and self._fits(workload.at_batch(size), hardware):
            throughput[size] = size / times.seconds(hardware, size)
            size *= 2
        if not throughput:
            needed = free_after_last_use(workload.at_batch(1), hardware.memory_bytes)
            raise UsageError(
                f"one sample of {workload.workload_id} must fit into {hardware.name}, and needs "
                f"{needed.peak_bytes:,} bytes of its {hardware.memory_bytes:,}; use a device with "
                "more memory, or a narrower precision",
                hardware=hardware.name,
            )
        best = max(throughput.values())
        return next(size for size, reached in throughput.items() if reached >= _ENOUGH * best)

    def select_precision(self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile) -> PrecisionType:
        """Return the quickest precision that a device has and a workload allows; of equally quick ones the widest.

        Raises:
            UsageError: it allows none that the device has.
        """
        found: list[tuple[float, int, PrecisionType]] = []
        datatypes = {cost.datatype for cost in workload.costs.values()}
        allowed = workload.precisions or tuple(each for each in PrecisionType if each.value in datatypes)
        for precision in allowed:
            if precision in hardware.precisions:
                seconds = _seconds(_priced_in(workload, precision), hardware)
                found.append((seconds, -precision.element_bytes, precision))
        if min((seconds for seconds, _, _ in found), default=NEVER) == NEVER:
            has = ", ".join(sorted(each.value for each in hardware.precisions)) or "none"
            raise UsageError(
                f"{workload.workload_id} may be computed in {', '.join(each.value for each in allowed) or 'nothing'}, "
                f"and {hardware.name} computes {has}; allow one of these by precisions=(...)",
                hardware=hardware.name,
            )
        return min(found, key=lambda each: each[:2])[2]

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
        return fusions(workload, list(self.operation_fusion_rules.values()), hardware.hardware_class)

    def _fits(self, workload: WorkloadProfile, hardware: HardwareCapabilityProfile) -> bool:
        return free_after_last_use(workload, hardware.memory_bytes).peak_bytes <= hardware.memory_bytes


def _give(
    shares: dict[str, int],
    devices: Sequence[HardwareCapabilityProfile],
    times: _BatchTimes,
    num_samples: int,
    step: int,
) -> None:
    """Give samples to devices, so many at a time, to the device that would finish them first."""
    finishing = [(times.seconds(each, shares[each.name] + step), place) for place, each in enumerate(devices)]
    heapify(finishing)
    for _ in range(0, num_samples, step):
        _, place = finishing[0]
        device = devices[place]
        shares[device.name] += step
        heapreplace(finishing, (times.seconds(device, shares[device.name] + step), place))


@final
class _BatchTimes:
    """How long devices take for some samples of a workload, each priced once.

    Args:
        workload: one with a batch.
    """

    def __init__(self, workload: WorkloadProfile) -> None:
        self.workload = workload
        self._at: dict[int, WorkloadProfile] = {}
        self._known: dict[tuple[str, int], float] = {}

    def seconds(self, device: HardwareCapabilityProfile, batch_size: int) -> float:
        """Return how long a device takes, s; infinitely long where it cannot."""
        key = device.device.name, batch_size
        if key not in self._known:
            if batch_size not in self._at:
                self._at[batch_size] = self.workload.at_batch(batch_size)
            self._known[key] = _seconds(self._at[batch_size], device)
        return self._known[key]


def _seconds(workload: WorkloadProfile, device: HardwareCapabilityProfile) -> float:
    """Return how long a workload takes on a device, s; infinitely long where it cannot."""
    return sum(operation_s(workload, name, device) for name in workload.by_name)


def _priced_in(workload: WorkloadProfile, precision: PrecisionType) -> WorkloadProfile:
    """Return a workload in another precision, for its price alone."""
    specs = {name: workload.specs[name] for name in workload.inputs}
    return workload.with_inputs(specs).in_precision(precision)
