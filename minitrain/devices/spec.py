"""What a device simulator knows of a device: `DeviceSpec`, by the specification's names and units.

A spec is a view on a hardware config. It shows a few figures in GFLOP/s, GB/s and bytes, and keeps the config it was
made of, so that `to_device` loses nothing. A spec of one's own has no config, and can be laid over one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware import Processor, Rate, SystemConfig, load_config
from minitrain.hardware.data_sheet import Cache, DataSheet

_FULL = ((0.0, 1.0),)
_LEVELS = ("l1_size", "l2_size", "l3_size")


@final
@dataclass(frozen=True)
class DeviceSpec:
    """A device, as the specification describes it.

    Args:
        name: what it is called.
        peak_fp32: peak rate in single precision, GFLOP/s.
        bandwidth: of the main memory, GB/s.
        l1_size: first cache of one unit, bytes.
        l2_size: second cache, bytes.
        l3_size: third cache, bytes; 0 where there is none.
        has_tensor_cores: whether matrices have units of their own.
        has_bfloat16: whether bfloat16 is computed with.
        device: the hardware config that this is a view on; None for a spec of one's own.
    """

    name: str
    peak_fp32: float
    bandwidth: float
    l1_size: int
    l2_size: int
    l3_size: int
    has_tensor_cores: bool = False
    has_bfloat16: bool = False
    device: SystemConfig | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse rates that no time can be computed with."""
        for name in ("peak_fp32", "bandwidth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                unit = "GFLOP/s" if name == "peak_fp32" else "GB/s"
                raise UsageError(f"{name} of a DeviceSpec must be a number > 0 in {unit}, got {value!r}")
        for name in _LEVELS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise UsageError(f"{name} of a DeviceSpec must be a number of bytes >= 0, got {value!r}")

    @classmethod
    def from_device(cls, system: str | SystemConfig) -> DeviceSpec:
        """Return a view on a hardware config.

        Args:
            system: a config, or what `load_config` loads.

        Raises:
            HardwareConfigError: the config cannot be found or read, or is invalid.
            UsageError: the config gives no rate at all.
        """
        device = load_config(system)
        sheet = device.sheet
        return cls(
            name=device.name,
            peak_fp32=_fp32_rate(device).tflops * 1e3,
            bandwidth=device.mem_hbm.GBps,
            l1_size=sheet.cache_bytes(1),
            l2_size=sheet.cache_bytes(2),
            l3_size=sheet.cache_bytes(3),
            has_tensor_cores=bool(sheet.features.get("tensor_cores", False)),
            has_bfloat16=bool(sheet.features.get("bfloat16", False)),
            device=device,
        )

    def to_device(self, base: str | SystemConfig | None = None) -> SystemConfig:
        """Return the hardware config that this is a view on, with what was changed since.

        Args:
            base: for a spec of one's own, the config that gives what a spec does not say, such as the memory's size.

        Raises:
            UsageError: the spec is no view, and no base is given.
        """
        found = self.device if base is None else load_config(base)
        if found is None:
            raise UsageError(
                f"{self.name} is no view on a hardware config, and a spec does not say how much memory there is; "
                'give a config that does: to_device("a100_80g")',
                name=self.name,
            )
        seen = DeviceSpec.from_device(found)
        return found if seen == self else _laid_over(self, seen, found)


def _fp32_rate(device: SystemConfig) -> Rate:
    """Return the rate in single precision, or the first one that there is."""
    found = device.vector.get("float32") or device.matrix.get("float32")
    return found or next(iter([*device.vector.values(), *device.matrix.values()]))


def _laid_over(spec: DeviceSpec, seen: DeviceSpec, device: SystemConfig) -> SystemConfig:
    """Return a config with what a spec says differently."""
    changed = {name for name in spec.__dataclass_fields__ if getattr(spec, name) != getattr(seen, name)}
    processor, memory = device.processor, device.mem1
    if "peak_fp32" in changed:
        rows = _fp32_rate(device).gflops_efficiency
        rate = {"float32": Rate(spec.peak_fp32 / 1e3, rows)}
        processor = Processor(processor.matrix, {**processor.vector, **rate})
    if "bandwidth" in changed:
        memory = replace(memory, GBps=spec.bandwidth)
    return replace(device, name=spec.name, processor=processor, mem1=memory, sheet=_sheet(spec, device.sheet, changed))


def _sheet(spec: DeviceSpec, sheet: DataSheet, changed: set[str]) -> DataSheet:
    """Return the data sheet with a spec's caches and features."""
    features: dict[str, Any] = dict(sheet.features)
    for name in {"has_tensor_cores", "has_bfloat16"} & changed:
        features[name.removeprefix("has_")] = getattr(spec, name)
    caches: dict[int, Cache] = {cache.level: cache for cache in sheet.caches}
    for level, name in enumerate(_LEVELS, start=1):
        if name in changed:
            scope = caches[level].scope if level in caches else "unit" if level == 1 else "device"
            caches[level] = Cache(level, getattr(spec, name), scope)
    kept = tuple(caches[level] for level in sorted(caches) if caches[level].size_bytes)
    return replace(sheet, caches=kept, features=features)


A100_SPEC = DeviceSpec(
    name="NVIDIA A100",
    peak_fp32=19500,
    bandwidth=1935,
    l1_size=192 * 1024,
    l2_size=40 * 1024 * 1024,
    l3_size=0,
    has_tensor_cores=True,
    has_bfloat16=True,
)
"""The specification's A100, with its literal numbers (1935 GB/s; our config `a100_80g` has 2048)."""

SPECS: Mapping[str, DeviceSpec] = MappingProxyType({A100_SPEC.name: A100_SPEC})
"""The named specs of the specification."""
