"""The tasks of a platform: computations and their prices, and the results of computations and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, Literal, final

from minitrain.errors import UsageError
from minitrain.workloads.field_faults import closest

if TYPE_CHECKING:
    from minitrain.platform.devices import VirtualComputeDevice

Bound = Literal["compute", "memory"]

_FLOPS = "flops_required_"
_KEYS = (
    "task_id",
    "flops_required_fp16",
    "memory_read_bytes",
    "memory_write_bytes",
    "num_processing_units_requested",
    "is_memory_bound_hint",
    "layers",
)


@final
@dataclass(frozen=True, slots=True)
class ComputeTask:
    """A computation, as a device prices it.

    Args:
        task_id: its name.
        flops: floating-point operations by precision ("fp16").
        memory_bytes: bytes read and written.
        num_units: processing units that it takes; all of the device's if None.
        is_memory_bound: whether memory alone is to be counted.
        layers: the tasks that it consists of, which `high` level of detail runs one after the other.
    """

    task_id: str
    flops: Mapping[str, float]
    memory_bytes: float
    num_units: int | None = None
    is_memory_bound: bool = False
    layers: tuple[ComputeTask, ...] = ()


@final
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


@final
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


@final
@dataclass(frozen=True, slots=True)
class Efficiency:
    """The shares of a device's peaks that programs reach.

    Args:
        mfu: of arithmetic.
        mbu: of memory bandwidth.
    """

    mfu: float = 1.0
    mbu: float = 1.0

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        for name, value in (("mfu", self.mfu), ("mbu", self.mbu)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
                raise UsageError(f"{name} must be a number in (0, 1], got {value!r}; 1 is the peak")


def task_of(description: Mapping[str, Any] | ComputeTask, task_id: str) -> ComputeTask:
    """Return a task by its description.

    Args:
        description: `task_id`, `flops_required_fp16` (or another precision), `memory_read_bytes`, `memory_write_bytes`,
            `num_processing_units_requested`, `is_memory_bound_hint` and `layers`, a list of the same; or a task.
        task_id: its name if it says none.

    Raises:
        UsageError: an unknown key, or a value that is no number of at least 0.
    """
    if isinstance(description, ComputeTask):
        return description
    for key in description:
        if key not in _KEYS and not key.startswith(_FLOPS):
            raise UsageError(
                f"a task has no key {key!r} {closest(key, _KEYS)}; it may have {', '.join(_KEYS)}", key=key
            )
    name = str(description.get("task_id", task_id))
    layers = tuple(task_of(layer, f"{name}.{place}") for place, layer in enumerate(description.get("layers") or ()))
    flops = {key.removeprefix(_FLOPS): _number(name, key, description[key]) for key in description if _FLOPS in key}
    moved = sum(_number(name, key, description.get(key, 0)) for key in ("memory_read_bytes", "memory_write_bytes"))
    units = description.get("num_processing_units_requested")
    if units is not None and (isinstance(units, bool) or not isinstance(units, int) or units < 1):
        raise UsageError(f"task {name}: num_processing_units_requested must be an integer >= 1, got {units!r}")
    task = ComputeTask(name, flops, moved, units, description.get("is_memory_bound_hint") is True, layers)
    return _with_sums(task) if layers else task


def _number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"task {name}: {key} must be a number >= 0, got {value!r}", task_id=name)
    return value


def _with_sums(task: ComputeTask) -> ComputeTask:
    """Return a task that asks for what its layers ask for, beside its own."""
    flops = dict(task.flops)
    for layer in task.layers:
        for precision, number in layer.flops.items():
            flops[precision] = flops.get(precision, 0) + number
    moved = task.memory_bytes + sum(layer.memory_bytes for layer in task.layers)
    return ComputeTask(task.task_id, flops, moved, task.num_units, task.is_memory_bound, task.layers)


def price(task: ComputeTask, device: VirtualComputeDevice, efficiency: Efficiency) -> tuple[float, float, float, Bound]:
    """Return what a task's arithmetic takes, what its memory takes, how long it lasts, s, and which counted.

    It lasts as long as the longer of the two (Williams et al. 2009, "Roofline"), or as memory takes where the task says
    so.
    """
    compute_s = fsum(
        flops / (device.peak_flop_per_s(precision) * efficiency.mfu) for precision, flops in task.flops.items()
    )
    memory_s = task.memory_bytes / (device.memory_bytes_per_s * efficiency.mbu)
    bound: Bound = "memory" if task.is_memory_bound or memory_s > compute_s else "compute"
    return compute_s, memory_s, memory_s if bound == "memory" else compute_s, bound


def value_of(name: str, value: Any, other: str, value_of_other: Any) -> Any:
    """Return a value that has two names."""
    if (value is None) == (value_of_other is None):
        raise UsageError(f"a transfer needs {name} (or {other}), once; got {value!r} and {value_of_other!r}")
    return value_of_other if value is None else value


def size_of(value: Any) -> float:
    """Return a number of bytes, or raise a UsageError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"a size must be a number of bytes >= 0, got {value!r}")
    return value
