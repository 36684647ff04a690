"""What a platform consists of and what it is asked to do, as values: devices, memories, models, tasks, results.

Values are made by hand, or of mappings as YAML and JSON files hold them. A database of models says what they need of a
device:

    {"my-7b": {"parameters": 7e9, "flops_per_token": 14e9, "num_layers": 32, "bytes_per_parameter": 2}}

`configs/model_params.json` beside this file is one (`DATABASE`): two FLOPs a parameter and token; a token of resnet50
is an image of 224 x 224 (4.1e9 multiply-adds, He et al. 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import ceil, fsum
from os import fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from minitrain.errors import UsageError, choice_fault, closest, is_count, is_number, refuse, shown, typed
from minitrain.files import StrPath, require_plain
from minitrain.machine.config import SystemConfig, load_config, parse, read_file
from minitrain.machine.config_format import ReadOnly
from minitrain.machine.platform.links import GIGA, ClusterLinks, VirtualNetworkLink, links_of, require_known

KEY = "hardware_profile"
TERA = 1e12
Bound = Literal["compute", "memory"]
_FLOPS = "flops_required_"
BYTES_KEYS = ("bytes_moved", "memory_read_bytes", "memory_write_bytes")
"""What a task may say of its memory traffic."""
MODEL_TASK_KEYS = ("num_processing_units_requested", "priority", "wait")
"""What a task of a model may say beside the model, the device and tokens."""
_TASK_KEYS = (
    *("task_id", "operation_type", "flops_required_fp16", "flops_required", "precision"),
    *BYTES_KEYS,
    *("memory_occupied_bytes", "is_memory_bound_hint", "layers"),
    *MODEL_TASK_KEYS,
)
OPERATION_EFFICIENCY: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "matmul": (0.8, 0.9),
        "convolution": (0.6, 0.9),
        "attention": (0.6, 0.9),
        "elementwise": (0.25, 0.9),
        "memory_bound": (1.0, 0.9),
    }
)
"""What operations reach of a device's arithmetic peak and of its memory's bandwidth, by their type.

matmul: as the H100 of the hardware configs; attention: FlashAttention-2 reaches 0.5 to 0.73 on an A100 (Dao 2023, arXiv
2307.08691); elementwise: vector units, which have 78 of an A100's 312 TFLOP/s in fp16 (NVIDIA A100 whitepaper, 2020).
Those of convolutions and of bandwidth are assumed. `set_efficiency_factors` replaces each.
"""
DATABASE = "configs/model_params.json"
"""The database of models that comes with the platform; a file of that name in the working directory is taken before."""
_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8": "fp8"}


def object_of(source: Mapping[str, Any] | StrPath, rule: str, key: str | None = None) -> Mapping[str, Any]:
    """Return the object that a YAML or JSON file holds, or that is given; the one under `key`, if there is one.

    Raises:
        HardwareConfigError: the file cannot be found or read.
        UsageError: it holds something else; the message begins with `rule`.
    """
    found: Any = source
    if not isinstance(source, Mapping):
        path = Path(fspath(source))
        found = parse(read_file(str(path)), path.name)
        try:
            require_plain(found)
        except ValueError as error:
            raise UsageError(f"{rule}; in {path.name}, {error}") from None
    if isinstance(found, Mapping) and key in found:
        found = found[key]
    if not isinstance(found, Mapping):
        raise UsageError(f"{rule}, found {shown(found)}")
    return found


def _made(kind: Any, item: Any, subject: str = "") -> Any:
    """Return a value of a dataclass by the mapping of its fields; messages begin with `subject`."""
    known = {field.name: field for field in fields(kind)}
    if not isinstance(item, Mapping):
        listed = f" with {', '.join(known)}" if subject else ""
        raise UsageError(f"{subject}expected an object{listed}, found {shown(item)}")
    require_known(f"{subject}no key", item, known)
    missing = [name for name, field in known.items() if field.default is MISSING and name not in item]
    if missing:
        raise UsageError(f"{subject}{', '.join(missing)} missing")
    return kind(**item)


@typed
@dataclass(frozen=True, slots=True)
class VirtualComputeDevice(ReadOnly):
    """What a profile says of a device that computes.

    Args:
        device_id: its name, an endpoint of links.
        peak_tflops: 1e12 FLOP/s by precision: {"fp16": 312, "int8": 624}.
        memory_capacity_bytes: of its memory.
        memory_gbps: bandwidth of its memory, 1e9 bytes/s.
        processing_units: what tasks share, such as multiprocessors.
        device_type: "GPU", "CPU" ...; shown, not priced.

    Raises:
        UsageError: a figure is not above 0.
    """

    device_id: str
    peak_tflops: Mapping[str, float]
    memory_capacity_bytes: float
    memory_gbps: float
    processing_units: int = 1
    device_type: str = "GPU"

    def __post_init__(self) -> None:
        """Refuse figures that no device has."""
        ReadOnly.__post_init__(self)
        figures = {name: getattr(self, name) for name in ("memory_capacity_bytes", "memory_gbps", "processing_units")}
        figures |= {f"peak_tflops.{name}": value for name, value in self.peak_tflops.items()}
        for name, value in figures.items():
            if not is_number(value) or not value:
                raise UsageError(
                    f"device {self.device_id}: {name} must be a number above 0, got {value!r}; check the profile"
                )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, of plain types."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**found, "peak_tflops": dict(self.peak_tflops)}

    def peak_flop_per_s(self, precision: str) -> float:
        """Return the peak rate for a precision, FLOP/s.

        Raises:
            UsageError: the profile has no rate for it.
        """
        if precision not in self.peak_tflops:
            raise UsageError(
                f"device {self.device_id} has no rate for {precision}; it has {', '.join(self.peak_tflops)} "
                f"{closest(precision, self.peak_tflops)}".rstrip()
            )
        return self.peak_tflops[precision] * TERA

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the bandwidth of its memory, bytes/s."""
        return self.memory_gbps * GIGA


@dataclass(frozen=True, slots=True)
class VirtualMemoryDevice:
    """A memory that belongs to no single device, such as a host's.

    Args:
        memory_id: its name, an endpoint of links.
        capacity_bytes: how much it holds.
    """

    memory_id: str
    capacity_bytes: float


@dataclass(frozen=True)
class HardwareResourceProfile:
    """The devices, memories and links of a platform.

    Args:
        compute_devices: devices, or mappings with their fields.
        memory_devices: memories that belong to no single device, likewise.
        network_links: links, likewise, and lines that make several (see `minitrain.platform.links`).

    Raises:
        UsageError: a field is missing, unknown or wrong, or two things have one name; all faults at once.
    """

    compute_devices: Sequence[VirtualComputeDevice] = ()
    memory_devices: Sequence[VirtualMemoryDevice] = ()
    network_links: Sequence[VirtualNetworkLink] = ()

    def __post_init__(self) -> None:
        """Make values of mappings."""
        faults: list[str] = []
        kinds = (VirtualComputeDevice, VirtualMemoryDevice, VirtualNetworkLink)
        for name, kind in zip(self.__dataclass_fields__, kinds, strict=True):
            found: list[Any] = []
            for place, item in enumerate(getattr(self, name) or ()):
                try:
                    is_line = kind is VirtualNetworkLink and isinstance(item, Mapping) and "topology" in item
                    made = links_of(item) if is_line else [item if isinstance(item, kind) else _made(kind, item)]
                    found += made
                except UsageError as error:
                    faults.append(f"{name}[{place}]: {error}")
            object.__setattr__(self, name, tuple(found))
        if not faults:
            names = [device.device_id for device in self.compute_devices]
            names += [memory.memory_id for memory in self.memory_devices]
            twice = sorted({name for name in names if names.count(name) > 1})
            faults += [f"two devices are called {name!r}; give each a name of its own" for name in twice]
        if faults:
            raise refuse("the hardware profile", faults)

    def system_config(self) -> SystemConfig:
        """Return a hardware config that prices a run on these devices: see `minitrain.machine.config`.

        Raises:
            HardwareConfigError: the devices are not alike, or a figure is not one that a config may have.
        """
        devices = [device.as_dict() for device in self.compute_devices]
        links = [asdict(link) for link in self.network_links]
        return load_config({"name": "platform", KEY: {"compute_devices": devices, "network_links": links}})

    @classmethod
    def read(cls, source: StrPath | Mapping[str, Any]) -> HardwareResourceProfile:
        """Return the profile of a YAML or JSON file, or of its content.

        Args:
            source: a path, or a mapping; the profile stands under `hardware_profile`, or is all there is.

        Raises:
            HardwareConfigError: the file cannot be found or read.
            UsageError: as for the class.
        """
        names = [field.name for field in fields(cls)]
        data = object_of(source, f"a hardware profile must be an object with {', '.join(names)}", KEY)
        require_known("a hardware profile has no key", data, names)
        if not any(data.values()):
            raise UsageError(f"a hardware profile must list something under {', '.join(names)}; found {shown(data)}")
        return cls(**data)


def profile_of_config(source: Any, world_size: int, *, nics: int | None = None) -> HardwareResourceProfile:
    """Return a platform's profile of processors that a hardware config describes, with the links between them.

    Args:
        source: a hardware config, its name or its file.
        world_size: how many processors, from "gpu0" up.
        nics: as for `ClusterLinks`.
    """
    config = load_config(source)
    links = ClusterLinks(config, world_size, nics=nics)
    peaks = {_SHORT.get(name, name): rate.tflops for name, rate in config.matrix.items()}
    memory = config.mem1.GiB * 2**30, config.mem1.GBps
    units = config.sheet.num_units or 1
    devices = [VirtualComputeDevice(f"gpu{rank}", peaks, *memory, units) for rank in range(world_size)]
    hosts = [VirtualMemoryDevice(f"node{node}.host", config.mem2.GiB * 2**30) for node in links.nodes]
    return HardwareResourceProfile(devices, hosts, list(links.routes.links.values()))


@dataclass(frozen=True, slots=True)
class ComputeTask:
    """A computation, as a device prices it.

    Args:
        task_id: its name.
        flops: floating-point operations by precision ("fp16").
        memory_bytes: bytes read and written.
        num_units: processing units that it takes; all of the device's if None.
        operation_type: one of `OPERATION_EFFICIENCY`, or None: it reaches the peaks.
        layers: the tasks that it consists of, which `high` level of detail runs one after the other.
        occupied_bytes: memory that it holds from its submission to its end.
        shares: a name of what it holds, which tasks that name the same on a device hold together; None if it does not.
        priority: of those that wait for units or memory, smaller ones are served first.
        wait: whether it waits for memory; where not, it is refused if there is not enough.
    """

    task_id: str
    flops: Mapping[str, float]
    memory_bytes: float
    num_units: int | None = None
    operation_type: str | None = None
    layers: tuple[ComputeTask, ...] = ()
    occupied_bytes: int = 0
    shares: str | None = None
    priority: float = 0
    wait: bool = False

    @classmethod
    def of(cls, description: Mapping[str, Any] | ComputeTask, task_id: str) -> ComputeTask:
        """Return a task by its description.

        Args:
            description: `task_id`, `flops_required_fp16` (or another precision) or `flops_required` in `precision`
                ("fp16"), `memory_read_bytes`, `memory_write_bytes` or `bytes_moved`, `memory_occupied_bytes` (held
                while the task is there), `operation_type`, `is_memory_bound_hint` (the type "memory_bound", if it says
                none), `num_processing_units_requested`, `priority`, `wait`, and `layers`, a list of the same, for which
                it asks beside its own, of its type where they say none; or a task.
            task_id: its name if it says none.

        Raises:
            UsageError: an unknown key, or a value that is no number of at least 0.
        """
        if isinstance(description, ComputeTask):
            return description
        require_known("a task has no key", (key for key in description if not key.startswith(_FLOPS)), _TASK_KEYS)
        name = str(description.get("task_id", task_id))

        def number(key: str) -> float:
            value = description.get(key, 0)
            if not is_number(value):
                raise UsageError(f"task {name}: {key} must be a number >= 0, got {value!r}")
            return cast("float", value)

        layers = tuple(cls.of(layer, f"{name}.{place}") for place, layer in enumerate(description.get("layers") or ()))
        flops = {key.removeprefix(_FLOPS): number(key) for key in description if _FLOPS in key}
        if "flops_required" in description:
            precision = str(description.get("precision", "fp16"))
            flops[precision] = flops.get(precision, 0) + number("flops_required")
        moved = number("memory_read_bytes") + number("memory_write_bytes") + number("bytes_moved")
        kind = _operation_type(description, name)
        units = description.get("num_processing_units_requested")
        if units is not None and not is_count(units):
            raise UsageError(f"task {name}: num_processing_units_requested must be an integer >= 1, got {units!r}")
        whole = cls(name, flops, moved, operation_type=kind)
        if layers:
            whole = whole._beside(layers)
        occupied, (wait, priority) = number("memory_occupied_bytes"), wait_and_priority(description, name)
        held = cast("int", occupied)
        return replace(whole, num_units=units, occupied_bytes=held, priority=priority, wait=wait)

    def _beside(self, layers: tuple[ComputeTask, ...]) -> ComputeTask:
        """Return a task of layers, with what this one asks for beside them as the first."""
        layers = tuple(replace(layer, operation_type=layer.operation_type or self.operation_type) for layer in layers)
        if self.memory_bytes or any(self.flops.values()):
            layers = (replace(self, task_id=f"{self.task_id}.own"), *layers)
        flops: dict[str, float] = {}
        for layer in layers:
            for precision, amount in layer.flops.items():
                flops[precision] = flops.get(precision, 0) + amount
        return replace(self, flops=flops, memory_bytes=sum(layer.memory_bytes for layer in layers), layers=layers)

    def times(self, device: VirtualComputeDevice, mfu: float, mbu: float) -> tuple[float, float]:
        """Return what its arithmetic and its memory traffic take on a device, s.

        Args:
            device: where.
            mfu: share of the arithmetic peak that is reached.
            mbu: share of the memory bandwidth that is reached.
        """
        by_precision = self.flops.items()
        compute_s = fsum(flops / (device.peak_flop_per_s(precision) * mfu) for precision, flops in by_precision)
        return compute_s, self.memory_bytes / (device.memory_bytes_per_s * mbu)


def _operation_type(description: Mapping[str, Any], task_id: str) -> str | None:
    """Return the type of a task's operation, or None where it says none."""
    hint = description.get("is_memory_bound_hint", False)
    kind = description.get("operation_type", "memory_bound" if hint is True else None)
    if kind is not None and (fault := choice_fault("operation_type", kind, list(OPERATION_EFFICIENCY))):
        raise refuse(f"task {task_id}", [fault])
    return cast("str | None", kind)


def bound_of(compute_s: float, memory_s: float) -> Bound:
    """Return which time counts, the longer one (Williams et al. 2009, "Roofline")."""
    return "memory" if memory_s > compute_s else "compute"


def wait_and_priority(description: Mapping[str, Any], task_id: str) -> tuple[bool, float]:
    """Return whether a task waits for memory, and its priority; a UsageError if they are no such values."""
    wait, priority = description.get("wait", False), description.get("priority", 0)
    if not isinstance(wait, bool):
        raise UsageError(f"task {task_id}: wait must be true or false, got {shown(wait)}")
    if not isinstance(priority, int | float) or isinstance(priority, bool):
        raise UsageError(f"task {task_id}: priority must be a number, got {shown(priority)}")
    return wait, priority


@dataclass(frozen=True, slots=True)
class ModelCharacteristics:
    """What one model needs.

    Args:
        parameters: how many it has.
        flops_per_token: floating-point operations of a token's forward pass.
        num_layers: equal layers that it consists of.
        bytes_per_parameter: of its weights in memory.
    """

    parameters: float
    flops_per_token: float
    num_layers: int = 1
    bytes_per_parameter: float = 2

    @property
    def memory_bytes(self) -> float:
        """Return what its weights take."""
        return self.parameters * self.bytes_per_parameter

    def task(self, task_id: str, num_tokens: int, precision: str) -> ComputeTask:
        """Return the computation that takes tokens through the model, layer by layer.

        Raises:
            UsageError: `num_tokens` is no integer of at least 1.
        """
        if not is_count(num_tokens):
            raise UsageError(f"num_tokens must be an integer of at least 1, got {num_tokens!r}")
        whole = ComputeTask(task_id, {precision: self.flops_per_token * num_tokens}, self.memory_bytes)
        flops, moved = {precision: whole.flops[precision] / self.num_layers}, whole.memory_bytes / self.num_layers
        layers = tuple(ComputeTask(f"{task_id}.{place}", flops, moved) for place in range(self.num_layers))
        return replace(whole, layers=layers, occupied_bytes=ceil(self.memory_bytes))


def read_models(source: Mapping[str, Any] | StrPath | None) -> Mapping[str, ModelCharacteristics]:
    """Return the models of a JSON file or of its content by name; transformers that minitrain knows if None.

    Raises:
        HardwareConfigError: the file cannot be found or read.
        UsageError: a model lacks a figure, has an unknown one, or one that is no number above 0.
    """
    if source is None:  # two FLOPs a parameter that a token uses
        from minitrain.workloads.transformer import models  # noqa: PLC0415  (made when somebody asks)

        return {
            name: ModelCharacteristics(model.num_parameters, 2.0 * model.num_active_parameters, model.num_layers)
            for name, model in models().items()
        }
    if source == DATABASE and not Path(DATABASE).exists():
        source = Path(__file__).parent / DATABASE
    data = object_of(source, "a database of models must be an object of models by name")
    found = {name: _made(ModelCharacteristics, figures, f"model {name}: ") for name, figures in data.items()}
    for name, model in found.items():
        for key, value in asdict(model).items():
            if not is_number(value) or not value:
                raise UsageError(f"model {name}: {key} must be a number above 0, got {shown(value)}")
    return found


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """The result of a computation.

    Args:
        task_id: its name.
        device_id: where it ran.
        submitted: when it was submitted, s.
        start: when its units were free, s.
        end: when it ended, s.
        compute_s: what its arithmetic takes, s.
        memory_s: what its memory traffic takes, s.
        bound: which of them counted.
    """

    task_id: str
    device_id: str
    submitted: float
    start: float
    end: float
    compute_s: float
    memory_s: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The result of a transfer or a collective.

    Args:
        task_id: its name.
        op: "transfer", or the collective.
        endpoints: source and destination, or the participants.
        size_bytes: what was moved, or what each participant brought.
        submitted: when it was submitted, s.
        end: when it ended, s.
        slowed_by: the link that it shared last, or None; whoever shared it.
        shared_with: the names of those that it shared that link with.
    """

    task_id: str
    op: str
    endpoints: tuple[str, ...]
    size_bytes: float
    submitted: float
    end: float
    slowed_by: str | None = None
    shared_with: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return how long it took, s."""
        return self.end - self.submitted
