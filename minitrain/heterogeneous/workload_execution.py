"""The execution of a workload on several devices: what lies where, what moves, and how a device's death is survived.

The orchestrator starts it and reports its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import OutOfMemoryError
from minitrain.heterogeneous.abstraction_layer import Execution, HardwareAbstractionLayer, NoBackendError, Placed
from minitrain.heterogeneous.backends import DeviceFailure
from minitrain.heterogeneous.capabilities import HardwareCapabilityProfile, HardwareClass, Key
from minitrain.heterogeneous.data_movement import HOST, DataMovementOptimizer, DeviceMapping
from minitrain.heterogeneous.list_scheduling import ListScheduler
from minitrain.heterogeneous.step_timeline import Step
from minitrain.heterogeneous.workloads import WorkloadOperation, WorkloadProfile


class DeviceCoordinator(Protocol):
    """How devices of a class compute an operation."""

    def compute(
        self, hal: HardwareAbstractionLayer, key: Key, operation: WorkloadOperation, inputs: Mapping[str, Any]
    ) -> Execution:
        """Compute an operation on the backend under a key.

        Raises:
            DeviceFailure: the device has died.
        """
        ...


@final
class LayerCoordinator:
    """Asks the abstraction layer, for one backend and no other."""

    def compute(
        self, hal: HardwareAbstractionLayer, key: Key, operation: WorkloadOperation, inputs: Mapping[str, Any]
    ) -> Execution:
        """Compute an operation."""
        return hal.execute_on(key, operation.op_type, inputs)


@final
@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done after a device died.

    Args:
        device: the one that died.
        found_by: the operation that could not be computed, or whose operand could not be fetched.
        lost: arrays that only it held and that were still needed.
        again: operations that were computed a second time to make these.
        moved_to: by device, the operations that it took over.
    """

    device: str
    found_by: str
    lost: tuple[str, ...]
    again: tuple[str, ...]
    moved_to: Mapping[str, tuple[str, ...]]


@final
@dataclass(slots=True)
class _Copy:
    """A copy of an array on a device, or on the host: what it is, and the step that brought it there."""

    array: Any
    step: int | None = None


@final
class WorkloadExecution:
    """A workload that is being computed.

    Args:
        hal: what computes.
        workload: its inputs are arrays.
        device_mapping: the device of each operation.
        devices: those and the spares, by name.
        coordinators: by class of hardware, how its devices compute; others use the abstraction layer.
        movement: says how long moves take.

    Attributes:
        steps: what has happened so far.
        recoveries: what was done after devices had died.
        peak_bytes: the most that each device held at a time.
    """

    def __init__(
        self,
        hal: HardwareAbstractionLayer,
        workload: WorkloadProfile,
        device_mapping: DeviceMapping,
        devices: Mapping[str, HardwareCapabilityProfile],
        coordinators: Mapping[HardwareClass, DeviceCoordinator],
        movement: DataMovementOptimizer,
    ) -> None:
        self.hal = hal
        self.coordinators = coordinators
        self.movement = movement
        self.workload = workload
        self.mapping = dict(device_mapping)
        self.alive = dict(devices)
        self.keys = {name: key_of(self.hal, device) for name, device in devices.items()}
        self.steps: list[Step] = []
        self.recoveries: list[Recovery] = []
        self.pending = list(workload.by_name)
        self.copies: dict[str, dict[str, _Copy]] = {
            name: {HOST: _Copy(array)} for name, array in workload.inputs.items()
        }
        self.peak_bytes = dict.fromkeys(devices, 0)
        self._failed_at: tuple[int, ...] = ()

    def compute(self) -> dict[str, NDArray[Any]]:
        """Compute all operations, and return what is wanted on the host.

        Raises:
            DeviceFailure: the last device has died.
            OutOfMemoryError: a device would have to hold more than its memory.
            NoBackendError: a backend cannot compute an operation.
        """
        while True:
            name = self.pending[0] if self.pending else ""
            try:
                if name:
                    self._compute(name)
                    self.pending.pop(0)
                else:
                    return {wanted: self._at_home(wanted) for wanted in self.workload.wanted}
            except DeviceFailure as failure:
                self._recover(failure, name)

    def _compute(self, name: str) -> None:
        """Compute one operation on its device."""
        operation, device = self.workload.by_name[name], self.mapping[name]
        if device.name not in self.alive:
            raise DeviceFailure(f"{device.name} has died", device=device.name)
        arrays = {read: self._on(read, device.name) for read in operation.reads()}
        inputs = operation.with_arrays({read: copy.array for read, copy in arrays.items()})
        coordinator = self.coordinators.get(device.hardware_class) or LayerCoordinator()
        try:
            done = coordinator.compute(self.hal, self.keys[device.name], operation, inputs)
        except DeviceFailure as failure:
            raise DeviceFailure(str(failure), device=device.name) from failure
        seconds = device.simulator.predict(self.workload.costs[name])
        after = (*(copy.step for copy in arrays.values() if copy.step is not None), *self._failed_at)
        self.steps.append(Step("compute", name, device.name, after, seconds=seconds))
        self.copies[name] = {device.name: _Copy(done.result, len(self.steps) - 1)}
        self._count_bytes(device)
        self._free(name)

    def _on(self, name: str, dest: str) -> _Copy:
        """Return an array's copy on a device, or on the host, moved there if need be."""
        copies = self.copies[name]
        if dest in copies:
            return copies[dest]
        movement, size = self.movement, self.workload.specs[name].num_bytes
        seconds = {place: movement.seconds(size, self.alive.get(place), self.alive.get(dest)) for place in copies}
        source = min(copies, key=lambda place: (seconds[place], place))
        array = self._numbers(copies[source], source)
        after = (*(step for step in (copies[source].step,) if step is not None), *self._failed_at)
        self.steps.append(Step("move", name, dest, after, source, int(array.nbytes), seconds[source]))
        placed = array if dest == HOST else self.hal.put(array, self.keys[dest])
        copies[dest] = _Copy(placed, len(self.steps) - 1)
        return copies[dest]

    def _at_home(self, name: str) -> NDArray[Any]:
        """Return a result on the host."""
        return np.asarray(self._on(name, HOST).array)

    def _numbers(self, copy: _Copy, place: str) -> NDArray[Any]:
        """Return the numbers of a copy.

        Raises:
            DeviceFailure: its device has died.
        """
        if not isinstance(copy.array, Placed):
            return np.asarray(copy.array)
        try:
            return copy.array.numpy()
        except DeviceFailure as failure:
            raise DeviceFailure(str(failure), device=place) from failure

    def _count_bytes(self, device: HardwareCapabilityProfile) -> None:
        """Note what a device holds, and require that it has room."""
        held = sum(self.workload.specs[name].num_bytes for name, copies in self.copies.items() if device.name in copies)
        self.peak_bytes[device.name] = max(self.peak_bytes[device.name], held)
        if held > device.memory_bytes:
            raise OutOfMemoryError(
                f"{device.name} would hold {held:,} bytes of {self.workload.workload_id}, and has "
                f"{device.memory_bytes:,}; divide it over more devices, or use a smaller batch",
                device=device.name,
            )

    def _free(self, done: str) -> None:
        """Drop arrays that no later operation reads, unless they are wanted results; inputs stay on the host."""
        needed = {read for name in self.pending if name != done for read in self.workload.by_name[name].reads()}
        for name in {*self.workload.by_name[done].reads(), done} - needed - set(self.workload.wanted):
            self.copies[name] = {place: copy for place, copy in self.copies[name].items() if place == HOST}

    def _recover(self, failure: DeviceFailure, found_by: str) -> None:
        """Go on without a device.

        Raises:
            DeviceFailure: it was the last one.
        """
        dead = str(failure.device)
        del self.alive[dead]
        last = tuple(number for number, step in enumerate(self.steps) if dead in (step.device, step.source))[-1:]
        self.steps.append(Step("failure", found_by, dead, last))
        self._failed_at = (len(self.steps) - 1,)
        for copies in self.copies.values():
            copies.pop(dead, None)
        if not self.alive:
            raise DeviceFailure(
                f"all devices have died, {dead} as the last, at {found_by or 'the end'} of "
                f"{self.workload.workload_id}; give spares",
                device=dead,
            )
        lost, again = self._lost()
        self.pending = [name for name in self.workload.by_name if name in {*again, *self.pending}]
        before = {name: self.mapping[name].name for name in self.pending}
        self._divide_again()
        taken: dict[str, list[str]] = {}
        for name in self.pending:
            if before[name] == dead:
                taken.setdefault(self.mapping[name].name, []).append(name)
        moved_to = {name: tuple(names) for name, names in taken.items()}
        self.recoveries.append(Recovery(dead, found_by, lost, again, moved_to))

    def _lost(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the arrays that are needed and that no device holds, and the operations that make them again."""
        pending = set(self.pending)
        needed = [read for name in self.pending for read in self.workload.by_name[name].reads()]
        needed += self.workload.wanted
        again: set[str] = set()
        lost = {name for name in needed if name not in pending and not self.copies.get(name)}
        open_names = list(lost)
        while open_names:
            name = open_names.pop()
            if name in again:
                continue
            again.add(name)
            reads = self.workload.by_name[name].reads()
            open_names += [read for read in reads if read not in pending and not self.copies.get(read)]
        order = list(self.workload.by_name)
        return tuple(sorted(lost, key=order.index)), tuple(sorted(again, key=order.index))

    def _divide_again(self) -> None:
        """Divide the remaining operations among the devices that are left."""
        holders = {name: tuple(copies) for name, copies in self.copies.items() if copies}
        devices = list(self.alive.values())
        self.mapping |= ListScheduler(self.workload, devices, self.pending, holders).schedule().device_mapping


def key_of(hal: HardwareAbstractionLayer, device: HardwareCapabilityProfile) -> Key:
    """Return under which key a layer has the backend of a device: its name, that of its config, or its class.

    Raises:
        NoBackendError: under none of them.
    """
    keys: tuple[Key, ...] = (device.name, device.device.name, device.hardware_class)
    found = [key for key in keys if key in hal.hardware_backends]
    if not found:
        raise NoBackendError(
            f"{device.name} has no backend; tried {device.name!r}, {device.device.name!r} and class "
            f"{device.hardware_class.value}; register_backend({device.name!r}, SimulatedBackend(...))",
            device=device.name,
        )
    return found[0]
