"""The optional keys of a hardware config, as pydantic models; `hardware.data_sheet` says what they mean.

Import it only when a config is validated: pydantic is heavy.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, PlainValidator

from minitrain.hardware.config_leaves import Flag, NonNegative, Positive, Whole, number_leaf, one_of, refuse_leaf
from minitrain.hardware.data_sheet import CLASSES, Cache, DataSheet, Power, SheetLink, UnitLimits

_TEXT = "a text of 1 to 200 characters"
_FEATURE = "true or false, a number, a text, or a list of numbers"
_LONGEST_TEXT = 200

EXPECTED_OF_DATA_SHEET = {
    "class": '"gpu", "tpu", "cpu", "asic" or "mcu"',
    "vendor": _TEXT,
    "clock_Hz": "a number > 0",
    "caches": "a list of caches",
    "level": "a whole number >= 1",
    "bytes": "a whole number >= 1",
    "bytes_per_s": "a number > 0",
    "scope": '"unit" or "device"',
    "limits": "an object with warps, blocks, registers and smem_bytes",
    "warps": "a whole number >= 1",
    "blocks": "a whole number >= 1",
    "registers": "a whole number >= 1",
    "smem_bytes": "a whole number >= 1",
    "dispatch_s": "a number >= 0",
    "power": "an object with tdp_W and idle_W",
    "tdp_W": "a number > 0",
    "idle_W": "a number >= 0",
    "price_usd_per_hour": "a number >= 0",
    "features": "an object of features by name",
    "links": "a list of links",
    "link_id": _TEXT,
    "source_id": _TEXT,
    "dest_id": _TEXT,
    "latency_s": "a number >= 0",
    "bidirectional": "true or false",
}
"""What to say where one of these keys is missing or holds the wrong kind of container."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_TEXT:
        refuse_leaf(_TEXT)
    return value


def _feature(value: Any) -> bool | float | str | tuple[float, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return tuple(number_leaf(item, _FEATURE) for item in value)
    return number_leaf(value, _FEATURE)


Text = Annotated[str, PlainValidator(_text)]
Scope = Annotated[Any, PlainValidator(one_of("unit", "device"))]


def _levels(caches: "list[CacheModel]") -> "list[CacheModel]":
    """Require that each level comes once, from the units outwards."""
    levels = [cache.level for cache in caches]
    if levels != sorted(set(levels)):
        refuse_leaf("caches by rising level, each level once", found=f"levels {', '.join(map(str, levels))}")
    return caches


class CacheModel(BaseModel):
    """One level of caches."""

    level: Whole
    bytes: Whole
    scope: Scope
    bytes_per_s: Positive | None = None

    def value(self) -> Cache:
        """Return the cache."""
        return Cache(self.level, self.bytes, self.scope, self.bytes_per_s)


class LimitsModel(BaseModel):
    """What one unit can hold."""

    warps: Whole
    blocks: Whole
    registers: Whole
    smem_bytes: Whole


class PowerModel(BaseModel):
    """What a device draws."""

    tdp_W: Positive  # noqa: N815 - a unit
    idle_W: NonNegative | None = None  # noqa: N815 - a unit


class LinkModel(BaseModel):
    """A connection."""

    link_id: Text
    source_id: Text
    dest_id: Text
    bytes_per_s: Positive
    latency_s: NonNegative = 0.0
    bidirectional: Flag = True


class DataSheetModel(BaseModel):
    """The optional keys."""

    device_class: Annotated[str | None, PlainValidator(one_of(*CLASSES)), Field(alias="class")] = None
    vendor: Text | None = None
    units: Whole | None = None
    clock_Hz: Positive | None = None  # noqa: N815 - a unit
    caches: Annotated[list[CacheModel], AfterValidator(_levels)] = []
    limits: LimitsModel | None = None
    dispatch_s: NonNegative | None = None
    power: PowerModel | None = None
    price_usd_per_hour: NonNegative | None = None
    features: dict[str, Annotated[Any, PlainValidator(_feature)]] = {}
    links: list[LinkModel] = []

    def data_sheet(self, kernel_units: int | None) -> DataSheet:
        """Return the values; the units are those of `kernels` where the config gives them there."""
        return DataSheet(
            device_class=self.device_class,
            vendor=self.vendor,
            num_units=self.units or kernel_units,
            clock_Hz=self.clock_Hz,
            caches=tuple(cache.value() for cache in self.caches),
            limits=None if self.limits is None else UnitLimits(**self.limits.model_dump()),
            dispatch_s=self.dispatch_s,
            power=None if self.power is None else Power(self.power.tdp_W, self.power.idle_W),
            price_usd_per_hour=self.price_usd_per_hour,
            features=self.features,
            links=tuple(SheetLink(**link.model_dump()) for link in self.links),
        )


def require_consistent(model: DataSheetModel, kernel_units: int | None) -> list[str]:
    """Return the faults between keys that are each right by themselves."""
    faults = []
    if model.units is not None and kernel_units is not None and model.units != kernel_units:
        faults.append(f"units: expected the same as kernels.units ({kernel_units}), found {model.units}; leave it out")
    if model.power is not None and (model.power.idle_W or 0) > model.power.tdp_W:
        faults.append(
            f"power.idle_W: expected no more than power.tdp_W ({model.power.tdp_W:g}), found {model.power.idle_W:g}"
        )
    return faults
