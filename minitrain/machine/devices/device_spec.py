"""What device simulators know of a device, with the specification's names and units.

A `DeviceSpec` is a view on a hardware config: it shows a few figures in GFLOP/s, GB/s and bytes, and keeps the config
it was made of, so that `to_device` loses nothing. A spec of one's own has no config, and can be laid over one. Where
tensor cores are there without rates, they have an A100's in proportion to single precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from minitrain.errors import UsageError, typed
from minitrain.machine import Processor, Rate, SystemConfig, load_config
from minitrain.machine.device import Cache, Rows
from minitrain.machine.devices.operations import ELEMENT_BYTES, is_number

_LEVELS = ("l1_size", "l2_size", "l3_size")
_TENSOR_CORES = {"float16": 16.0, "tf32": 8.0, "int8": 32.0}  # an A100's 312, 156 and 624 of 19.5 (its whitepaper)


@typed
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
        has_bfloat16: whether bfloat16 is computed with; in single precision if not.
        rates: further peaks by unit and datatype, GFLOP/s: {"matrix.bfloat16": 312_000, "vector.float64": 9_700}; those
            of the config if None, and without one those of an A100 in proportion, if there are tensor cores.
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
    rates: Mapping[str, float] | None = field(default=None, hash=False)
    device: SystemConfig | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse rates that no time can be computed with."""
        rules = {"peak_fp32": "number > 0 in GFLOP/s", "bandwidth": "number > 0 in GB/s"}
        for name in ("peak_fp32", "bandwidth", *_LEVELS):
            value = getattr(self, name)
            if not is_number(value) or (name in rules and not value):
                rule = rules.get(name, "number of bytes >= 0")
                raise UsageError(f"{name} of a DeviceSpec must be a {rule}, got {value!r}")
        for name, rate in (self.rates or {}).items():
            unit, _, datatype = name.partition(".")
            if unit not in ("matrix", "vector") or datatype not in ELEMENT_BYTES or not is_number(rate) or not rate:
                raise UsageError(
                    f'rates of a DeviceSpec are numbers > 0 in GFLOP/s by unit and datatype, such as "matrix.bfloat16" '
                    f'or "vector.float64", got {name!r}: {rate!r}'
                )
        if self.device is None and not self.has_tensor_cores and any("matrix" in name for name in self.rates or {}):
            raise UsageError(f"{self.name} has rates of matrix units and no tensor cores; set has_tensor_cores=True")

    @property
    def processor(self) -> Processor:
        """The rates of its units."""
        if self.device is not None:
            return self.to_device().processor
        more = _TENSOR_CORES if self.has_tensor_cores else {}
        rates = {f"matrix.{name}": self.peak_fp32 * factor for name, factor in more.items()}
        given = rates if self.rates is None else self.rates
        return _with_rates(Processor({}, {}), {"vector.float32": self.peak_fp32, **given}, ((0.0, 1.0),))

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
                'give a config that does: to_device("a100_80g")'
            )
        seen = DeviceSpec.from_device(found)
        changed = {name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(seen, name)}
        return found if seen == self else self._laid_over(found, changed)

    def _laid_over(self, device: SystemConfig, changed: set[str]) -> SystemConfig:
        """Return a config with some fields of the spec."""
        processor, memory, sheet = device.processor, device.mem1, device.sheet
        if "has_tensor_cores" in changed:
            if self.has_tensor_cores and not any(name.startswith("matrix") for name in self.rates or {}):
                raise UsageError(
                    f"{device.name} does not say what tensor cores would compute; state it: "
                    'rates={"matrix.float16": GFLOP/s}'
                )
            processor = Processor({}, processor.vector)
        peak = {"vector.float32": self.peak_fp32} if "peak_fp32" in changed else {}
        processor = _with_rates(processor, peak | dict(self.rates or {}), _fp32_rate(device).gflops_efficiency)
        if "bandwidth" in changed:
            memory = replace(memory, GBps=self.bandwidth)
        flags = [name for name in ("has_tensor_cores", "has_bfloat16") if name in changed]
        features = {**sheet.features, **{name.removeprefix("has_"): getattr(self, name) for name in flags}}
        caches = {cache.level: cache for cache in sheet.caches}
        for level, name in enumerate(_LEVELS, start=1):
            if name in changed:
                scope = caches[level].scope if level in caches else "unit" if level == 1 else "device"
                known = caches.get(level, Cache(level, 0, scope))
                caches[level] = replace(known, size_bytes=getattr(self, name))
        kept = tuple(caches[level] for level in sorted(caches) if caches[level].size_bytes)
        sheet = replace(sheet, caches=kept, features=features)
        return replace(device, name=self.name, processor=processor, mem1=memory, sheet=sheet)


def _with_rates(base: Processor, rates: Mapping[str, float], rows: Rows) -> Processor:
    """Return units with some rates, GFLOP/s by unit and datatype; `rows` are the shares of those that are new."""
    units = {"matrix": dict(base.matrix), "vector": dict(base.vector)}
    for name, gflops in rates.items():
        unit, _, datatype = name.partition(".")
        known = units[unit].get(datatype)
        units[unit][datatype] = Rate(gflops / 1e3, rows if known is None else known.gflops_efficiency)
    return Processor(**units)


def _fp32_rate(device: SystemConfig) -> Rate:
    """Return the rate in single precision, or the first one that there is."""
    found = device.vector.get("float32") or device.matrix.get("float32")
    return found or next(iter([*device.vector.values(), *device.matrix.values()]))


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
