"""`VirtualHardwarePlatform`: devices, memories and links that any mix of tasks shares, on SimPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from minitrain.errors import OutOfMemoryError, UsageError, choice_fault, closest, is_number, refuse
from minitrain.files import StrPath
from minitrain.machine.platform.fair_sharing import Algorithm, FairSharing, Flow, Slowed, Transfers, op_of, steps_of
from minitrain.machine.platform.links import Lane, Routes, require_known, share_used
from minitrain.machine.platform.profile import (
    MODEL_TASK_KEYS,
    OPERATION_EFFICIENCY,
    Bound,
    ComputeResult,
    ComputeTask,
    HardwareResourceProfile,
    TransferResult,
    VirtualComputeDevice,
    bound_of,
    read_models,
)
from minitrain.operations import COMM, COMPUTE, RECV, SEND, Event

if TYPE_CHECKING:
    import simpy
    from simpy import Environment, Process

LevelOfDetail = Literal["high", "medium"]
UnitRates = Literal["shared", "specified"]
Steps = Generator["simpy.Event", Any, Any]
_TRANSFER, _TASK = "transfer", "task"


@dataclass(slots=True)
class Pool:
    """An amount that tasks take and give back: the processing units of a device, or bytes of a memory.

    Who waits is served by priority, then in the order of asking.

    Args:
        env: whose clock counts.
        name: whose it is.
        capacity: how much there is.
        backfill: whether those that fit may pass one that does not fit yet; it may then wait for long.

    Attributes:
        used: how much is taken.
        held: how much of it by whom; "" are allocations that no task holds.
        steps: what was taken, as (moment, amount from then on).
    """

    env: Environment
    name: str
    capacity: float
    backfill: bool = False
    used: int = 0
    held: Counter[str] = field(default_factory=Counter)
    steps: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    waiting: list[tuple[float, int, int, str, simpy.Event]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def take(self, amount: int, owner: str = "", priority: float = 0) -> simpy.Event:
        """Take an amount as soon as it is there, and those before have been served.

        Args:
            amount: how much; more than there is at all never comes.
            owner: who takes it.
            priority: smaller ones are served first.

        Returns:
            The event of getting it; its value is how much is taken then.
        """
        event = self.env.event()
        heappush(self.waiting, (priority, next(self._order), amount, owner, event))
        self._serve()
        return event

    def take_now(self, amount: int, owner: str = "") -> simpy.Event:
        """Take an amount that is free, before those that wait for more."""
        return self.env.event().succeed(self._change(amount, owner))

    def give(self, amount: int, owner: str = "") -> int:
        """Give back what an owner took, and return how much is taken then."""
        left = self._change(-amount, owner)
        self._serve()
        return left

    def _serve(self) -> None:
        """Let those take who are next and whom what is free suffices."""
        blocked: list[tuple[float, int, int, str, simpy.Event]] = []
        while self.waiting and (self.backfill or not blocked):
            entry = heappop(self.waiting)
            *_, amount, owner, event = entry
            if self.used + amount <= self.capacity:
                event.succeed(self._change(amount, owner))
            else:
                blocked.append(entry)
        for entry in blocked:
            heappush(self.waiting, entry)

    def _change(self, amount: int, owner: str) -> int:
        self.used += amount
        self.held[owner] += amount
        if not self.held[owner]:
            del self.held[owner]
        self.steps.append((self.env.now, self.used))
        return self.used


@dataclass(slots=True)
class SharedUnits:
    """The units of a device and the bandwidth of its memory, which tasks share: the one rule of that.

    A task with a share of the units computes with their share of the rate. All tasks share the bandwidth fairly.

    Args:
        units: what tasks take.
        bus: the bandwidth; shares of it flow there.
        sharing: the flows of all lanes.
        is_fair: whether tasks side by side share the bandwidth; each has all of it otherwise.
    """

    units: Pool
    bus: Lane
    sharing: FairSharing
    is_fair: bool = True

    @classmethod
    def of(cls, name: str, num_units: float, sharing: FairSharing, **more: bool) -> SharedUnits:
        """Return the units of a device of some name; `more` are `backfill` of the pool, and `is_fair`."""
        units = Pool(sharing.env, name, num_units, more.pop("backfill", False))
        return cls(units, Lane(f"{name}: memory", 1.0), sharing, **more)

    def work(self, name: str, num_units: float, steps: Sequence[tuple[float, float]]) -> Steps:
        """Carry out steps on units that a task has taken, and return whether others slowed it down.

        Args:
            name: what logs call the task.
            num_units: how many it has.
            steps: how long each lasts where nobody else runs, and its memory traffic, s.
        """
        env, was_slowed = self.sharing.env, False
        for seconds, traffic_s in steps:
            if not self.is_fair or num_units == self.units.capacity or not traffic_s:
                yield env.timeout(seconds)
                continue
            ended = env.event()  # a task asks for no more bandwidth than it takes alone
            rate, end = traffic_s / seconds, env.now + seconds
            self.sharing.begin(Flow(name, {self.bus: 1.0}, traffic_s, rate, ended.succeed, end))
            was_slowed |= (yield ended).was_slowed
        return was_slowed


def _size_of(value: Any, device_id: str | None = None) -> Any:
    """Return a number of bytes, or raise a UsageError for what is none."""
    if not is_number(value):
        where = {} if device_id is None else {"device_id": device_id}
        prefix = f"{device_id}: " if where else ""
        raise UsageError(f"{prefix}a size must be a number of bytes >= 0, got {value!r}", **where)
    return value


class VirtualHardwarePlatform:
    """Hardware that any mix of tasks shares; see `initialize`.

    Attributes:
        env: the SimPy environment, whose clock counts seconds.
        profile: what the platform consists of.
        level_of_detail: "high" (each layer of a task, each message of a collective) or "medium" (a task as a whole, a
            collective by its closed form).
        unit_rates: "shared": a task computes with the units that it has, so that a quarter of them take four times as
            long, and tasks side by side share the memory's bandwidth fairly, like a link. "specified": every task lasts
            as the specification's formula says, however many units it has and whoever runs beside it.
        backfill: whether small tasks need not queue behind one that waits for more units or memory than are free.
        results: what has ended, in the order of its end.
    """

    def __init__(
        self, level_of_detail: LevelOfDetail = "high", unit_rates: UnitRates = "shared", *, backfill: bool = False
    ) -> None:
        _require_choice("the platform", "level_of_detail", level_of_detail, ("high", "medium"))
        _require_choice("the platform", "unit_rates", unit_rates, ("shared", "specified"))
        self.level_of_detail = level_of_detail
        if not isinstance(backfill, bool):
            raise UsageError(f"backfill must be True or False, got {backfill!r}")
        self.unit_rates = unit_rates
        self.backfill = backfill
        self.results: list[ComputeResult | TransferResult] = []
        self._efficiency: dict[str | None, tuple[float, float]] = {None: (1.0, 1.0)}
        self._efficiency.update(OPERATION_EFFICIENCY.items())
        self._env: Environment | None = None

    def initialize(
        self,
        profile: HardwareResourceProfile | Mapping[str, Any] | StrPath,
        simpy_env: Environment | None = None,
        model_chars_db: Mapping[str, Any] | StrPath | None = None,
    ) -> VirtualHardwarePlatform:
        """Set the platform up.

        Args:
            profile: what it consists of, or a YAML or JSON file that says so (see `HardwareResourceProfile.read`).
            simpy_env: the environment that it runs in; a new one if None.
            model_chars_db: what models ask for, by name: a mapping or a JSON file (see `ModelCharacteristics`); the
                models that come with minitrain if None.

        Returns:
            The platform itself.

        Raises:
            HardwareConfigError: a file cannot be found or read.
            UsageError: a figure is outside its rule.
        """
        from simpy import Environment  # noqa: PLC0415  (0.1 s, only where a platform runs)

        self.profile = (
            profile if isinstance(profile, HardwareResourceProfile) else HardwareResourceProfile.read(profile)
        )
        self._env = env = Environment() if simpy_env is None else simpy_env
        self._devices = {device.device_id: device for device in self.profile.compute_devices}
        capacities = {name: device.memory_capacity_bytes for name, device in self._devices.items()}
        capacities |= {memory.memory_id: memory.capacity_bytes for memory in self.profile.memory_devices}
        self._memories = {name: Pool(env, name, capacity, self.backfill) for name, capacity in capacities.items()}
        self._residents: dict[tuple[str, str], tuple[simpy.Event, list[str]]] = {}
        self.routes = Routes(self.profile.network_links, self._memories)
        self._transfers = Transfers(env, self.routes)
        rule: dict[str, bool] = {"backfill": self.backfill, "is_fair": self.unit_rates == "shared"}
        self._units = {
            name: SharedUnits.of(name, device.processing_units, self._transfers.sharing, **rule)
            for name, device in self._devices.items()
        }
        self._models = read_models(model_chars_db)
        self._numbers = count()
        self.results.clear()
        return self

    @property
    def env(self) -> Environment:
        """The SimPy environment."""
        if self._env is None:
            raise UsageError("the platform has no devices yet; call initialize(profile) first")
        return self._env

    def run(self, until: float | None = None) -> float:
        """Simulate everything that was submitted, and return the moment of the end, s.

        Raises:
            OutOfMemoryError: tasks wait for memory that nobody gives back; not where `until` is given.
        """
        self.env.run(until)
        for memory in self._memories.values() if until is None else ():
            for *_, amount, owner, _ in memory.waiting:
                raise OutOfMemoryError(
                    f"{memory.name}: {owner or 'an allocation'} waits for {amount:,.0f} bytes beside "
                    f"{memory.used:,.0f} in {memory.capacity:,.0f}, but nobody gives memory back; "
                    "free some, or allocate less",
                    device_id=memory.name,
                    size_bytes=amount,
                )
        return float(self.env.now)

    def set_efficiency_factors(self, mfu: float = 1.0, mbu: float = 1.0, operation_type: str | None = None) -> None:
        """Let tasks that begin from now on reach less than the peaks.

        Args:
            mfu: share of the arithmetic peak, in (0, 1].
            mbu: share of the memory bandwidth, in (0, 1].
            operation_type: of which tasks, in place of `OPERATION_EFFICIENCY`; of all, beside that, if None.

        Raises:
            UsageError: one of them is no such share.
        """
        for name, value in (("mfu", mfu), ("mbu", mbu)):
            if not is_number(value) or not 0 < value <= 1:
                raise UsageError(f"{name} must be a number in (0, 1], got {value!r}; 1 is the peak")
        if operation_type is not None:
            _require_choice("the platform", "operation_type", operation_type, list(OPERATION_EFFICIENCY))
        self._efficiency[operation_type] = mfu, mbu

    def _times(self, task: ComputeTask, device: VirtualComputeDevice) -> tuple[float, float]:
        """Return what the arithmetic and the memory traffic of a task take where all units compute, s."""
        mfu, mbu = self._efficiency[None]
        if task.operation_type is not None:
            of_type = self._efficiency[task.operation_type]
            mfu, mbu = mfu * of_type[0], mbu * of_type[1]
        return task.times(device, mfu, mbu)

    def get_device_info(self, device_id: str) -> dict[str, Any]:
        """Return what a device is and how much of it is in use.

        Raises:
            UsageError: there is no such device.
        """
        device, units = self._device(device_id), self._units[device_id].units
        return {
            **device.as_dict(),
            "processing_units_free": device.processing_units - units.used,
            "memory_used_bytes": self._memories[device_id].used,
            "utilization": share_used(units.steps, units.capacity, self.env.now),
        }

    def submit_computation_task(self, device_id: str, task_description: Mapping[str, Any] | ComputeTask) -> Process:
        """Compute on a device, as soon as the memory and the units that the task asks for are free.

        Args:
            device_id: where.
            task_description: see `ComputeTask.of`.

        Returns:
            The process; its value is a `ComputeResult`.

        Raises:
            OutOfMemoryError: there is not so much memory left; for a task that waits, not so much at all.
            UsageError: there is no such device or precision, or it has fewer units than the task asks for.
        """
        device = self._device(device_id)
        task = ComputeTask.of(task_description, self._name(_TASK))
        wanted = device.processing_units if task.num_units is None else task.num_units
        is_high = self.level_of_detail == "high"
        has_parts = task.layers and (is_high or any(layer.operation_type for layer in task.layers))
        times = [self._times(part, device) for part in (task.layers if has_parts else (task,))]
        if wanted > device.processing_units:
            raise UsageError(
                f"task {task.task_id} asks for {wanted} processing units, but {device_id} has "
                f"{device.processing_units}; ask for fewer"
            )
        if self.unit_rates == "shared":
            slower = device.processing_units / wanted
            times = [(compute_s * slower, memory_s) for compute_s, memory_s in times]
        compute_s, memory_s = (sum(column) for column in zip(*times, strict=True))
        steps = [(max(each), each[1]) for each in (times if is_high else [(compute_s, memory_s)])]
        found = compute_s, memory_s, bound_of(compute_s, memory_s)
        taken = self._occupy(device_id, task)
        return self.env.process(self._compute(device_id, task, wanted, steps, found, taken))

    def _occupy(self, device_id: str, task: ComputeTask) -> simpy.Event | None:
        """Let a task take the memory that it occupies, and return the event of getting it; None where it needs none.

        Tasks that share what they occupy take it once.
        """
        if not task.occupied_bytes:
            return None
        owner = task.shares or task.task_id
        if task.shares is None or (device_id, owner) not in self._residents:
            taken = self._allocate(device_id, task.occupied_bytes, owner, task.wait, task.priority)
            if task.shares is None:
                return taken
            self._residents[device_id, owner] = taken, []
        taken, sharers = self._residents[device_id, owner]
        sharers.append(task.task_id)
        return taken

    def _vacate(self, device_id: str, task: ComputeTask) -> None:
        """Let a task give back the memory that it occupied, if nobody shares it."""
        if task.shares is not None:
            sharers = self._residents[device_id, task.shares][1]
            sharers.remove(task.task_id)
            if sharers:
                return
            del self._residents[device_id, task.shares]
        self._memories[device_id].give(task.occupied_bytes, task.shares or task.task_id)

    def _compute(
        self,
        device_id: str,
        task: ComputeTask,
        wanted: int,
        steps: Sequence[tuple[float, float]],
        found: tuple[float, float, Bound],
        taken: simpy.Event | None,
    ) -> Steps:
        """Carry out steps on some units: how long each lasts where nobody else runs, and its memory traffic, s."""
        shared, submitted = self._units[device_id], float(self.env.now)
        compute_s, memory_s, bound = found
        if taken is not None:
            yield taken
        yield shared.units.take(wanted, priority=task.priority)
        start = float(self.env.now)
        if (yield from shared.work(task.task_id, wanted, steps)):
            bound = "memory"
        shared.units.give(wanted)
        if taken is not None:
            self._vacate(device_id, task)
        end = float(self.env.now)
        result = ComputeResult(task.task_id, device_id, submitted, start, end, compute_s, memory_s, bound)
        self.results.append(result)
        return result

    def submit_model_task(
        self,
        device_id: str,
        model_id: str,
        num_tokens: int,
        precision: str = "fp16",
        task_id: str | None = None,
        **more: Any,
    ) -> Process:
        """Take tokens through a model on a device: its FLOPs, and one reading of its weights, which occupy memory.

        Weights are in memory from the submission of the first task of a model to the end of the last; tasks of the same
        model on the same device share them.

        Args:
            device_id: where.
            model_id: which model of the database.
            num_tokens: how many.
            precision: of the arithmetic.
            task_id: what logs call it.
            more: `num_processing_units_requested`, `priority`, `wait`, as for `ComputeTask.of`.

        Raises:
            OutOfMemoryError: the weights do not fit.
            UsageError: there is no such model or device, or `num_tokens` is no integer of at least 1.
        """
        self._device(device_id)
        if model_id not in self._models:
            meant = closest(model_id, self._models)
            raise UsageError(f"the database has no model {model_id!r} {meant}".rstrip())
        require_known("a task of a model has no key", more, MODEL_TASK_KEYS)
        task = self._models[model_id].task(task_id or model_id, num_tokens, precision)
        asked = ComputeTask.of(more, task.task_id)
        task = replace(
            task, num_units=asked.num_units, priority=asked.priority, wait=asked.wait, shares=f"weights of {model_id}"
        )
        return self.submit_computation_task(device_id, task)

    def allocate_memory(
        self, device_id: str, size_bytes: int, *, wait: bool = False, priority: float = 0
    ) -> simpy.Event:
        """Take memory of a device.

        Args:
            device_id: whose.
            size_bytes: how much.
            wait: whether to wait until there is so much left; one that does not wait takes what is free, also before
                others that wait.
            priority: of those that wait, smaller ones are served first, then who asked first.

        Returns:
            The event of getting it, which has happened if it does not wait; its value is how much of the memory is
            taken then.

        Raises:
            OutOfMemoryError: there is not so much left; if it waits, there is not so much at all.
            UsageError: there is no such device, or the size is no number of bytes.
        """
        return self._allocate(device_id, size_bytes, "", wait, priority)

    def _allocate(self, device_id: str, size_bytes: int, owner: str, wait: bool, priority: float) -> simpy.Event:
        memory: Pool = _known(device_id, self._memories)
        size, used = _size_of(size_bytes, device_id), 0 if wait else memory.used
        if used + size > memory.capacity:
            beside, remedy = (f"beside {used:,.0f} ", "free memory first, or ") if used else ("", "")
            raise OutOfMemoryError(
                f"{device_id}: {size:,.0f} bytes do not fit {beside}in {memory.capacity:,.0f}; {remedy}allocate less",
                device_id=device_id,
                size_bytes=size,
            )
        return memory.take(size, owner, priority) if wait else memory.take_now(size, owner)

    def free_memory(self, device_id: str, size_bytes: int) -> simpy.Event:
        """Give memory of a device back now that was allocated; the event's value is how much is taken then.

        Raises:
            UsageError: more than is allocated, no such device, or a size that is no number of bytes.
        """
        memory: Pool = _known(device_id, self._memories)
        if _size_of(size_bytes, device_id) > memory.held[""]:
            raise UsageError(
                f"{device_id}: {size_bytes:,.0f} bytes are freed, but {memory.held['']:,.0f} are allocated; free what "
                "was allocated, once"
            )
        return self.env.event().succeed(memory.give(size_bytes))

    def submit_network_transfer_task(
        self,
        source: str | None = None,
        dest: str | None = None,
        size_bytes: float | None = None,
        *,
        source_node_id: str | None = None,
        dest_node_id: str | None = None,
        data_size_bytes: float | None = None,
        task_id: str | None = None,
    ) -> Process:
        """Move bytes from one endpoint to another over the shortest route.

        Args:
            source: the endpoint that has them; `source_node_id` is another name of it.
            dest: the endpoint that gets them; `dest_node_id` is another name of it.
            size_bytes: how many; `data_size_bytes` is another name of it.
            source_node_id: see `source`.
            dest_node_id: see `dest`.
            data_size_bytes: see `size_bytes`.
            task_id: what logs call it.

        Returns:
            The process; its value is a `TransferResult`.

        Raises:
            UsageError: an endpoint is unknown, no links lead there, or the size is no number of bytes.
        """
        env, name = self.env, task_id or self._name(_TRANSFER)
        begin = _either("source", source, "source_node_id", source_node_id)
        end = _either("dest", dest, "dest_node_id", dest_node_id)
        size = _size_of(_either("size_bytes", size_bytes, "data_size_bytes", data_size_bytes))
        self.routes.route(begin, end)  # refuses what cannot be reached, before anything happens
        moving = self._transfers.send(name, begin, end, size)
        return env.process(self._wait(name, _TRANSFER, (begin, end), size, moving))

    def submit_collective_task(
        self,
        op: str,
        participants: Sequence[str],
        size_bytes: float,
        algorithm: Algorithm = "ring",
        task_id: str | None = None,
    ) -> Process:
        """Run a collective among endpoints.

        Args:
            op: "AllReduce", "AllGather", "ReduceScatter", "broadcast" or "all_to_all", in any spelling.
            participants: the endpoints, in the order of the ring.
            size_bytes: what each of them brings; of a broadcast, what the first has.
            algorithm: "ring", or "tree" for all_reduce and broadcast.
            task_id: what logs call it.

        Returns:
            The process; its value is a `TransferResult`.

        Raises:
            UsageError: an unknown operation, endpoint or algorithm, or a repeated endpoint.
        """
        env, op, ranks, size = self.env, op_of(op), tuple(participants), _size_of(size_bytes)
        _require_choice(op, "algorithm", algorithm, ("ring", "tree"))
        if not ranks or len(set(ranks)) != len(ranks):
            raise UsageError(f"{op} needs at least one participant, each once; got {', '.join(ranks) or 'none'}", op=op)
        for step in steps_of(op, len(ranks), size, algorithm):
            for sender, receiver, _ in step:
                self.routes.route(ranks[sender], ranks[receiver])
        name = task_id or self._name(op)
        move = self._transfers.step_by_step if self.level_of_detail == "high" else self._transfers.all_together
        return env.process(self._wait(name, op, ranks, size, move(name, ranks, op, size, algorithm)))

    def _wait(self, name: str, op: str, endpoints: tuple[str, ...], size_bytes: float, moving: Slowed) -> Steps:
        """Start something on the links, and wait for it."""
        submitted = float(self.env.now)
        flow = yield from moving
        lane, others = (None, ()) if flow is None or flow.slowed_by is None else flow.slowed_by
        shared_with = tuple(other for other in others if other != name)
        place = None if lane is None else lane.link_id or lane.name
        result = TransferResult(name, op, endpoints, size_bytes, submitted, float(self.env.now), place, shared_with)
        self.results.append(result)
        return result

    def logs(self) -> dict[str, list[Event]]:
        """Return what has ended as event logs, one for each endpoint that has a memory or did something.

        A task is an event of its device, called "task", a transfer one of both ends, a collective one of each
        participant, in the order of their beginning. The tag of an event is what it is called. Pictures and exports
        take the values: `minitrain.view.page.write_html(path, list(logs.values()))`.
        """
        doers = [
            (result, (result.device_id,) if isinstance(result, ComputeResult) else result.endpoints)
            for result in self.results
        ]
        names = dict.fromkeys([*self._memories, *(name for _, places in doers for name in places)])
        numbers = {name: number for number, name in enumerate(names)}
        logs: dict[str, list[Event]] = {name: [] for name in names}
        for result, places in doers:
            for name in places:
                logs[name].append(_event(result, name, numbers))
        for name, log in logs.items():
            log.sort(key=lambda event: event.time)
            if name in self._memories:
                _show_memory(log, self._memories[name].steps)
        return logs

    def utilization(self) -> dict[str, float]:
        """Return the share of each device's units and of each direction of a link that was in use until now."""
        now = float(self.env.now)
        found = {name: share_used(each.units.steps, each.units.capacity, now) for name, each in self._units.items()}
        return found | {lane.name: lane.utilization(now) for lane in self.routes.lanes}

    def _name(self, kind: str) -> str:
        """Return a name for something that has none."""
        return f"{kind} {next(self._numbers)}"

    def _device(self, device_id: str) -> VirtualComputeDevice:
        self.env  # noqa: B018  (says that initialize is missing)
        found: VirtualComputeDevice = _known(device_id, self._devices)
        return found


def _known(device_id: str, known: Mapping[str, Any]) -> Any:
    """Return a device by its name, or raise a UsageError where there is none."""
    if not isinstance(device_id, str) or device_id not in known:
        listed = ", ".join(list(known)[:8]) + (" ..." if len(known) > 8 else "")
        meant = closest(device_id, known)
        raise UsageError(f"there is no device {device_id!r}; {f'{meant} There' if meant else 'there'} are {listed}")
    return known[device_id]


def _either(name: str, value: Any, other: str, value_of_other: Any) -> Any:
    """Return a value that has two names."""
    if (value is None) == (value_of_other is None):
        raise UsageError(f"a transfer needs {name} (or {other}), once; got {value!r} and {value_of_other!r}")
    return value_of_other if value is None else value


def _require_choice(subject: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise a UsageError for a value that is not one of the choices."""
    fault = choice_fault(name, value, choices)
    if fault:
        raise refuse(subject, [fault])


def _event(result: ComputeResult | TransferResult, name: str, numbers: Mapping[str, int]) -> Event:
    """Return the event of one endpoint for a result."""
    rank, tag = numbers[name], result.task_id
    if isinstance(result, ComputeResult):
        return Event(_TASK, None, rank, result.start, result.end - result.start, 0.0, stream=COMPUTE, tag=tag)
    more: dict[str, Any] = {"tag": tag, "size_bytes": result.size_bytes}
    kind = result.op
    if kind == _TRANSFER:
        source, dest = result.endpoints[0], result.endpoints[-1]
        kind, peer = (SEND, dest) if name == source else (RECV, source)
        more |= {"stream": kind, "peer": numbers[peer]}
    else:
        more |= {"stream": COMM, "group": tuple(sorted(numbers[member] for member in result.endpoints))}
    return Event(kind, None, rank, result.submitted, result.seconds, 0.0, **more)


def _show_memory(log: list[Event], steps: Sequence[tuple[float, int]]) -> None:
    """Let each event show what was allocated when it began."""
    place = 0
    for event in log:
        while place + 1 < len(steps) and steps[place + 1][0] <= event.time:
            place += 1
        event.memory = float(steps[place][1])
