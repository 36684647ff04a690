"""Systems as the solver takes them: rates, bandwidth, capacity, power and the dispatch tax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError
from minitrain.machine import Rate, SystemConfig
from minitrain.machine.solver.constants import presets, require_quantity, ureg

_UNITS = {
    "peak_flops": "flop/s",
    "memory_bw": "byte/s",
    "memory_capacity": "byte",
    "peak_flops_fp32": "flop/s",
    "int8_flops": "flop/s",
    "tdp": "watt",
    "dispatch_tax": "s",
}
_OPTIONAL = ("peak_flops_fp32", "int8_flops", "tdp")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device, with units.

    Args:
        name: what it is called.
        peak_flops: in half precision, FLOP/s.
        memory_bw: bandwidth of the memory, byte/s.
        memory_capacity: its size, bytes.
        peak_flops_fp32: in single precision; None if not given.
        int8_flops: with integers of 8 bits; None if not given.
        tdp: rated power, watt; None if not given.
        dispatch_tax: what starting an inference costs, s.
        device: the hardware config that this is a view on, if any.
        rates: further peaks by precision ("bf16", "fp8"), FLOP/s.

    Raises:
        UsageError: a figure is no quantity > 0 (>= 0 for the dispatch tax) in its unit.
    """

    name: str
    peak_flops: Any
    memory_bw: Any
    memory_capacity: Any
    peak_flops_fp32: Any = None
    int8_flops: Any = None
    tdp: Any = None
    dispatch_tax: Any = field(default_factory=lambda: 0 * ureg.us)
    device: SystemConfig | None = field(default=None, repr=False, compare=False)
    rates: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse figures that no time can be computed with."""
        for name, unit in _UNITS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                what = f"{name} of hardware {self.name}"
                object.__setattr__(self, name, require_quantity(what, value, unit, may_be_zero=name == "dispatch_tax"))
        rates = {
            precision_named(name): require_quantity(f"rates[{name!r}] of hardware {self.name}", rate, "flop/s")
            for name, rate in self.rates.items()
        }
        object.__setattr__(self, "rates", rates)

    @property
    def peaks(self) -> dict[str, Any]:
        """All peaks that are stated, by precision."""
        named = {"fp16": self.peak_flops, "fp32": self.peak_flops_fp32, "int8": self.int8_flops}
        return {**self.rates, **{name: rate for name, rate in named.items() if rate}}

    @classmethod
    def from_device(cls, system: SystemConfig) -> Hardware:
        """Return a view on a hardware config.

        Raises:
            UsageError: the config gives no rate for half precision.
        """
        half = system.matrix.get("float16") or system.matrix.get("bfloat16") or system.vector.get("float16")
        if half is None:
            raise UsageError(
                f"the solver needs a peak in half precision, but config {system.name} has no matrix.float16; add it"
            )
        power, dispatch_s = system.sheet.power, system.sheet.dispatch_s
        units = (system.vector, system.matrix)
        rates = {precision_named(name): _rate(rate) for unit in units for name, rate in unit.items()}
        if system.sheet.features.get("bfloat16"):
            rates.setdefault("bf16", half.tflops * _tflops)
        return cls(
            name=system.name,
            peak_flops=half.tflops * _tflops,
            memory_bw=system.mem_hbm.GBps * _gbps,
            memory_capacity=system.mem_hbm.GiB * ureg.GiB,
            peak_flops_fp32=rates.pop("fp32", None),
            int8_flops=rates.pop("int8", None),
            tdp=None if power is None else power.tdp_W * ureg.watt,
            dispatch_tax=(0.0 if dispatch_s is None else dispatch_s) * ureg.second,
            device=system,
            rates={name: rate for name, rate in rates.items() if name != "fp16"},
        )

    def to_device(self) -> SystemConfig:
        """Return the hardware config that this is a view on, with nothing lost.

        Raises:
            UsageError: it is no view, or was changed since; a preset does not say what a config needs.
        """
        if self.device is None or Hardware.from_device(self.device) != self:
            raise UsageError(
                f"only a view on a hardware config can become one again; {self.name} has its own numbers: "
                "write them into a config"
            )
        return self.device


@dataclass(frozen=True, slots=True)
class SystemArchetype:
    """A system: a device, and the memory that a model may fill.

    Args:
        name: what it is called.
        hardware: the device.
        ram: what a model may fill; all of the device's memory if None.

    Raises:
        UsageError: `hardware` is no `Hardware`, or `ram` no quantity > 0 in bytes.
    """

    name: str
    hardware: Hardware
    ram: Any = None

    def __post_init__(self) -> None:
        """Let a model fill the device's memory, unless told otherwise."""
        if not isinstance(self.hardware, Hardware):
            raise UsageError(
                f"a SystemArchetype is made of a Hardware, got {self.hardware!r:.80}; "
                f"for a hardware config use SystemArchetype.from_device(load_config(...))"
            )
        if self.ram is not None:
            object.__setattr__(self, "ram", require_quantity(f"ram of system {self.name}", self.ram, "byte"))
        else:
            object.__setattr__(self, "ram", self.hardware.memory_capacity)

    @classmethod
    def from_device(cls, system: SystemConfig) -> SystemArchetype:
        """Return a view on a hardware config: one device of it."""
        return cls(system.name, Hardware.from_device(system))

    def to_device(self) -> SystemConfig:
        """Return the hardware config that this is a view on; errors as for `Hardware.to_device`."""
        return self.hardware.to_device()


_SHORT = {"float": "fp", "bfloat": "bf", "tfloat": "tf", "tensorfloat": "tf"}


def precision_named(name: str) -> str:
    """Return the short name of a datatype: a kind and its bits.

    Raises:
        UsageError: it is no datatype.

    Example:
        >>> precision_named("bfloat16"), precision_named("float8_e4m3fn"), precision_named("int4")
        ('bf16', 'fp8', 'int4')
    """
    pattern = r"(fp|bf|tf|u?int|float|bfloat|tfloat|tensorfloat)([1-9]\d*)(_|$)"
    found = re.match(pattern, name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f'precision must be a datatype such as "fp16", "bf16", "float32" or "int8", got {name!r}')
    return _SHORT.get(found[1], found[1]) + found[2]


_tflops = ureg.teraflop / ureg.second
_gbps = ureg.gigabyte / ureg.second


def _rate(rate: Rate | None) -> Any:
    return None if rate is None else rate.tflops * _tflops


SYSTEMS: Mapping[str, SystemArchetype] = MappingProxyType(
    {name: SystemArchetype(name, Hardware(name, **figures)) for name, figures in presets("systems").items()}
)
"""The named systems of the specification, with its literal numbers, but for the rates of the Jetson Orin NX.

These are those of the config `jetson_orin_nx`: NVIDIA's data sheet states 60 TOPS of its GPU in int8 with sparsity, so
30 dense and half of that in fp16. 100 TOPS is advertised for the GPU with sparsity and two accelerators beside it.
"""
