"""`VirtualHardwarePlatform`: devices, memories and links that any mix of tasks shares, on SimPy.

A `Scenario` is a file of hardware and tasks with arrival times, to use the platform without Python: `minitrain platform
run FILE`.

    hardware_profile: {compute_devices: [...], network_links: [...]}   # or: hardware: h100_80g_nvl8, world_size: 16
    tasks:
      - {task_id: prefill, compute: gpu0, flops_required_fp16: 1.0e12, memory_read_bytes: 1.0e9}
      - {task_id: move, after: [prefill], transfer: [gpu0, gpu1], size_bytes: 100000000}
      - {task_id: sum, at_s: 0.001, collective: all_reduce, participants: [gpu0, gpu1], size_bytes: 100000000}
      - {task_id: serve, model: llama3-8b, device: gpu0, num_tokens: 512}
      - {task_id: hold, allocate: gpu0, size_bytes: 1000000000}
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, final

from minitrain.errors import MinitrainError, OutOfMemoryError, UsageError
from minitrain.machine.platform.fair_sharing import Algorithm, Flow, Slowed, Transfers, op_of, steps_of, succeed
from minitrain.machine.platform.links import Lane, Routes, require_known, share_used
from minitrain.machine.platform.profile import (
    KEY,
    Bound,
    ComputeResult,
    ComputeTask,
    HardwareResourceProfile,
    TransferResult,
    VirtualComputeDevice,
    is_number,
    object_of,
    profile_of_config,
    read_models,
)
from minitrain.operations import COMM, COMPUTE, RECV, SEND, Event
from minitrain.workloads.field_faults import choice_fault, closest, refuse, shown

if TYPE_CHECKING:
    import simpy
    from simpy import Environment, Process

LevelOfDetail = Literal["high", "medium"]
UnitRates = Literal["shared", "specified"]
_Steps = Generator["simpy.Event", Any, Any]
_TRANSFER, _TASK = "transfer", "task"


@final
@dataclass(slots=True)
class Memory:
    """Memory that tasks allocate: it raises where bare SimPy would wait for ever.

    Args:
        env: whose clock counts.
        name: whose memory it is.
        capacity_bytes: how much it holds.

    Attributes:
        used_bytes: how much of it is allocated.
        steps: what was allocated, as (moment, bytes from then on).
    """

    env: Environment
    name: str
    capacity_bytes: float
    used_bytes: int = 0
    steps: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])

    def allocate(self, size_bytes: int) -> int:
        """Take some memory, and return how much is taken then.

        Raises:
            OutOfMemoryError: there is not so much left.
            UsageError: a size that is no number of bytes.
        """
        if self.used_bytes + _size_of(size_bytes, self.name) > self.capacity_bytes:
            raise OutOfMemoryError(
                f"{self.name}: {size_bytes:,.0f} bytes do not fit beside {self.used_bytes:,.0f} in "
                f"{self.capacity_bytes:,.0f}; free memory first, or allocate less",
                device_id=self.name,
                size_bytes=size_bytes,
            )
        return self._change(size_bytes)

    def free(self, size_bytes: int) -> int:
        """Give some memory back, and return how much is taken then.

        Raises:
            UsageError: more than is allocated, or a size that is no number of bytes.
        """
        if _size_of(size_bytes, self.name) > self.used_bytes:
            raise UsageError(
                f"{self.name}: {size_bytes:,.0f} bytes are freed, but {self.used_bytes:,.0f} are allocated; free what "
                "was allocated, once",
                device_id=self.name,
                size_bytes=size_bytes,
            )
        return self._change(-size_bytes)

    def _change(self, size_bytes: int) -> int:
        self.used_bytes += size_bytes
        self.steps.append((self.env.now, self.used_bytes))
        return self.used_bytes


def _size_of(value: Any, device_id: str | None = None) -> Any:
    """Return a number of bytes, or raise a UsageError for what is none."""
    if not is_number(value):
        where = {} if device_id is None else {"device_id": device_id}
        prefix = f"{device_id}: " if where else ""
        raise UsageError(f"{prefix}a size must be a number of bytes >= 0, got {value!r}", **where)
    return value


@final
class Units:
    """The processing units of a device: tasks take as many as they ask for, first come first served.

    Args:
        env: whose clock counts.
        total: how many there are.

    Attributes:
        free: those that are not taken.
        steps: how many are taken, as (moment, units from then on).
    """

    def __init__(self, env: Environment, total: int) -> None:
        from simpy import Container  # noqa: PLC0415  (where a platform runs, it is loaded)

        self.env = env
        self.total = total
        self.free: simpy.Container = Container(env, capacity=total, init=total)
        self.steps: list[tuple[float, float]] = []

    def note(self) -> None:
        """Note how many are taken from now on."""
        self.steps.append((self.env.now, self.total - self.free.level))


@final
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
        results: what has ended, in the order of its end.
    """

    def __init__(self, level_of_detail: LevelOfDetail = "high", unit_rates: UnitRates = "shared") -> None:
        _require_choice("the platform", "level_of_detail", level_of_detail, ("high", "medium"))
        _require_choice("the platform", "unit_rates", unit_rates, ("shared", "specified"))
        self.level_of_detail = level_of_detail
        self.unit_rates = unit_rates
        self.results: list[ComputeResult | TransferResult] = []
        self._efficiency = 1.0, 1.0
        self._env: Environment | None = None

    def initialize(
        self,
        profile: HardwareResourceProfile | Mapping[str, Any] | str | PathLike[str],
        simpy_env: Environment | None = None,
        model_chars_db: Mapping[str, Any] | str | PathLike[str] | None = None,
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
        self._units = {name: Units(env, device.processing_units) for name, device in self._devices.items()}
        capacities = {name: device.memory_capacity_bytes for name, device in self._devices.items()}
        capacities |= {memory.memory_id: memory.capacity_bytes for memory in self.profile.memory_devices}
        self._memories = {name: Memory(env, name, capacity) for name, capacity in capacities.items()}
        self.routes = Routes(self.profile.network_links, self._memories)
        self._transfers = Transfers(env, self.routes)
        self._buses = {
            name: Lane(f"{name}: memory", 1.0) for name in self._devices
        }  # shares of its bandwidth flow there
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
        """Simulate everything that was submitted, and return the moment of the end, s."""
        self.env.run(until)
        return float(self.env.now)

    def set_efficiency_factors(self, mfu: float = 1.0, mbu: float = 1.0) -> None:
        """Let tasks that begin from now on reach less than the peaks.

        Args:
            mfu: share of the arithmetic peak, in (0, 1].
            mbu: share of the memory bandwidth, in (0, 1].

        Raises:
            UsageError: one of them is no such share.
        """
        for name, value in (("mfu", mfu), ("mbu", mbu)):
            if not is_number(value) or not 0 < value <= 1:
                raise UsageError(f"{name} must be a number in (0, 1], got {value!r}; 1 is the peak")
        self._efficiency = mfu, mbu

    def get_device_info(self, device_id: str) -> dict[str, Any]:
        """Return what a device is and how much of it is in use.

        Raises:
            UsageError: there is no such device.
        """
        device, units = self._device(device_id), self._units[device_id]
        return {
            **device.as_dict(),
            "processing_units_free": int(units.free.level),
            "memory_used_bytes": self._memories[device_id].used_bytes,
            "utilization": share_used(units.steps, units.total, self.env.now),
        }

    def submit_computation_task(self, device_id: str, task_description: Mapping[str, Any] | ComputeTask) -> Process:
        """Compute on a device, as soon as the units that the task asks for are free.

        Args:
            device_id: where.
            task_description: see `ComputeTask.of`.

        Returns:
            The process; its value is a `ComputeResult`.

        Raises:
            UsageError: there is no such device or precision, or it has fewer units than the task asks for.
        """
        device = self._device(device_id)
        task = ComputeTask.of(task_description, self._name(_TASK))
        wanted = device.processing_units if task.num_units is None else task.num_units
        parts = task.layers if task.layers and self.level_of_detail == "high" else (task,)
        times = [part.times(device, *self._efficiency) for part in parts]
        if wanted > device.processing_units:
            raise UsageError(
                f"task {task.task_id} asks for {wanted} processing units, but {device_id} has "
                f"{device.processing_units}; ask for fewer",
                device_id=device_id,
            )
        if self.unit_rates == "shared":
            times = [(compute_s * (device.processing_units / wanted), memory_s) for compute_s, memory_s in times]
        seconds = [part.seconds(*each) for part, each in zip(parts, times, strict=True)]
        steps = list(zip(seconds, (memory_s for _, memory_s in times), strict=True))
        compute_s, memory_s = (sum(column) for column in zip(*times, strict=True))
        found = compute_s, memory_s, task.bound(compute_s, memory_s)
        return self.env.process(self._compute(device_id, task.task_id, wanted, steps, found))

    def _compute(
        self,
        device_id: str,
        task_id: str,
        wanted: int,
        steps: Sequence[tuple[float, float]],
        found: tuple[float, float, Bound],
    ) -> _Steps:
        """Carry out steps on some units: how long each lasts where nobody else runs, and its memory traffic, s."""
        env, units, submitted = self.env, self._units[device_id], float(self.env.now)
        compute_s, memory_s, bound = found
        is_alone = self.unit_rates == "specified" or wanted == units.total
        yield units.free.get(wanted)
        units.note()
        start = float(env.now)
        for seconds, traffic_s in steps:
            if is_alone or not traffic_s:
                yield env.timeout(seconds)
            elif (yield self._read(device_id, task_id, seconds, traffic_s)).was_slowed:
                bound = "memory"
        units.free.put(wanted)
        units.note()
        result = ComputeResult(task_id, device_id, submitted, start, float(env.now), compute_s, memory_s, bound)
        self.results.append(result)
        return result

    def _read(self, device_id: str, task_id: str, seconds: float, traffic_s: float) -> simpy.Event:
        """Let a task's memory traffic flow beside that of others, and return its end, whose value is the flow.

        Args:
            device_id: whose memory it is.
            task_id: what logs call it.
            seconds: how long the task lasts where nobody else runs; it asks for no more bandwidth than that takes.
            traffic_s: how long its traffic alone takes all that it can reach of the bandwidth, s.
        """
        ended, now = self.env.event(), self.env.now
        lanes, rate = {self._buses[device_id]: 1.0}, traffic_s / seconds
        flow = Flow(task_id, lanes, traffic_s, rate, lambda: succeed(ended, flow), now + seconds)
        self._transfers.sharing.begin(flow)
        return ended

    def submit_model_task(
        self, device_id: str, model_id: str, num_tokens: int, precision: str = "fp16", task_id: str | None = None
    ) -> Process:
        """Take tokens through a model on a device: its FLOPs, and one reading of its weights.

        Args:
            device_id: where.
            model_id: which model of the database.
            num_tokens: how many.
            precision: of the arithmetic.
            task_id: what logs call it.

        Raises:
            UsageError: there is no such model or device, or `num_tokens` is no integer of at least 1.
        """
        self._device(device_id)
        if model_id not in self._models:
            meant = closest(model_id, self._models)
            raise UsageError(f"the database has no model {model_id!r} {meant}".rstrip(), model=model_id)
        task = self._models[model_id].task(task_id or model_id, num_tokens, precision)
        return self.submit_computation_task(device_id, task)

    def allocate_memory(self, device_id: str, size_bytes: int) -> simpy.Event:
        """Take memory of a device now.

        Returns:
            An event that has happened; its value is how much of the memory is taken then.

        Raises:
            OutOfMemoryError: there is not so much left.
            UsageError: there is no such device, or the size is no number of bytes.
        """
        return self.env.event().succeed(_known(device_id, self._memories).allocate(size_bytes))

    def free_memory(self, device_id: str, size_bytes: int) -> simpy.Event:
        """Give memory of a device back now; as `allocate_memory`, and a UsageError for more than is allocated."""
        return self.env.event().succeed(_known(device_id, self._memories).free(size_bytes))

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

    def _wait(self, name: str, op: str, endpoints: tuple[str, ...], size_bytes: float, moving: Slowed) -> _Steps:
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
        found = {name: share_used(units.steps, units.total, now) for name, units in self._units.items()}
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
    if device_id not in known:
        listed = ", ".join(list(known)[:8]) + (" ..." if len(known) > 8 else "")
        meant = closest(device_id, known)
        raise UsageError(f"there is no device {device_id!r} {meant}; there are {listed}", device_id=device_id)
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


_TOP = (KEY, "hardware", "world_size", "nics", "tasks", "efficiency", "level_of_detail", "unit_rates", "model_params")
_COMMON = ("task_id", "at_s", "after")
_VERBS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": (),  # and what a task may have
        "model": ("device", "num_tokens", "precision"),
        "transfer": ("size_bytes",),
        "collective": ("participants", "size_bytes", "algorithm"),
        "allocate": ("size_bytes",),
        "free": ("size_bytes",),
    }
)


@final
@dataclass(frozen=True, slots=True)
class Scenario:
    """Hardware, and tasks that arrive.

    Args:
        platform: the hardware.
        tasks: what arrives, in the file's order.
    """

    platform: VirtualHardwarePlatform
    tasks: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, source: str | PathLike[str] | Mapping[str, Any], level_of_detail: Any = None) -> Scenario:
        """Return the scenario of a YAML or JSON file, or of its content.

        Args:
            source: a path, or a mapping.
            level_of_detail: in the place of the file's.

        Raises:
            HardwareConfigError: the file cannot be found or read, or names a config that cannot.
            UsageError: an unknown key, or a value outside its rule; all faults of tasks at once.
        """
        data = object_of(source, f"a scenario must be an object with {', '.join(_TOP)}")
        require_known("a scenario has no key", data, _TOP)
        if (KEY in data) == ("hardware" in data):
            raise UsageError(f"a scenario needs {KEY}, or hardware (a config's name) and world_size; give one of them")
        detail = level_of_detail or data.get("level_of_detail", "high")
        platform = VirtualHardwarePlatform(detail, data.get("unit_rates", "shared"))
        profile: Any = data.get(KEY)
        if KEY not in data:
            profile = profile_of_config(data["hardware"], data.get("world_size", 8), nics=data.get("nics"))
        platform.initialize(profile, model_chars_db=data.get("model_params"))
        platform.set_efficiency_factors(**data.get("efficiency", {}))
        return cls(platform, _tasks(data.get("tasks")))

    def run(self) -> float:
        """Simulate all tasks to their ends, and return the moment of the last, s.

        Raises:
            MinitrainError: a task cannot be carried out; the message names it.
        """
        env = self.platform.env
        running: dict[str, Process] = {}
        for task in self.tasks:
            before = [running[name] for name in task.get("after", ())]
            running[task["task_id"]] = env.process(self._carry_out(task, before))
        return self.platform.run()

    def _carry_out(self, task: Mapping[str, Any], before: list[Process]) -> _Steps:
        env = self.platform.env
        if task.get("at_s", 0):
            yield env.timeout(task["at_s"])
        yield env.all_of(before)
        try:
            submitted = self._submit(dict(task))
        except MinitrainError as error:
            raise type(error)(f"task {task['task_id']}: {error}", **error.facts) from None
        yield submitted

    def _submit(self, task: dict[str, Any]) -> simpy.Event:
        """Let a task begin; what it lacks or gets wrong is refused by the platform."""
        platform, name, size = self.platform, task["task_id"], task.get("size_bytes")
        match task:
            case {"compute": device}:
                rest = {key: value for key, value in task.items() if key not in ("compute", "at_s", "after")}
                return platform.submit_computation_task(device, rest)
            case {"model": model}:
                tokens, precision = task.get("num_tokens", 1), task.get("precision", "fp16")
                return platform.submit_model_task(task.get("device", ""), model, tokens, precision, name)
            case {"transfer": [source, dest]}:
                return platform.submit_network_transfer_task(source, dest, size, task_id=name)
            case {"transfer": ends}:
                raise UsageError(f"transfer must be a list of source and destination, found {shown(ends)}")
            case {"collective": op}:
                members, algorithm = task.get("participants", ()), task.get("algorithm", "ring")
                return platform.submit_collective_task(op, members, size, algorithm, name)  # type: ignore[arg-type]
            case {"allocate": device}:
                return platform.allocate_memory(device, size)  # type: ignore[arg-type]  # refused there
        return platform.free_memory(task["free"], size)  # type: ignore[arg-type]  # refused there


def _tasks(items: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the tasks of a scenario, each with a name, or raise one error with all faults."""
    if not isinstance(items, list) or not items:
        raise UsageError(f"a scenario needs tasks, a list of at least one; found {shown(items)}")
    faults: list[str] = []
    found: dict[str, Mapping[str, Any]] = {}
    for place, item in enumerate(items):
        task: Mapping[str, Any] = item if isinstance(item, Mapping) else {}
        name = str(task.get("task_id", f"task {place}"))
        faults += [f"{name}: {fault}" for fault in _faults(item, found)]
        if name in found:
            faults.append(f"two tasks are called {name!r}; give each a name of its own")
        found[name] = {**task, "task_id": name}
    if faults:
        raise refuse("the scenario", faults)
    return tuple(found.values())


def _faults(item: Any, before: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one task."""
    if not isinstance(item, Mapping):
        return [f"expected an object, found {shown(item)}"]
    verbs = [verb for verb in _VERBS if verb in item]
    if len(verbs) != 1:
        return [f"a task says one of {', '.join(_VERBS)}; found {', '.join(verbs) or 'none'}"]
    at_s, after, known = item.get("at_s", 0), item.get("after", []), (*verbs, *_COMMON, *_VERBS[verbs[0]])
    faults = [] if is_number(at_s) else [f"at_s must be a number of seconds >= 0, found {shown(at_s)}"]
    if not isinstance(after, list):
        faults.append(f"after must be a list of names of tasks, found {shown(after)}")
        after = []
    faults += [f"after names {one!r}, but no task before is called so" for one in after if one not in before]
    unknown = [key for key in item if key not in known] if verbs != ["compute"] else []
    return faults + [f"no key {key!r} {closest(key, known)}".rstrip() for key in unknown]
