"""The multi-device orchestrator: a workload's operations on several devices, with real arithmetic, moves and failures.

Operations are computed in the workload's order, each by the backend of its device. What one reads is moved there first,
once, as the data movement plan says. Moved bytes are those of real arrays.

When a device dies, what only it held is lost. The operations that are needed again, and those still to be done, go to
the devices that are left, by a list schedule, and the run goes on. Since each operation computes the same on every
backend of one kind, the numbers are those of a run without failure.

How long all this takes is priced in `minitrain.heterogeneous.step_timeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray

from minitrain.errors import UsageError
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, Key, class_named, profiles_of
from minitrain.heterogeneous.data_movement import (
    DataMovementOptimizer,
    DataMovementPlan,
    DeviceMapping,
    SynchronizationManager,
    require_mapped,
)
from minitrain.heterogeneous.enhanced_workloads import EnhancedTestTask
from minitrain.heterogeneous.step_timeline import Step, StepTimeline, timeline
from minitrain.heterogeneous.workload_execution import DeviceCoordinator, Recovery, WorkloadExecution
from minitrain.heterogeneous.workload_manager import HardwareAwareWorkloadManager
from minitrain.heterogeneous.workloads import ArraySpec, WorkloadProfile


@final
@dataclass(frozen=True, slots=True, eq=False)
class OrchestratedRun:
    """A workload that was computed on several devices.

    Args:
        outputs: the results that are wanted, by name.
        plan: the moves that were planned at first.
        steps: what happened.
        timeline: when, by prices.
        waits: which operations of other devices each operation waited for, as planned at first.
        recoveries: what was done after devices died.
        peak_bytes: the most that each device held at a time.
    """

    outputs: Mapping[str, NDArray[Any]]
    plan: DataMovementPlan
    steps: tuple[Step, ...]
    timeline: StepTimeline
    waits: Mapping[str, tuple[str, ...]]
    recoveries: tuple[Recovery, ...]
    peak_bytes: Mapping[str, int]

    @property
    def moved_bytes(self) -> int:
        """All bytes that moved; the planned ones, where no device died."""
        return sum(step.num_bytes for step in self.steps if step.kind == "move")

    @property
    def seconds(self) -> float:
        """When the last result reached the host, by prices, s."""
        return self.timeline.seconds


class MultiDeviceOrchestrator:
    """Computes workloads on several devices.

    Args:
        workload_manager: divides them.

    Attributes:
        device_coordinators: by class of hardware, how its devices compute; others use the abstraction layer.
        data_movement_optimizer: plans moves.
        sync_manager: plans waits.
    """

    def __init__(self, workload_manager: HardwareAwareWorkloadManager) -> None:
        self.workload_manager = workload_manager
        self.device_coordinators: dict[HardwareClass, DeviceCoordinator] = {}
        self.data_movement_optimizer = DataMovementOptimizer()
        self.sync_manager = SynchronizationManager()

    def register_device_coordinator(self, hardware_class: Key, coordinator: DeviceCoordinator) -> None:
        """Make the devices of a class compute through a coordinator.

        Raises:
            UsageError: it cannot compute.
        """
        if not callable(getattr(coordinator, "compute", None)):
            raise UsageError(
                f"a coordinator needs a method compute(hal, key, operation, inputs), and "
                f"{type(coordinator).__name__} has none; see DeviceCoordinator"
            )
        self.device_coordinators[class_named(hardware_class)] = coordinator

    def optimize_data_movement(
        self, operation_graph: WorkloadProfile, device_mapping: DeviceMapping
    ) -> DataMovementPlan:
        """Return the moves that a mapping needs: each array to each device once."""
        return self.data_movement_optimizer.plan(operation_graph, device_mapping)

    def execute_multi_device_workload(
        self,
        workload: WorkloadProfile,
        device_mapping: Mapping[str, HardwareCapabilityProfile] | Sequence[HardwareCapabilityProfile | str],
        *,
        spares: Sequence[HardwareCapabilityProfile | str] = (),
        power_budget_W: float | None = None,  # noqa: N803 - a unit
    ) -> OrchestratedRun:
        """Compute a workload on several devices, and price it.

        Args:
            workload: its inputs are arrays.
            device_mapping: the device of each operation; or devices, over which the manager divides it.
            spares: devices that are used when another dies.
            power_budget_W: what the devices may draw together, W; None for no limit.

        Raises:
            UsageError: an input has no numbers, an operation no device, or the power budget is too small.
            OutOfMemoryError: a device would have to hold more than its memory.
            NoBackendError: a device has no backend, or cannot compute an operation.
            DeviceFailure: the last device has died.
        """
        _require_numbers(workload)
        mapping = self._mapping(workload, device_mapping)
        devices = _all_devices(mapping, spares)
        run = WorkloadExecution(
            self.workload_manager.hal,
            workload,
            mapping,
            devices,
            self.device_coordinators,
            self.data_movement_optimizer,
        )
        outputs = run.compute()
        return OrchestratedRun(
            outputs=outputs,
            plan=self.optimize_data_movement(workload, mapping),
            steps=tuple(run.steps),
            timeline=timeline(run.steps, list(devices.values()), power_budget_W),
            waits=self.sync_manager.plan(workload, mapping),
            recoveries=tuple(run.recoveries),
            peak_bytes=run.peak_bytes,
        )

    def _mapping(
        self,
        workload: WorkloadProfile,
        given: Mapping[str, HardwareCapabilityProfile] | Sequence[HardwareCapabilityProfile | str],
    ) -> DeviceMapping:
        """Return the device of each operation, as given or as the manager divides them."""
        if isinstance(given, Mapping):
            require_mapped(workload, given)
            return given
        found: DeviceMapping = self.workload_manager.decompose_workload(workload, given)["device_mapping"]
        return found

    def execute_task(
        self, task: EnhancedTestTask, devices: Sequence[HardwareCapabilityProfile | str]
    ) -> OrchestratedRun:
        """Compute a task's workload within its power budget, and fill in its plans."""
        run = self.execute_multi_device_workload(task.workload, devices, power_budget_W=task.power_budget)
        mapping = {step.name: step.device for step in run.steps if step.kind == "compute"}
        task.execution_plan = {"device_mapping": mapping, "seconds": run.seconds}
        task.data_movement_plan = {"moves": run.plan.moves, "total_bytes": run.plan.total_bytes}
        return run


def _require_numbers(workload: WorkloadProfile) -> None:
    """Require that all inputs are arrays."""
    bare = [name for name, given in workload.inputs.items() if isinstance(given, ArraySpec)]
    if bare:
        raise UsageError(
            f"{workload.workload_id} is computed with real numbers, and {bare[0]} is an ArraySpec without; give an "
            "array, or use decompose_workload for prices alone",
            name=bare[0],
        )


def _all_devices(
    mapping: DeviceMapping, spares: Iterable[HardwareCapabilityProfile | str]
) -> dict[str, HardwareCapabilityProfile]:
    """Return the devices of a mapping and the spares, by name."""
    found: dict[str, HardwareCapabilityProfile] = {}
    for device in [*mapping.values(), *(profiles_of(spares) if spares else ())]:
        if found.setdefault(device.name, device) != device:
            raise UsageError(
                f"two devices are called {device.name!r}; give each a name of its own, as profiles_of does",
                name=device.name,
            )
    return found
