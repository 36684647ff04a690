"""Virtual devices: what computes, with its units and memory as shared resources, and memories of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import OutOfMemoryError, UsageError
from minitrain.workloads.field_faults import closest

if TYPE_CHECKING:
    from simpy import Container, Environment

TERA, GIGA = 1e12, 1e9


@final
@dataclass(frozen=True, slots=True)
class VirtualComputeDevice:
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
        object.__setattr__(self, "peak_tflops", MappingProxyType(dict(self.peak_tflops)))
        figures = {
            "memory_capacity_bytes": self.memory_capacity_bytes,
            "memory_gbps": self.memory_gbps,
            "processing_units": self.processing_units,
            **{f"peak_tflops.{name}": value for name, value in self.peak_tflops.items()},
        }
        for name, value in figures.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(
                    f"device {self.device_id}: {name} must be a number above 0, got {value!r}; check the profile",
                    device_id=self.device_id,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        memory = self.memory_capacity_bytes, self.memory_gbps
        fields = (self.device_id, dict(self.peak_tflops), *memory, self.processing_units, self.device_type)
        return VirtualComputeDevice, fields

    def peak_flop_per_s(self, precision: str) -> float:
        """Return the peak rate for a precision, FLOP/s.

        Raises:
            UsageError: the profile has no rate for it.
        """
        if precision not in self.peak_tflops:
            raise UsageError(
                f"device {self.device_id} has no rate for {precision}; it has {', '.join(self.peak_tflops)} "
                f"{closest(precision, self.peak_tflops)}".rstrip(),
                device_id=self.device_id,
            )
        return self.peak_tflops[precision] * TERA

    @property
    def memory_bytes_per_s(self) -> float:
        """Return the bandwidth of its memory, bytes/s."""
        return self.memory_gbps * GIGA


@final
@dataclass(frozen=True, slots=True)
class VirtualMemoryDevice:
    """A memory that belongs to no single device, such as a host's.

    Args:
        memory_id: its name, an endpoint of links.
        capacity_bytes: how much it holds.
    """

    memory_id: str
    capacity_bytes: float


@final
class Memory:
    """Memory that tasks allocate: it raises where bare SimPy would wait for ever.

    Args:
        name: whose memory it is.
        capacity_bytes: how much it holds.

    Attributes:
        used_bytes: how much of it is allocated.
        steps: what was allocated, as (moment, bytes from then on).
    """

    def __init__(self, env: Environment, name: str, capacity_bytes: float) -> None:
        self.env = env
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.steps: list[tuple[float, int]] = [(env.now, 0)]

    def allocate(self, size_bytes: int) -> int:
        """Take some memory, and return how much is taken then.

        Raises:
            OutOfMemoryError: there is not so much left.
            UsageError: a size that is no number of bytes.
        """
        _require_size(self.name, size_bytes)
        if self.used_bytes + size_bytes > self.capacity_bytes:
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
        _require_size(self.name, size_bytes)
        if size_bytes > self.used_bytes:
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


def _require_size(name: str, size_bytes: Any) -> None:
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int | float) or not size_bytes >= 0:
        raise UsageError(f"{name}: a size must be a number of bytes >= 0, got {size_bytes!r}", device_id=name)


@final
class Units:
    """The processing units of a device: tasks take as many as they ask for, first come first served.

    Args:
        device: whose units they are.

    Attributes:
        steps: how many are taken, as (moment, units from then on).
    """

    def __init__(self, env: Environment, device: VirtualComputeDevice) -> None:
        from simpy import Container  # noqa: PLC0415  (where a platform runs, it is loaded)

        self.env = env
        self.total = device.processing_units
        self.free: Container = Container(env, capacity=self.total, init=self.total)
        self.steps: list[tuple[float, int]] = [(env.now, 0)]

    def note(self) -> None:
        """Note how many are taken from now on."""
        self.steps.append((self.env.now, int(self.total - self.free.level)))

    def utilization(self, until: float) -> float:
        """Return the share of unit-seconds until a moment that were taken."""
        if until <= 0:
            return 0.0
        ends = [time for time, _ in self.steps[1:]] + [until]
        taken = sum(number * (end - time) for (time, number), end in zip(self.steps, ends, strict=True))
        return taken / (self.total * until)
