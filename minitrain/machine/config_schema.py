"""The config file format, as pydantic models: what each key holds, and how faults are reported.

pydantic walks the structure and finds every fault; each leaf is validated by a function of
`minitrain.machine.config_schema`, so that a fault can say in words what was expected. Import it only when a config is
validated: pydantic is heavy.

Keys that the format does not know are ignored, so that files written for other tools load unchanged; but one that is
spelt nearly as a known key is a mistake.

The optional keys of a hardware config, as pydantic models; `hardware.data_sheet` says what they mean.

Import it only when a config is validated: pydantic is heavy.

The leaves of the config file format: validators of single values, which say in words what was expected.

Import it only when a config is validated: pydantic is heavy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import pairwise
from numbers import Real
from types import UnionType
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from minitrain.files import key_path, shown
from minitrain.machine.data_sheet import CLASSES, Cache, DataSheet, Power, SheetLink, UnitLimits

_Value = TypeVar("_Value")
Leaf = Callable[[Any], _Value]

# Outside these magnitudes products of fields overflow or vanish: a time would be inf or a division by zero.
_SMALLEST, _LARGEST = 1e-100, 1e100

_WHOLE = "a whole number >= 1"
_FLAG = "true or false"


def refuse_leaf(expected: str, **found: str) -> NoReturn:
    """Say that a value is not what was expected; `found` replaces how it is shown."""
    raise PydanticCustomError("expected", "expected {expected}", {"expected": expected, **found})


def number_leaf(value: Any, expected: str) -> float:
    """Return a finite number of sensible magnitude; true and false are no numbers."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        refuse_leaf(expected)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        refuse_leaf(expected)
    if number and not _SMALLEST <= abs(number) <= _LARGEST:
        refuse_leaf(f"{expected}, between {_SMALLEST} and {_LARGEST} in magnitude")
    return number


def in_range(expected: str, accept: Callable[[float], bool]) -> Leaf[float]:
    """Make the validator of a number within a range."""

    def validate(value: Any) -> float:
        number = number_leaf(value, expected)
        if not accept(number):
            refuse_leaf(expected)
        return number

    return validate


def _whole(value: Any) -> int:
    number = number_leaf(value, _WHOLE)
    if number < 1 or number != int(number):
        refuse_leaf(_WHOLE)
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        refuse_leaf(_FLAG)
    return value


def one_of(*allowed: str) -> Leaf[str]:
    """Make the validator of a text that must be one of a few."""
    quoted = [f'"{value}"' for value in allowed]
    expected = " or ".join([", ".join(quoted[:-1]), quoted[-1]])

    def validate(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            refuse_leaf(expected)
        return value

    return validate


def _offset(value: Any) -> float | None:
    if value is None:
        return None
    number = number_leaf(value, "a number or null")
    if number < -2:
        refuse_leaf("a number >= -2 or null (a lower one makes the time of 2 ranks negative)")
    return number


def _descending(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Check what holds between rows."""
    bounds = [bound for bound, _ in rows]
    if not bounds or bounds[-1] != 0 or any(before <= after for before, after in pairwise(bounds)):
        found = f"bounds {', '.join(f'{bound:g}' for bound in bounds)}" if bounds else "no rows"
        refuse_leaf("rows with strictly descending lower bounds, the last one 0", found=found)
    return rows


def filled(rates: dict[str, Any]) -> dict[str, Any]:
    """Require at least one datatype."""
    if not rates:
        refuse_leaf("an object with at least one datatype")
    return rates


Positive = Annotated[float, PlainValidator(in_range("a number > 0", lambda number: number > 0))]
Seconds = Annotated[float, PlainValidator(in_range("a number of seconds in [0, 1]", lambda number: 0 <= number <= 1))]
NonNegative = Annotated[float, PlainValidator(in_range("a number >= 0", lambda number: number >= 0))]
Efficiency = Annotated[float, PlainValidator(in_range("a number in (0, 1]", lambda number: 0 < number <= 1))]
Usage = Annotated[float, PlainValidator(in_range("a number in [0, 1)", lambda number: 0 <= number < 1))]
Whole = Annotated[int, PlainValidator(_whole)]
Flag = Annotated[bool, PlainValidator(_flag)]
Mode = Annotated[str, PlainValidator(one_of("roofline", "no_overlap"))]
Offset = Annotated[float | None, PlainValidator(_offset)]
RowList = Annotated[list[tuple[NonNegative, Efficiency]], AfterValidator(_descending)]
BandwidthRows = Annotated[list[tuple[NonNegative, Positive]], AfterValidator(_descending)]
OpRow = tuple[Positive, Offset]


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
    "dispatch_s": "a number of seconds in [0, 1]",
    "power": "an object with tdp_W and idle_W",
    "tdp_W": "a number > 0",
    "idle_W": "a number >= 0",
    "price_usd_per_hour": "a number >= 0",
    "features": "an object of features by name",
    "links": "a list of links",
    "link_id": _TEXT,
    "source_id": _TEXT,
    "dest_id": _TEXT,
    "latency_s": "a number of seconds in [0, 1]",
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


def _levels(caches: list[CacheModel]) -> list[CacheModel]:
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
    latency_s: Seconds = 0.0
    bidirectional: Flag = True


class DataSheetModel(BaseModel):
    """The optional keys."""

    device_class: Annotated[str | None, PlainValidator(one_of(*CLASSES)), Field(alias="class")] = None
    vendor: Text | None = None
    units: Whole | None = None
    clock_Hz: Positive | None = None  # noqa: N815 - a unit
    caches: Annotated[list[CacheModel], AfterValidator(_levels)] = []
    limits: LimitsModel | None = None
    dispatch_s: Seconds | None = None
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


# What to say where a key is missing or holds the wrong kind of container.
_EXPECTED = {
    "matrix": "an object of datatypes",
    "vector": "an object of datatypes",
    "tflops": "a number > 0",
    "gflops_efficiency": "a list of rows [lower bound, efficiency]",
    "mem1": "an object with GiB, GBps and MB_efficiency",
    "mem2": "an object with GiB, GBps and MB_efficiency",
    "GiB": "a number > 0",
    "GBps": "a number > 0",
    "MB_efficiency": "a list of rows [lower bound, efficiency]",
    "processing_mode": '"roofline" or "no_overlap"',
    "networks": "a list of at least one tier",
    "bandwidth": "a number > 0",
    "efficiency": "a number in (0, 1]",
    "size": "a whole number >= 1",
    "latency": "a number of seconds in [0, 1]",
    "ops": "an object of rows [scalar, offset]",
    "must_be_filled": "true or false",
    "processor_usage": "a number in [0, 1)",
    "nics": "a whole number >= 1",
    "curves": "an object of operations",
    "half_MB": "a number >= 0",
    "ranks_GBps": "a list of rows [lower bound, GB/s]",
    "exponent": "a number > 0",
    "latency_per_rank": "a number of seconds in [0, 1]",
    "kernels": "an object with units, GBps, launch, graph_launch, matmul and attention",
    "units": "a whole number >= 1",
    "launch": "a number of seconds in [0, 1]",
    "graph_launch": "a number of seconds in [0, 1]",
    "matmul": "an object of datatypes",
    "attention": "an object of generations",
    "prologue": "a number >= 0",
    "forward": "an object with efficiency, tail and head_efficiency",
    "backward": "an object with efficiency, tail and head_efficiency",
    "tail": "a number >= 0",
    "storage": "an object with GBps and node_GBps",
    "node_GBps": "a number > 0",
    "head_efficiency": "a list of rows [lower bound, efficiency]",
    **EXPECTED_OF_DATA_SHEET,
}

# What to say where an entry of one of these objects, named by the file, holds the wrong kind of container.
_ENTRIES = {
    "matrix": "an object with tflops and gflops_efficiency",
    "vector": "an object with tflops and gflops_efficiency",
    "matmul": "an object with tflops and prologue",
    "attention": "an object with forward and backward",
    "curves": "an object with latency, and ranks_GBps or efficiency",
    "caches": "an object with level, bytes and scope",
    "links": "an object with link_id, source_id, dest_id, bytes_per_s and latency_s",
}

_KEYS_SHOWN = 5  # of an object that is no config


def _some(tiers: list[Any]) -> list[Any]:
    if not tiers:
        refuse_leaf(_EXPECTED["networks"])
    return tiers


class RateModel(BaseModel):
    """One datatype of a unit."""

    tflops: Positive
    gflops_efficiency: RowList


class MemoryModel(BaseModel):
    """One memory."""

    GiB: Positive
    GBps: Positive
    MB_efficiency: RowList
    usable_GiB: Positive | None = None  # noqa: N815 - a unit


class OpsModel(BaseModel):
    """The rows of a tier: the four that the format asks for, and any more."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OpRow]

    p2p: OpRow
    reduce_scatter: OpRow
    all_gather: OpRow
    all_reduce: OpRow


class CurveModel(BaseModel):
    """The price by size of one operation on a tier."""

    latency: Seconds
    latency_per_rank: Seconds = 0.0
    ranks_GBps: BandwidthRows | None = None  # noqa: N815 - a unit
    efficiency: Efficiency = 1.0
    half_MB: NonNegative = 0.0  # noqa: N815 - a unit
    exponent: Positive = 1.0


class NetworkModel(BaseModel):
    """One tier of the network."""

    bandwidth: Positive
    efficiency: Efficiency
    size: Whole
    latency: Seconds
    ops: OpsModel
    must_be_filled: Flag
    processor_usage: Usage
    nics: Whole | None = None
    curves: dict[str, CurveModel] | None = None


class MatmulModel(BaseModel):
    """One datatype's matrix multiplications."""

    tflops: Positive
    prologue: NonNegative


class AttentionPassModel(BaseModel):
    """One direction of attention kernels."""

    efficiency: Efficiency
    tail: NonNegative
    head_efficiency: RowList


class AttentionModel(BaseModel):
    """One generation of attention kernels."""

    forward: AttentionPassModel
    backward: AttentionPassModel


class KernelsModel(BaseModel):
    """What kernels reach."""

    units: Whole
    GBps: Positive
    launch: Seconds
    graph_launch: Seconds
    matmul: Annotated[dict[str, MatmulModel], AfterValidator(filled)]
    attention: dict[str, AttentionModel]


class StorageModel(BaseModel):
    """What takes checkpoints."""

    GBps: Positive
    node_GBps: Positive  # noqa: N815 - a unit


class ConfigModel(DataSheetModel):
    """The whole file."""

    matrix: Annotated[dict[str, RateModel], AfterValidator(filled)]
    vector: dict[str, RateModel]
    mem1: MemoryModel
    mem2: MemoryModel
    processing_mode: Mode
    networks: Annotated[list[NetworkModel], AfterValidator(_some)]
    kernels: KernelsModel | None = None
    storage: StorageModel | None = None


def validate(data: Mapping[str, Any]) -> tuple[ConfigModel | None, list[str]]:
    """Return the model of a config, or None and every fault as `path: expected ..., found ...`; one of what is none."""
    required = [key for key, field in ConfigModel.model_fields.items() if field.is_required()]
    if data and not any(key in data for key in required):
        return None, [
            f"expected a hardware config, an object with {', '.join(required)}; found one with "
            f"{', '.join(shown(key) for key in list(data)[:_KEYS_SHOWN])}; `minitrain hw show h100_80g_nvl8 --json` "
            "prints a config"
        ]
    try:
        model = ConfigModel.model_validate(data)
    except ValidationError as error:
        return None, [_fault(details) for details in error.errors(include_url=False)]
    faults = [*_misspelt(ConfigModel, data, ())]
    faults += require_consistent(model, None if model.kernels is None else model.kernels.units)
    return (None if faults else model), faults


_ALIKE = 0.8  # ratio of `difflib`: a letter too many, too few, or another one


def _misspelt(kind: Any, value: Any, place: tuple[int | str, ...]) -> Iterator[str]:
    """Yield a fault for each key that is nearly one that its object may have.

    Args:
        kind: the annotation of a value.
        value: what the file has there.
        place: where that is.
    """
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        known = _kinds_by_key(each)
        items: Iterable[tuple[Any, Any]] = enumerate(value) if isinstance(value, list) else ()
        for key, item in value.items() if isinstance(value, dict) else items:
            close = [] if known is None or key in known else get_close_matches(key, known, 1, _ALIKE)
            if close:
                yield f"{key_path((*place, key))}: expected a key that is known; did you mean {close[0]}?"
            inner = next(reversed(get_args(each)), None) if known is None else known.get(key)
            yield from _misspelt(inner, item, (*place, key))


def _kinds_by_key(kind: Any) -> Mapping[str, Any] | None:
    """Return the annotations of the keys that an object has; None where the file itself names its entries."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)) or kind.model_config.get("extra"):
        return None
    return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}


def _fault(details: ErrorDetails) -> str:
    """Say one fault: where, what was expected, what was found."""
    found = "nothing" if details["type"] == "missing" else shown(details["input"])
    found = details.get("ctx", {}).get("found", found)
    return f"{key_path(details['loc'])}: expected {_expectation(details)}, found {found}"


def _expectation(details: ErrorDetails) -> str:
    """Return what a fault's place should hold."""
    if "expected" in details.get("ctx", {}):
        return str(details["ctx"]["expected"])
    last = details["loc"][-1]
    if last == "[key]":
        return "a string as key"
    parent = details["loc"][-2] if len(details["loc"]) > 1 else None
    if parent == "networks":
        return "an object, one tier"
    if parent in _ENTRIES:
        return _ENTRIES[parent]
    if isinstance(last, str) and parent != "ops":
        return _EXPECTED[last]
    if details["type"] == "missing" and isinstance(last, int):
        return "a second value in the row" if last else "two values in the row"
    return "a row [scalar, offset]" if isinstance(last, str) else "a row [lower bound, efficiency]"
