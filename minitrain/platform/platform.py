"""`VirtualHardwarePlatform`: devices, memories and links that any mix of tasks shares, on SimPy."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.platform.collective_steps import Algorithm, op_of, steps_of
from minitrain.platform.devices import Memory, Units, VirtualComputeDevice
from minitrain.platform.logs import event_logs
from minitrain.platform.model_params import ModelParams
from minitrain.platform.profile import HardwareResourceProfile
from minitrain.platform.routes import Routes
from minitrain.platform.tasks import (
    ComputeResult,
    ComputeTask,
    Efficiency,
    TransferResult,
    price,
    size_of,
    task_of,
    value_of,
)
from minitrain.platform.transfers import LevelOfDetail, Transfers
from minitrain.workloads.field_faults import choice_fault, closest, refuse

if TYPE_CHECKING:
    import simpy
    from simpy import Environment, Process

    from minitrain.events import Event
    from minitrain.platform.fair_sharing import Flow

_Steps = Generator["simpy.Event", Any, Any]


@final
class VirtualHardwarePlatform:
    """Hardware that any mix of tasks shares; see `initialize`.

    Attributes:
        env: the SimPy environment, whose clock counts seconds.
        profile: what the platform consists of.
        level_of_detail: "high" (each layer of a task, each message of a collective) or "medium" (a task as a whole, a
            collective by its closed form).
        results: what has ended, in the order of its end.
    """

    def __init__(self, level_of_detail: LevelOfDetail = "high") -> None:
        fault = choice_fault("level_of_detail", level_of_detail, ("high", "medium"))
        if fault:
            raise refuse("the platform", [fault])
        self.level_of_detail = level_of_detail
        self.results: list[ComputeResult | TransferResult] = []
        self._efficiency = Efficiency()
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
            model_chars_db: what models ask for, by name: a mapping or a JSON file (see `ModelParams`); the models that
                come with minitrain if None.

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
        self._units = {name: Units(env, device) for name, device in self._devices.items()}
        self._memories = {name: Memory(env, name, one.memory_capacity_bytes) for name, one in self._devices.items()}
        for one in self.profile.memory_devices:
            self._memories[one.memory_id] = Memory(env, one.memory_id, one.capacity_bytes)
        self.routes = Routes(self.profile.network_links, self._memories)
        self._transfers = Transfers(env, self.routes)
        self._models = ModelParams.read(model_chars_db)
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
        self._efficiency = Efficiency(mfu, mbu)

    def get_device_info(self, device_id: str) -> dict[str, Any]:
        """Return what a device is and how much of it is in use.

        Raises:
            UsageError: there is no such device.
        """
        device, units = self._device(device_id), self._units[device_id]
        return {
            "device_id": device_id,
            "device_type": device.device_type,
            "peak_tflops": dict(device.peak_tflops),
            "memory_capacity_bytes": device.memory_capacity_bytes,
            "memory_gbps": device.memory_gbps,
            "processing_units": device.processing_units,
            "processing_units_free": int(units.free.level),
            "memory_used_bytes": self._memories[device_id].used_bytes,
            "utilization": units.utilization(self.env.now),
        }

    def submit_computation_task(self, device_id: str, task_description: Mapping[str, Any] | ComputeTask) -> Process:
        """Compute on a device, as soon as the units that the task asks for are free.

        Args:
            device_id: where.
            task_description: see `task_of`.

        Returns:
            The process; its value is a `ComputeResult`.

        Raises:
            UsageError: there is no such device or precision, or it has fewer units than the task asks for.
        """
        device = self._device(device_id)
        task = task_of(task_description, self._transfers.name("task"))
        parts = task.layers if task.layers and self.level_of_detail == "high" else (task,)
        prices = [price(part, device, self._efficiency) for part in parts]
        wanted = device.processing_units if task.num_units is None else task.num_units
        if wanted > device.processing_units:
            raise UsageError(
                f"task {task.task_id} asks for {wanted} processing units, but {device_id} has "
                f"{device.processing_units}; ask for fewer",
                device_id=device_id,
            )
        return self.env.process(self._compute(device_id, task, wanted, prices))

    def _compute(self, device_id: str, task: ComputeTask, wanted: int, prices: Sequence[tuple[Any, ...]]) -> _Steps:
        env, units, submitted = self.env, self._units[device_id], float(self.env.now)
        yield units.free.get(wanted)
        units.note()
        start = float(env.now)
        for *_, seconds, _ in prices:
            yield env.timeout(seconds)
        units.free.put(wanted)
        units.note()
        compute_s, memory_s = (sum(one[place] for one in prices) for place in (0, 1))
        bound = "memory" if task.is_memory_bound or memory_s > compute_s else "compute"
        end = float(env.now)
        result = ComputeResult(task.task_id, device_id, submitted, start, end, compute_s, memory_s, bound)  # type: ignore[arg-type]  # a Literal
        self.results.append(result)
        return result

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
        return self.submit_computation_task(device_id, self._models.task(model_id, num_tokens, precision, task_id))

    def allocate_memory(self, device_id: str, size_bytes: int) -> simpy.Event:
        """Take memory of a device now.

        Returns:
            An event that has happened; its value is how much of the memory is taken then.

        Raises:
            OutOfMemoryError: there is not so much left.
            UsageError: there is no such device, or the size is no number of bytes.
        """
        return self.env.event().succeed(self._memory(device_id).allocate(size_bytes))

    def free_memory(self, device_id: str, size_bytes: int) -> simpy.Event:
        """Give memory of a device back now; as `allocate_memory`, and a UsageError for more than is allocated."""
        return self.env.event().succeed(self._memory(device_id).free(size_bytes))

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
        begin = value_of("source", source, "source_node_id", source_node_id)
        end = value_of("dest", dest, "dest_node_id", dest_node_id)
        size = size_of(value_of("size_bytes", size_bytes, "data_size_bytes", data_size_bytes))
        self.routes.route(begin, end)  # refuses what cannot be reached, before anything happens
        name = task_id or self._transfers.name("transfer")

        def start(done: Callable[[Flow | None], None]) -> None:
            self._transfers.send(name, begin, end, size, done)

        return self.env.process(self._wait(name, "transfer", (begin, end), size, start))

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
        op, ranks, size = op_of(op), tuple(participants), size_of(size_bytes)
        fault = choice_fault("algorithm", algorithm, ("ring", "tree"))
        if fault:
            raise refuse(op, [fault])
        if not ranks or len(set(ranks)) != len(ranks):
            raise UsageError(f"{op} needs at least one participant, each once; got {', '.join(ranks) or 'none'}", op=op)
        for step in steps_of(op, len(ranks), size, algorithm):
            for sender, receiver, _ in step:
                self.routes.route(ranks[sender], ranks[receiver])
        name = task_id or self._transfers.name(op)
        go = self._transfers.step_by_step if self.level_of_detail == "high" else self._transfers.all_together

        def start(done: Callable[[Flow | None], None]) -> None:
            go(name, ranks, op, size, algorithm, done)

        return self.env.process(self._wait(name, op, ranks, size, start))

    def _wait(
        self,
        name: str,
        op: str,
        endpoints: tuple[str, ...],
        size_bytes: float,
        start: Callable[[Callable[[Flow | None], None]], None],
    ) -> _Steps:
        """Start something on the links, and wait for it."""
        submitted, ended = float(self.env.now), self.env.event()
        start(lambda flow: _succeed(ended, flow))
        flow = yield ended
        lane, others = (None, ()) if flow is None or flow.slowed_by is None else flow.slowed_by
        shared_with = tuple(other for other in others if other != name)
        place = None if lane is None else lane.link_id or lane.name
        result = TransferResult(name, op, endpoints, size_bytes, submitted, float(self.env.now), place, shared_with)
        self.results.append(result)
        return result

    def logs(self) -> dict[str, list[Event]]:
        """Return what has ended as event logs, one for each endpoint that has a memory or did something.

        Tasks are called "task", and the tag of an event is what it is called. Pictures and exports take the values:
        `minitrain.trace.page.write_html(path, list(logs.values()))`.
        """
        return event_logs(self.results, self._memories)

    def utilization(self) -> dict[str, float]:
        """Return the share of each device's units and of each direction of a link that was in use until now."""
        now = float(self.env.now)
        found = {name: units.utilization(now) for name, units in self._units.items()}
        return found | {lane.name: lane.utilization(now) for lane in self.routes.lanes}

    def _device(self, device_id: str) -> VirtualComputeDevice:
        self.env  # noqa: B018  (says that initialize is missing)
        if device_id not in self._devices:
            raise _unknown("device", device_id, self._devices)
        return self._devices[device_id]

    def _memory(self, device_id: str) -> Memory:
        self.env  # noqa: B018  (as above)
        if device_id not in self._memories:
            raise _unknown("device", device_id, self._memories)
        return self._memories[device_id]


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> UsageError:
    listed = ", ".join(list(known)[:8]) + (" ..." if len(known) > 8 else "")
    return UsageError(f"there is no {what} {name!r} {closest(name, known)}; there are {listed}", device_id=name)


def _succeed(event: simpy.Event, flow: Flow | None) -> None:
    event.succeed(flow)
