"""The multi-device orchestrator: a workload's operations on several devices, with real arithmetic, moves and failures.

Each device has a worker, a thread that computes its operations in the workload's order, at the same time as others do.
An operation waits for what it reads, which is moved there first, once, as the data movement plan says, and for what the
workload's `dependency_graph` says beside. All devices meet before results are returned and before work is divided
again. Moved bytes are those of real arrays.

When a device dies, what only it held is lost. The operations that are needed again, and those still to be done, go to
the devices that are left, by a list schedule, and the run goes on; what others have computed meanwhile is kept. Since
each operation computes the same on every backend of one kind, the numbers are those of a run without failure.

How long all this took is measured, by this machine's clock. How long it takes on the devices that the configs describe
is simulated afterwards (`timeline`), of several runs on the same devices together (`share_devices`).

Left out: the time until a death is noticed, and what real devices hold more when they run ahead of others.

A backend that waits for its device for a limited time only: what hangs is a failure, and no longer a hang.

A call to a driver cannot be stopped from outside, so each is made by a thread of its own. Where it does not return in
time, the thread is left behind, and the device is never asked again. Left out: time that a device needs to come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Thread
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import OutOfMemoryError, UsageError, typed
from minitrain.machine.devices.operations import Operation, is_number
from minitrain.machine.heterogeneous.abstraction_layer import (
    DeviceFailure,
    Execution,
    HardwareAbstractionLayer,
    HardwareBackend,
    Placed,
    Timed,
)
from minitrain.machine.heterogeneous.operations import OperationKind, Options
from minitrain.machine.heterogeneous.taxonomy import (
    GivenDevices,
    HardwareCapabilityProfile,
    HardwareClass,
    Key,
    class_named,
    profiles_of,
)
from minitrain.machine.heterogeneous.timeline import Step, StepKind, StepTimeline, TimedStep, num_units_of, timeline
from minitrain.machine.heterogeneous.workload_manager import (
    HOST,
    DataMovementOptimizer,
    DataMovementPlan,
    HardwareAwareWorkloadManager,
    ListScheduler,
    SynchronizationManager,
    Way,
    operations_s,
)
from minitrain.machine.heterogeneous.workloads import (
    ArraySpec,
    DeviceMapping,
    EnhancedTestTask,
    WorkloadOperation,
    WorkloadProfile,
    dependencies,
    kept,
)


def _on_host(array: Any) -> Any:
    """Return an array's numbers in the host's memory."""
    return array.numpy() if isinstance(array, Placed) else array


def _known(array: Any) -> Future[_Done]:
    """Return the future of an array that is there."""
    future: Future[_Done] = Future()
    future.set_result(_Done(array))
    return future


class DeviceCoordinator(Protocol):
    """How devices of a class compute an operation; it is asked by a thread of each of these devices."""

    def compute(
        self, hal: HardwareAbstractionLayer, key: Key, operation: WorkloadOperation, inputs: Mapping[str, Any]
    ) -> Execution:
        """Compute an operation on the backend under a key.

        Raises:
            DeviceFailure: the device has died.
        """


class LayerCoordinator:
    """Asks the abstraction layer, for one backend and no other."""

    def compute(
        self, hal: HardwareAbstractionLayer, key: Key, operation: WorkloadOperation, inputs: Mapping[str, Any]
    ) -> Execution:
        """Compute an operation."""
        return hal.execute_on(key, operation.op_type, inputs)


def _price(cost: Operation | None, device: HardwareCapabilityProfile) -> dict[str, Any]:
    """Return what a step says of an operation's price; nothing for one that is computed within another."""
    if cost is None:
        return {}
    simulator = device.simulator
    seconds, time = simulator.predict(cost), simulator.operation_time(cost)
    largest = max(time.compute_s, time.memory_s) * cost.count
    part = cost.count * min(1.0, seconds / largest) if largest else 0.0  # hooks of one's own may make it quicker
    hot_s = device.throttled.simulator.predict(cost)
    return {"seconds": seconds, "work": (time.compute_s * part, time.memory_s * part), "hot_s": hot_s}


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


@dataclass(frozen=True, slots=True)
class _Done:
    """What a worker has made, and when, s."""

    array: Any
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class _Copy:
    """A copy of an array on a device, or on the host: its future, and the step that brought it there, if any."""

    future: Future[_Done]
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Issued:
    """A step that workers have been asked for.

    Args:
        kind: "compute" or "move".
        name: of the operation, or the array that moves.
        device: that computes, or where a move goes.
        needed_by: the operation that it is done for; "" for results.
        way: its price, s, and the link of a move.
        copy: its result.
        needs: what it waits for.
        source: where a move comes from.
        carried: what a move carries, on the host.
    """

    kind: StepKind
    name: str
    device: str
    needed_by: str
    way: Way
    copy: _Copy
    needs: tuple[_Copy, ...]
    source: str = ""
    carried: _Copy | None = None


class WorkloadExecution:
    """A workload that is being computed.

    Args:
        orchestrator: says what computes, and how long moves take.
        workload: its inputs are arrays.
        device_mapping: the device of each operation.
        devices: those and the spares, by name.

    Attributes:
        steps: what has happened so far.
        measured: when each of them began and ended, s since the beginning, by this machine's clock.
        recoveries: what was done after devices had died.
        peak_bytes: the most that each device held at a time.
    """

    def __init__(
        self,
        orchestrator: MultiDeviceOrchestrator,
        workload: WorkloadProfile,
        device_mapping: DeviceMapping,
        devices: Mapping[str, HardwareCapabilityProfile],
    ) -> None:
        self.hal = orchestrator.workload_manager.hal
        self.able = orchestrator.workload_manager.able
        self.coordinators = orchestrator.device_coordinators
        self.movement = orchestrator.data_movement_optimizer
        self.workload = workload
        self.mapping = dict(device_mapping)
        self.alive = dict(devices)
        self.keys = {name: self.hal.key_of(device) for name, device in devices.items()}
        self.steps: list[Step] = []
        self.measured: list[tuple[float, float]] = []
        self.recoveries: list[Recovery] = []
        self.pending = list(workload.by_name)
        self.copies = {name: {HOST: _Copy(_known(array))} for name, array in workload.inputs.items()}
        self.peak_bytes = dict.fromkeys(devices, 0)
        self._before = dependencies(workload)
        self._workers = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in devices}
        self._dead: dict[str, DeviceFailure] = {}
        self._issued: list[_Issued] = []
        self._began = time.perf_counter()
        self._last_on: dict[str, tuple[int, ...]] = {}
        self._last_death: tuple[int, ...] = ()
        self.rules = orchestrator.workload_manager.rules
        self._costs: dict[str, Operation | None] = {}
        self._fused: list[tuple[str, ...]] = []

    def compute(self) -> dict[str, NDArray[Any]]:
        """Compute all operations, and return what is wanted on the host.

        Raises:
            DeviceFailure: the last device has died.
            OutOfMemoryError: a device would have to hold more than its memory.
            NoBackendError: a backend cannot compute an operation.
        """
        try:
            while True:
                self._fuse()
                for name in self.pending:
                    self._issue(name)
                results = {name: self._on(name, HOST, "") for name in self.workload.wanted}
                failed = self._settle()
                if failed is None:
                    return {name: np.asarray(copy.future.result().array) for name, copy in results.items()}
                self._recover(*failed)
        finally:
            for worker in self._workers.values():
                worker.shutdown(cancel_futures=True)

    def _start(self, device: str, needs: Sequence[_Copy], work: Callable[..., Any]) -> _Copy:
        """Let the worker of a device make something of arrays, once they are there."""

        def job() -> _Done:
            arrays = [need.future.result().array for need in needs]
            start = self._now()
            if device in self._dead:
                raise self._dead[device]
            try:
                array = work(*arrays)
            except DeviceFailure as failure:
                self._dead[device] = DeviceFailure(str(failure), device=device)
                raise self._dead[device] from failure
            return _Done(array, start, self._now())

        return _Copy(self._workers[device].submit(job))

    def _now(self) -> float:
        """Return how long the run has lasted, s."""
        return time.perf_counter() - self._began

    def _fuse(self) -> None:
        """Say what each operation that is still to be done costs, with those that its device fuses as one."""
        self._costs = {name: self.workload.costs[name] for name in self.pending}
        self._fused.clear()
        for device in self.alive.values():
            names = [name for name in self.pending if self.mapping[name].name == device.name]
            for chain in operations_s(self.workload, device, self.rules, names)[1]:
                self._costs |= dict.fromkeys(chain.operations, None) | {chain.operations[-1]: chain.cost}
                self._fused.append(chain.operations)

    def _issue(self, name: str) -> None:
        """Let an operation be computed on its device, after what it needs."""
        operation, device = self.workload.by_name[name], self.mapping[name]
        reads = {read: self._on(read, device.name, name) for read in operation.reads()}
        others = [copy for other in self._before[name] if other not in reads for copy in self.copies[other].values()]
        coordinator = self.coordinators.get(device.hardware_class) or LayerCoordinator()

        def work(*arrays: Any) -> Any:
            inputs = operation.with_arrays(dict(zip(reads, arrays, strict=False)))
            return coordinator.compute(self.hal, self.keys[device.name], operation, inputs).result

        needs = (*reads.values(), *others)
        made = self._start(device.name, needs, work)
        self.copies[name] = {device.name: made}
        self._issued.append(_Issued("compute", name, device.name, name, Way(0.0), made, needs))

    def _on(self, name: str, dest: str, needed_by: str) -> _Copy:
        """Return an array's copy on a device, or on the host, moved there if need be."""
        copies = self.copies[name]
        if dest not in copies:
            way, source = self.movement.soonest(self.workload.num_bytes(name), copies, dest, self.alive)
            held = copies[source]
            carried = held if source == HOST else self._start(source, [held], _on_host)
            if dest == HOST:
                copies[dest] = carried
            else:
                copies[dest] = self._start(dest, [carried], lambda array: self.hal.put(array, self.keys[dest]))
            self._issued.append(_Issued("move", name, dest, needed_by, way, copies[dest], (held,), source, carried))
        return copies[dest]

    def _settle(self) -> tuple[str, str] | None:
        """Wait for all that was issued, and note what happened, in the order of issue.

        Returns:
            The device that failed first, and the operation that found it out; None if none failed.
        """
        failed: tuple[str, str] | None = None
        for issued in self._issued:
            try:
                done = issued.copy.future.result()
            except DeviceFailure as failure:
                failed = failed or (str(failure.device), issued.needed_by)
                if self.copies[issued.name].get(issued.device) is issued.copy:
                    del self.copies[issued.name][issued.device]
                continue
            self._note(issued, done)
        self._issued.clear()
        return failed

    def _note(self, issued: _Issued, done: _Done) -> None:
        """Note a step that was done."""
        start, size = done.start_s, 0
        if issued.carried is not None:
            carried = issued.carried.future.result()
            start, size = start if issued.source == HOST else carried.start_s, int(carried.array.nbytes)
        after = [step for need in issued.needs for step in need.steps]
        price = {"seconds": issued.way.seconds, "peer_bytes_per_s": issued.way.peer_bytes_per_s}
        if issued.kind == "compute":
            price = _price(self._costs[issued.name], self.alive[issued.device])
        number = self._happened(
            issued.kind, issued.name, issued.device, after, source=issued.source, num_bytes=size, **price
        )
        self.measured.append((start, done.end_s))
        issued.copy.steps = (number,)
        if issued.kind == "compute":
            self.pending.remove(issued.name)
            self._count_bytes(self.alive[issued.device])
            self._free(issued.name)

    def _happened(self, kind: StepKind, name: str, device: str, after: Sequence[int] = (), **more: Any) -> int:
        """Note a step that needs some others, and return its number.

        It comes after the last death, and where it is no move after the last step of its device.
        """
        own = () if kind == "move" else self._last_on.get(device, ())
        self.steps.append(Step(kind, name, device, (*after, *self._last_death, *own), **more))
        number = len(self.steps) - 1
        if kind != "move":
            self._last_on[device] = (number,)
        return number

    def _count_bytes(self, device: HardwareCapabilityProfile) -> None:
        """Note what a device holds, and require that it has room."""
        there = {name: copies.get(device.name) for name, copies in self.copies.items()}
        held = self.workload.num_bytes(*(name for name, copy in there.items() if copy is not None and copy.steps))
        self.peak_bytes[device.name] = max(self.peak_bytes[device.name], held)
        if held > device.memory_bytes:
            raise OutOfMemoryError(
                f"{device.name} would hold {held:,} bytes of {self.workload.workload_id}, and has "
                f"{device.memory_bytes:,}; divide it over more devices, or use a smaller batch",
                device=device.name,
            )

    def _free(self, done: str) -> None:
        """Drop arrays that no later operation reads, unless they are wanted or kept; inputs stay on the host."""
        needed = {read for name in self.pending for read in self.workload.by_name[name].reads()}
        for name in {*self.workload.by_name[done].reads(), done} - needed - kept(self.workload):
            self.copies[name] = {place: copy for place, copy in self.copies[name].items() if place == HOST}

    def _recover(self, dead: str, found_by: str) -> None:
        """Go on without a device.

        Raises:
            DeviceFailure: it was the last one.
        """
        del self.alive[dead]
        last = tuple(number for number, step in enumerate(self.steps) if dead in (step.device, step.source))[-1:]
        self._last_death = (self._happened("failure", found_by, dead, last),)
        self.measured.append((self._now(), self._now()))
        for copies in self.copies.values():
            copies.pop(dead, None)
        for chain in self._fused:  # it has no results before its last one
            self.copies |= {name: {} for name in chain if chain[-1] in self.pending}
        if not self.alive:
            raise DeviceFailure(
                f"all devices have died, {dead} as the last, at {found_by or 'the end'} of "
                f"{self.workload.workload_id}; give spares",
                device=dead,
            )
        lost, again = self._lost()
        self.pending = [name for name in self.workload.by_name if name in {*again, *self.pending}]
        orphans = [name for name in self.pending if self.mapping[name].name == dead]
        holders = {name: tuple(copies) for name, copies in self.copies.items() if copies}
        devices = self.able(self.workload, list(self.alive.values()))
        scheduler = ListScheduler(self.workload, devices, self.pending, holders, self.movement, self.rules)
        self.mapping |= scheduler.schedule().device_mapping
        moved_to: dict[str, tuple[str, ...]] = {}
        for name in orphans:
            taker = self.mapping[name].name
            moved_to[taker] = (*moved_to.get(taker, ()), name)
        self.recoveries.append(Recovery(dead, found_by, lost, again, moved_to))

    def _lost(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the arrays that are needed and that no device holds, and the operations that make them again."""
        operations, pending = self.workload.by_name, set(self.pending)

        def gone(names: Iterable[str]) -> set[str]:
            return {name for name in names if name not in pending and not self.copies.get(name)}

        lost = gone([*self.workload.wanted, *(read for name in pending for read in operations[name].reads())])
        again = set(lost)
        for name in reversed(operations):
            if name in again:
                again |= gone(operations[name].reads())
        return tuple(name for name in operations if name in lost), tuple(name for name in operations if name in again)


@dataclass(frozen=True, slots=True, eq=False)
class OrchestratedRun:
    """A workload that was computed on several devices.

    Args:
        outputs: the results that are wanted, by name.
        plan: the moves that were planned at first.
        steps: what happened.
        timeline: when, by prices.
        measured: when, by the clock of this machine, since the beginning; a simulated device's steps take what the
            host takes.
        waits: which operations of other devices each operation waited for, as planned at first.
        recoveries: what was done after devices died.
        peak_bytes: the most that each device held at a time.
        devices: that took part.
    """

    outputs: Mapping[str, NDArray[Any]]
    plan: DataMovementPlan
    steps: tuple[Step, ...]
    timeline: StepTimeline
    measured: tuple[TimedStep, ...]
    waits: Mapping[str, tuple[str, ...]]
    recoveries: tuple[Recovery, ...]
    peak_bytes: Mapping[str, int]
    devices: tuple[HardwareCapabilityProfile, ...] = ()

    @property
    def moved_bytes(self) -> int:
        """All bytes that moved; the planned ones, where no device died."""
        return sum(step.num_bytes for step in self.steps if step.kind == "move")

    @property
    def seconds(self) -> float:
        """When the last result reached the host, by prices, s."""
        return self.timeline.seconds

    @property
    def measured_s(self) -> float:
        """When the last result reached the host, by the clock of this machine, s."""
        return max((each.end_s for each in self.measured), default=0.0)


def share_devices(
    runs: Sequence[OrchestratedRun], shares: Sequence[float] | None = None, power_budget_W: float | None = None
) -> tuple[StepTimeline, ...]:
    """Return when the steps of runs would have happened that share devices and links.

    Devices of one name are one device. Units are shared as those of the platform are: an operation computes with the
    units that its run takes, waits where others have them, and shares the memory's bandwidth fairly.

    Args:
        runs: that were computed alone; they begin at the same time.
        shares: of each device's units, of each run, in (0, 1], rounded down to whole units; all of them if None, so
            that operations take turns.
        power_budget_W: what all devices may draw together, W; None for no limit.

    Returns:
        For each run its steps and their end; energy and peak are those of all devices under all runs.

    Raises:
        UsageError: a run has no share, or one that leaves no unit, two devices have one name, a device warms up, or a
            budget is too small.
    """
    given = [1.0] * len(runs) if shares is None else list(shares)
    if len(given) != len(runs):
        raise UsageError(f"each of {len(runs)} runs needs a share of the units, got {len(given)}; give one for each")
    devices: dict[str, HardwareCapabilityProfile] = {}
    for device in (each for run in runs for each in run.devices):
        _require_one(devices, device)
    for device in devices.values():
        units = num_units_of(device)
        for share in given:
            if not 0 < share <= 1 or share * units < 1:
                raise UsageError(
                    f"a share must be in (0, 1] and leave a unit of the {units} of {device.name}, got {share!r}"
                )
        if device.thermal is not None:
            raise UsageError(f"{device.name} warms up, and heat of shared units is not modelled; leave out its thermal")
    steps: list[Step] = []
    ends = [0]
    for run, share in zip(runs, given, strict=True):
        base = len(steps)
        steps += [replace(each, after=tuple(base + other for other in each.after), share=share) for each in run.steps]
        ends.append(len(steps))
    found = timeline(steps, list(devices.values()), power_budget_W)
    parts = [found.steps[begin:end] for begin, end in pairwise(ends)]
    return tuple(replace(found, steps=each, seconds=max((one.end_s for one in each), default=0.0)) for each in parts)


def _require_one(devices: dict[str, HardwareCapabilityProfile], device: HardwareCapabilityProfile) -> None:
    """Add a device to those of other names.

    Raises:
        UsageError: another one has its name.
    """
    if devices.setdefault(device.name, device) != device:
        raise UsageError(f"two devices are called {device.name!r}; give each a name of its own, as profiles_of does")


@typed
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
        self.data_movement_optimizer = DataMovementOptimizer(workload_manager.taxonomy)
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
        device_mapping: DeviceMapping | GivenDevices,
        *,
        spares: GivenDevices = (),
        power_budget_W: float | None = None,
        temperatures_C: Mapping[str, float] = MappingProxyType({}),
    ) -> OrchestratedRun:
        """Compute a workload on several devices, and price it.

        Args:
            workload: its inputs are arrays.
            device_mapping: the device of each operation; or devices, over which the manager divides it.
            spares: devices that are used when another dies.
            power_budget_W: what the devices may draw together, W; None for no limit.
            temperatures_C: at first, of devices that have a `Thermal`; that of their surroundings where none is given.
                `timeline.temperatures_C` of a run before says how hot it left them.

        Raises:
            UsageError: an input has no numbers, an operation no device, or the power budget is too small; or a
                temperature is of no device that warms up.
            OutOfMemoryError: a device would have to hold more than its memory.
            NoBackendError: a device has no backend, or cannot compute an operation.
            DeviceFailure: the last device has died.
        """
        for name, given in workload.inputs.items():
            if isinstance(given, ArraySpec):
                raise UsageError(
                    f"{workload.workload_id} is computed with real numbers, and {name} is an ArraySpec without; give "
                    "an array, or use decompose_workload for prices alone"
                )
        mapping: DeviceMapping
        if isinstance(device_mapping, Mapping):
            mapping = device_mapping
        else:
            mapping = self.workload_manager.decompose_workload(workload, device_mapping)["device_mapping"]
        plan, waits = self.optimize_data_movement(workload, mapping), self.sync_manager.plan(workload, mapping)
        devices: dict[str, HardwareCapabilityProfile] = {}
        for device in [*mapping.values(), *(profiles_of(spares) if spares else ())]:
            _require_one(devices, device)
        run = WorkloadExecution(self, workload, mapping, devices)
        outputs = run.compute()
        times = timeline(run.steps, list(devices.values()), power_budget_W, temperatures_C)
        measured = tuple(TimedStep(step, *when) for step, when in zip(run.steps, run.measured, strict=True))
        steps, recoveries = tuple(run.steps), tuple(run.recoveries)
        taking_part = tuple(devices.values())
        return OrchestratedRun(outputs, plan, steps, times, measured, waits, recoveries, run.peak_bytes, taking_part)

    def execute_task(self, task: EnhancedTestTask, devices: GivenDevices) -> OrchestratedRun:
        """Compute a task's workload within its power budget, and fill in its plans."""
        run = self.execute_multi_device_workload(task.workload, devices, power_budget_W=task.power_budget)
        mapping = {step.name: step.device for step in run.steps if step.kind == "compute"}
        task.execution_plan = {"device_mapping": mapping, "seconds": run.seconds, "measured_s": run.measured_s}
        task.data_movement_plan = {"moves": run.plan.moves, "total_bytes": run.plan.total_bytes}
        return run


T = TypeVar("T")


class LimitedBackend:
    """A backend whose calls take a limited time.

    Args:
        inner: what computes.
        limit_s: how long a call may take, s; the first one may compile.

    Raises:
        UsageError: the limit is no number above 0.

    Example:
        >>> from minitrain.heterogeneous import HostBackend
        >>> LimitedBackend(HostBackend("numpy"), limit_s=60).name
        'numpy'
    """

    def __init__(self, inner: HardwareBackend, limit_s: float) -> None:
        if not is_number(limit_s) or limit_s == 0:
            raise UsageError(f"limit_s is how many seconds a call may take, above 0, got {limit_s!r}")
        self.inner, self.limit_s = inner, limit_s
        self.name, self.is_priced = inner.name, inner.is_priced
        self.reason_unavailable, self.reason_unsupported = inner.reason_unavailable, inner.reason_unsupported
        self._hung = False

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array in the device's memory.

        Raises:
            TimeoutError: the device did not answer in time, now or before.
        """
        return self._in_time(self.inner.put, array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array in the host's memory; errors as for `put`."""
        return self._in_time(self.inner.get, array)

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:
        """Return the result of an operation, and how long it took, s; errors as for `put`."""
        return self._in_time(self.inner.execute, kind, operands, options, cost)

    def _in_time(self, call: Callable[..., T], *given: Any) -> T:
        if self._hung:
            raise TimeoutError("it has not answered before")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call(*given))
            except BaseException as error:  # whatever it is, it belongs to the caller
                answer.set_exception(error)

        Thread(target=run, name=self.name, daemon=True).start()
        try:
            return answer.result(self.limit_s)
        except TimeoutError:
            if answer.done():  # the device's own
                raise
            self._hung = True
            raise TimeoutError(f"no answer in {self.limit_s:g} s") from None
