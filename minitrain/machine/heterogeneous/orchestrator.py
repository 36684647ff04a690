"""The multi-device orchestrator: a workload's operations on several devices, with real arithmetic, moves and failures.

Each device has a worker, a thread that computes its operations in the workload's order, at the same time as others do.
An operation waits for what it reads, which is moved there first, once, as the data movement plan says, and for what the
workload's `dependency_graph` says beside. All devices meet before results are returned and before work is divided
again. Moved bytes are those of real arrays.

When a device dies, what only it held is lost. The operations that are needed again, and those still to be done, go to
the devices that are left, by a list schedule, and the run goes on; what others have computed meanwhile is kept. Since
each operation computes the same on every
backend of one kind, the numbers are those of a run without failure.

How long all this took is measured, by this machine's clock. How long it takes on the devices that the configs describe
is simulated afterwards, in a timeline of prices of the steps that happened. An operation lasts as long as
its price on its device, and begins when its operands have come, its device is free, and the power budget allows it.
Operations that a device fuses are priced together, as the workload manager does. Moves share the links of the devices
fairly (`minitrain.platform`), those to the host or those to peers. The speed of the machine that computes does not
matter there, so that the timeline is the same every time. Of several runs on the same devices each takes a share of
their units, by the rule of the platform (`share_devices`).

Each device draws its rated power while it computes and its idle power otherwise, as for the energy of runs. Under a
budget an operation waits until its power is available. A device with a `Thermal` warms up and cools down by that law.
Once it is as hot as where it throttles, it computes with the clock, and draws the power, that hold it there.

Left out: clocks that fall under a budget, the power of links and hosts, heat of shared units, the time until a death is
noticed, and what real devices hold more when they run ahead of others.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import OutOfMemoryError, UsageError
from minitrain.machine.clusters.device_groups import Thermal
from minitrain.machine.devices.operations import Operation
from minitrain.machine.heterogeneous.abstraction_layer import (
    DeviceFailure,
    Execution,
    HardwareAbstractionLayer,
    Placed,
)
from minitrain.machine.heterogeneous.taxonomy import (
    GivenDevices,
    HardwareCapabilityProfile,
    HardwareClass,
    Key,
    class_named,
    profiles_of,
)
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
from minitrain.machine.platform.fair_sharing import FairSharing, Flow
from minitrain.machine.platform.links import Lane
from minitrain.machine.platform.platform import SharedUnits, Steps

if TYPE_CHECKING:
    from simpy import Event

StepKind = Literal["compute", "move", "failure"]


@final
@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened in an orchestrated workload.

    Args:
        kind: "compute", "move" or "failure".
        name: of the operation, or the array that moved; at a failure, of the operation that found it out.
        device: which computed or died; where a move went.
        after: the steps that it needs, by number.
        source: where a move came from.
        num_bytes: what it moved.
        seconds: what it takes where it need not share, s.
        peer_bytes_per_s: of the link that a move takes between its devices, bytes/s; None where it passes the host.
        work: what an operation's arithmetic and its traffic take, s; the rest of its seconds is starting it.
        hot_s: what an operation takes on a device that throttles, s.
        share: of the device's units that it takes.
    """

    kind: StepKind
    name: str
    device: str
    after: tuple[int, ...] = ()
    source: str = ""
    num_bytes: int = 0
    seconds: float = 0.0
    peer_bytes_per_s: float | None = None
    work: tuple[float, float] = (0.0, 0.0)
    hot_s: float = 0.0
    share: float = 1.0


@final
@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, and when it happened.

    Args:
        step: what happened.
        start_s: when it began, s.
        end_s: when it had ended, s.
        temperature_C: of its device then, degrees Celsius; None where nothing is known of its heat.
    """

    step: Step
    start_s: float
    end_s: float
    temperature_C: float | None = None  # noqa: N815 - a unit


@final
@dataclass(frozen=True, slots=True)
class StepTimeline:
    """When the steps of an orchestrated workload happened.

    Args:
        steps: in the order of the run.
        seconds: when the last ended, s.
        energy_joules: of all devices until then, J; None where a config does not say what its device draws.
        peak_watts: the most that all devices drew together, W; None likewise.
        temperatures_C: at the end, of the devices that have a `Thermal`, by name, degrees Celsius.
    """

    steps: tuple[TimedStep, ...]
    seconds: float
    energy_joules: float | None
    peak_watts: float | None
    temperatures_C: Mapping[str, float] = field(default_factory=dict)  # noqa: N815 - a unit

    def busy_s(self, device: str) -> float:
        """Return how long a device computed, s."""
        worked = (each for each in self.steps if each.step.kind == "compute" and each.step.device == device)
        return sum(each.end_s - each.start_s for each in worked)


def timeline(
    steps: Sequence[Step],
    devices: Sequence[HardwareCapabilityProfile],
    power_budget_W: float | None = None,  # noqa: N803
    temperatures_C: Mapping[str, float] = MappingProxyType({}),  # noqa: N803
) -> StepTimeline:
    """Return when each step happens.

    Args:
        steps: each needs only such before it.
        devices: all that take part, also those that died.
        power_budget_W: what they may draw together, W; None for no limit.
        temperatures_C: of devices that have a `Thermal`, at first; that of their surroundings where none is given.

    Raises:
        UsageError: a config does not say what its device draws, and there is a budget; or it is too small for the
            idle devices together with the working one that draws most; or a temperature is of no device that warms up.
    """
    warm = [device.name for device in devices if device.thermal is not None]
    for name in temperatures_C:
        if name not in warm:
            raise UsageError(
                f"temperatures_C names {name!r}, and the devices that have a Thermal are {', '.join(warm) or 'none'}; "
                "give mt.Devices(..., thermal=mt.Thermal(...)), or leave it out",
                name=name,
            )
    run = _TimelineSimulation(steps, devices, _power_left_mW(steps, devices, power_budget_W), temperatures_C)
    for number in range(len(steps)):
        run.env.process(run.step(number))
    run.env.run()
    timed = tuple(TimedStep(step, *run.times[number]) for number, step in enumerate(steps))
    seconds = max((each.end_s for each in timed), default=0.0)
    heat = {name: each.at(seconds) for name, each in run.heat.items()}
    found = StepTimeline(timed, seconds, None, None, heat)
    if any(device.tdp_W is None for device in devices):
        return found
    rest = sum(device.idle_W or 0.0 for device in devices)
    return replace(found, energy_joules=rest * found.seconds + run.worked_J, peak_watts=rest + run.peak_mW / 1e3)


def _num_units(device: HardwareCapabilityProfile) -> int:
    """Return how many units a device has; one where its config does not say."""
    return device.device.sheet.num_units or 1


def _parts(step: Step) -> list[tuple[float, float]]:
    """Return how long the parts of an operation last where nobody else computes, and their memory traffic, s.

    A part of the units takes longer for the arithmetic, and as long for starting it.
    """
    compute_s, memory_s = step.work
    if step.share == 1:
        return [(step.seconds, memory_s)]
    return [(max(compute_s / step.share, memory_s), memory_s), (step.seconds - max(step.work), 0.0)]


def _more_mW(device: HardwareCapabilityProfile) -> int:  # noqa: N802 - a unit
    """Return what a device draws more when it computes, mW; whole numbers add up without rounding."""
    return round(1e3 * ((device.tdp_W or 0.0) - (device.idle_W or 0.0)))


def _power_left_mW(  # noqa: N802 - a unit
    steps: Sequence[Step],
    devices: Sequence[HardwareCapabilityProfile],
    budget_W: float | None,  # noqa: N803
) -> int:
    """Return what a budget leaves beside the devices at rest, mW; what all need together without a budget.

    Raises:
        UsageError: it does not let each device compute while the others idle, or a config does not say what its device
            draws.
    """
    if budget_W is None:
        return sum(map(_more_mW, devices))
    silent = [device.name for device in devices if device.tdp_W is None]
    if silent:
        raise UsageError(
            f"a power budget needs what devices draw, and the config of {silent[0]} has no power; add "
            "power: {tdp_W, idle_W}, or leave out the budget",
            device=silent[0],
        )
    working = {step.device for step in steps if step.kind == "compute"}
    rest = sum(device.idle_W or 0.0 for device in devices)
    more, hungriest = max(
        ((_more_mW(each), each.name) for each in devices if each.name in working), default=(0, "nobody")
    )
    left = round(1e3 * (budget_W - rest))
    if more > left:
        raise UsageError(
            f"power_budget_W ({budget_W:g}) must let {hungriest} work beside the others at rest, which takes "
            f"{rest + more / 1e3:g} W; raise it, or leave a device out",
            power_budget_W=budget_W,
        )
    return left


@final
@dataclass(slots=True)
class _Heat:
    """The temperature of a device under way.

    Args:
        thermal: its law.
        idle_W: what it draws when it waits, W.
        now_C: the temperature, when it changed its power last.
        since: when that was, s.
    """

    thermal: Thermal
    idle_W: float  # noqa: N815 - a unit
    now_C: float  # noqa: N815 - a unit
    since: float = 0.0

    def at(self, now: float) -> float:
        """Return the temperature after it has waited until now, degrees Celsius."""
        return self.thermal.temperature_C(self.idle_W, now - self.since, self.now_C)

    def draw(self, watts: float, begin: float, seconds: float) -> None:
        """Let it draw some power from a moment on for some time."""
        self.now_C, self.since = self.thermal.temperature_C(watts, seconds, self.at(begin)), begin + seconds


@final
class _TimelineSimulation:
    """A timeline under way.

    Args:
        steps: what happens.
        devices: all that take part.
        power_mW: what they may draw beyond their rest, mW.
        temperatures_C: at first, of devices that warm up.

    Attributes:
        times: when each step begins and ends, s, and how hot its device is then, by number.
        peak_mW: the most that they drew beyond their rest, mW.
        worked_J: what they drew beyond their rest, J.
        heat: of the devices that warm up, by name.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        devices: Sequence[HardwareCapabilityProfile],
        power_mW: int,  # noqa: N803
        temperatures_C: Mapping[str, float],  # noqa: N803
    ) -> None:
        import simpy  # noqa: PLC0415 - where a timeline is made, it is loaded

        self.env = simpy.Environment()
        self.steps = steps
        self.times: dict[int, tuple[float, float, float | None]] = {}
        self.ended = [self.env.event() for _ in steps]
        self.devices = {device.name: device for device in devices}
        self.power_mW = power_mW
        self.power = simpy.Container(self.env, init=power_mW)
        self.peak_mW = 0
        self.worked_J = 0.0
        self.sharing = FairSharing(self.env)
        self.units = {each.name: SharedUnits.of(each.name, _num_units(each), self.sharing) for each in devices}
        self.heat = {
            each.name: _Heat(each.thermal, each.idle_W or 0.0, temperatures_C.get(each.name, each.thermal.ambient_C))
            for each in devices
            if each.thermal is not None
        }
        self.lanes: dict[tuple[str, str], Lane] = {}
        for device in devices:
            link = device.device.mem_pcie
            rate = link.GBps * 1e9 * max(share for _, share in link.MB_efficiency)
            for way in ("to", "from"):
                self.lanes[way, device.name] = Lane(f"{device.name} {way} host", rate)

    def step(self, number: int) -> Steps:
        """Simulate one step."""
        step = self.steps[number]
        yield self.env.all_of([self.ended[other] for other in step.after])
        start = self.env.now
        if step.kind == "move":
            yield self._moved(step)
        elif step.kind == "compute" and step.seconds:
            start = yield from self._computed(step)
        heat = self.heat.get(step.device) if step.kind == "compute" else None
        self.times[number] = start, self.env.now, None if heat is None else heat.at(self.env.now)
        self.ended[number].succeed()

    def _computed(self, step: Step) -> Steps:
        """Let a device compute as soon as it has units and power, and return when that began."""
        shared, heat, device = self.units[step.device], self.heat.get(step.device), self.devices[step.device]
        wanted = int(step.share * shared.units.capacity)
        yield shared.units.take(wanted)
        more = round(_more_mW(device) * wanted / shared.units.capacity)
        if more:
            yield self.power.get(more)
        start = self.env.now
        cool_s = math.inf if heat is None else heat.thermal.seconds_to_throttle(device.tdp_W or 0.0, heat.at(start))
        if heat is None or cool_s >= step.seconds:
            yield from self._drawing(device, more, shared.work(step.name, wanted, _parts(step)))
        else:
            if cool_s:
                yield from self._drawing(device, more, self._waited(cool_s))
            less = more - max(0, min(more, round(1e3 * (heat.thermal.sustained_watts - heat.idle_W))))
            if less:
                self.power.put(less)
            more -= less
            yield from self._drawing(device, more, self._waited((1 - cool_s / step.seconds) * step.hot_s))
        if more:
            self.power.put(more)
        shared.units.give(wanted)
        return start

    def _waited(self, seconds: float) -> Steps:
        yield self.env.timeout(seconds)

    def _drawing(self, device: HardwareCapabilityProfile, more_mW: int, work: Steps) -> Steps:  # noqa: N803
        """Let a device do something that draws some power beside that of its rest."""
        self.peak_mW = max(self.peak_mW, self.power_mW - int(self.power.level))
        start = self.env.now
        yield from work
        seconds = self.env.now - start
        self.worked_J += more_mW / 1e3 * seconds
        if device.name in self.heat:
            self.heat[device.name].draw((device.idle_W or 0.0) + more_mW / 1e3, start, seconds)

    def _moved(self, step: Step) -> Event:
        """Return an event that happens when an array has come."""
        arrived = self.env.event()
        ways = [("from", step.source)] * (step.source != HOST) + [("to", step.device)] * (step.device != HOST)
        if not ways or not step.seconds:
            return arrived.succeed()
        if step.peer_bytes_per_s is not None:
            ways = [("peers from", step.source), ("peers to", step.device)]
            for way, name in ways:
                self.lanes.setdefault((way, name), Lane(f"{name} {way}", step.peer_bytes_per_s))
        lanes = Counter(self.lanes[way] for way in ways)
        rate = step.num_bytes / step.seconds
        end = self.env.now + step.seconds
        self.sharing.begin(Flow(step.name, lanes, step.num_bytes, rate, arrived.succeed, end))
        return arrived


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
        ...


@final
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
@dataclass(frozen=True, slots=True)
class _Done:
    """What a worker has made, and when, s."""

    array: Any
    start_s: float = 0.0
    end_s: float = 0.0


@final
@dataclass(slots=True)
class _Copy:
    """A copy of an array on a device, or on the host: its future, and the step that brought it there, if any."""

    future: Future[_Done]
    steps: tuple[int, ...] = ()


@final
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


@final
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


@final
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
    runs: Sequence[OrchestratedRun],
    shares: Sequence[float] | None = None,
    power_budget_W: float | None = None,  # noqa: N803
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
        UsageError: a share leaves no unit, two devices have one name, a device warms up, or a budget is too small.
    """
    given = [1.0] * len(runs) if shares is None else list(shares)
    devices: dict[str, HardwareCapabilityProfile] = {}
    for device in (each for run in runs for each in run.devices):
        _require_one(devices, device)
    for device in devices.values():
        units = _num_units(device)
        for share in given:
            if not 0 < share <= 1 or share * units < 1:
                raise UsageError(
                    f"a share must be in (0, 1] and leave a unit of the {units} of {device.name}, got {share!r}",
                    share=share,
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
        raise UsageError(
            f"two devices are called {device.name!r}; give each a name of its own, as profiles_of does",
            name=device.name,
        )


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
        power_budget_W: float | None = None,  # noqa: N803 - a unit
        temperatures_C: Mapping[str, float] = MappingProxyType({}),  # noqa: N803 - a unit
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
                    "an array, or use decompose_workload for prices alone",
                    name=name,
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
