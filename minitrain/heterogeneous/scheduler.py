"""The heterogeneous scheduler: whole tasks to devices, the longest first, each to where it ends first.

Longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969),
with the price of each task on each device. A task is divided no further; that is what the workload manager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from minitrain.errors import MinitrainError, UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, profiles_of
from minitrain.heterogeneous.enhanced_workloads import EnhancedTestTask
from minitrain.heterogeneous.memory_plans import free_after_last_use


@final
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


@final
class HeterogeneousScheduler:
    """Gives tasks to devices.

    Args:
        devices: profiles or hardware configs.

    Raises:
        UsageError: there are none, or two have one name.
        HardwareConfigError: a config cannot be found or read, or is invalid.
    """

    def __init__(self, devices: Sequence[HardwareCapabilityProfile | str]) -> None:
        self.devices = profiles_of(devices)

    def schedule(self, tasks: Sequence[EnhancedTestTask]) -> list[ScheduledTask]:
        """Return where and when each task is done, in the order in which they begin, and prepare each for its device.

        Raises:
            UsageError: no device can do a task, and why each cannot.
        """
        prices = [self._prices(task) for task in tasks]
        free = {device.name: 0.0 for device in self.devices}
        by_name = {device.name: device for device in self.devices}
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
                found[device.name] = _seconds(task, device)
            except MinitrainError as error:
                reasons.append(f"{device.name}: {error}")
        if not found:
            raise UsageError(f"no device can do {task.task_id}; {'; '.join(reasons)}", task=task.task_id)
        return found


def _seconds(task: EnhancedTestTask, device: HardwareCapabilityProfile) -> float:
    """Return how long a task takes on a device, s.

    Raises:
        UsageError: it does not fit, or the device draws more than the task's budget.
        HardwareConfigError: the device has no rate for it.
    """
    needed = free_after_last_use(task.workload, device.memory_bytes).peak_bytes
    if needed > device.memory_bytes:
        raise UsageError(f"it needs {needed:,} bytes of {device.memory_bytes:,}")
    if task.power_budget is not None and (device.tdp_W or 0.0) > task.power_budget:
        raise UsageError(f"it draws {device.tdp_W:g} W of {task.power_budget:g} W")
    return device.simulator.predict(task.workload.program)
