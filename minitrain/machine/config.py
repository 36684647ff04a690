"""The hardware config, `SystemConfig`: all that is known of one machine, from a shipped name, a file or a mapping.

The format is that of Calculon's `systems/*.json` (github.com/calculon-ai/calculon), so files written for it
load unchanged: `matrix` and `vector` by datatype, `mem1` (HBM), `mem2` (host), `processing_mode`,
`networks`. Beside these a config may hold `kernels` and the keys of a `DataSheet`. The mode is kept and
validated but prices nothing: how compute and memory time combine is the predictor's choice.

A config that is nearly another one says so: `like` names a shipped config, and every other key is a key path with the
figure that differs, such as `"mem1.GBps": 2400` or `"networks[0].size": 72`.

Many configs from one: a figure by its key path, with a value for each.

A path is what messages about configs name, `networks[0].bandwidth`, `mem1.GBps`, `matrix.float16.tflops`,
`kernels.attention.flash2.forward.efficiency`; `networks.0.bandwidth` means the same. Values are validated as those of a
config file are. Left out are keys of the data sheet.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.files import shown
from minitrain.machine import config_files as files
from minitrain.machine.config_files import KEY as PROFILE_KEY
from minitrain.machine.config_files import config_of_profile, label_of, refuse
from minitrain.machine.data_sheet import NO_DATA_SHEET, DataSheet, Storage
from minitrain.machine.device import AttentionRate, KernelRates, MatmulRate, Memory, Processor, Rate
from minitrain.machine.network import Network, TransferCurve, select_tier

if TYPE_CHECKING:
    from minitrain.machine.config_schema import (
        AttentionPassModel,
        ConfigModel,
        CurveModel,
        KernelsModel,
        MemoryModel,
        NetworkModel,
        RateModel,
    )

SPECIFIED = "specified_h100_80g_nvl8"
"""The shipped config with the specification's figures of an H100, which are not those of the device."""


@final
@dataclass(frozen=True, slots=True)
class SystemConfig:
    """One machine.

    Args:
        name: the shipped name, the file's stem, or "custom" for a mapping without a name.
        processor: matrix and vector units.
        mem1: the device's own memory (HBM).
        mem2: the host's memory, over PCIe or a chip-to-chip link.
        processing_mode: "roofline" or "no_overlap", as the file has it.
        networks: the tiers, in the file's order.
        kernels: what kernels reach, for `KernelDevice`; None where the file does not say.
        sheet: what else its data sheet says: caches, limits, power and more.
        storage: what takes checkpoints; None for the usual one.
    """

    name: str
    processor: Processor
    mem1: Memory
    mem2: Memory
    processing_mode: str
    networks: tuple[Network, ...]
    kernels: KernelRates | None = None
    sheet: DataSheet = NO_DATA_SHEET
    storage: Storage | None = None

    @property
    def matrix(self) -> Mapping[str, Rate]:
        """Return the matrix unit's rate by datatype."""
        return self.processor.matrix

    @property
    def vector(self) -> Mapping[str, Rate]:
        """Return the vector unit's rate by datatype."""
        return self.processor.vector

    @property
    def mem_hbm(self) -> Memory:
        """Return the device's own memory."""
        return self.mem1

    @property
    def mem_pcie(self) -> Memory:
        """Return the host's memory, from which weights are loaded; a processor's is its own, and its `mem2` a drive."""
        return self.mem1 if self.sheet.device_class == "cpu" else self.mem2

    def network(self, world_size: int) -> Network:
        """Return the smallest tier that spans `world_size` ranks; errors as for `select_tier`."""
        return select_tier(self.networks, world_size)


def shipped_configs() -> list[str]:
    """Return the names of the configs that come with minitrain, sorted.

    >>> shipped_configs()[:2]
    ['a100_40g', 'a100_80g']
    """
    return list(files.shipped_names())


def load_config(source: str | os.PathLike[str] | Mapping[str, Any] | SystemConfig) -> SystemConfig:
    """Load and validate a system config.

    A string without a path separator that names a shipped config, with or without `.json`, is that config,
    whatever lies in the working directory; any other string, and every path object, is a file.

    Args:
        source: a shipped name, a path, the data itself, or a config already loaded (returned as it is).

    Returns:
        The validated config.

    Raises:
        HardwareConfigError: it cannot be found or read, or is invalid. The message lists the first faults by file and
            key path, with what was expected and found; `error.faults` holds all, and `error.path` the file.

    Example:
        >>> load_config("a100_80g").mem_hbm.GBps
        2039.0
    """
    if isinstance(source, SystemConfig):
        return source
    if isinstance(source, Mapping):
        name = source.get("name")
        return _validated(source, "config", name if isinstance(name, str) else "custom")
    if isinstance(source, str):
        return _load_named(source)
    path = os.fspath(source) if isinstance(source, os.PathLike) else None
    if not isinstance(path, str):
        raise HardwareConfigError(
            f"hardware must be the name of a shipped config, a path, a mapping or a SystemConfig, "
            f"not {type(source).__name__}; shipped are {', '.join(shipped_configs())}",
            faults=(),
        )
    return _load_file(path)


def _load_named(name: str) -> SystemConfig:
    """Load a shipped config or a file; a shipped name without a separator always wins."""
    if files.is_bare(name):
        shipped = name.removesuffix(".json")
        if shipped in files.shipped_names():
            return _load_shipped(shipped)
        if not os.path.lexists(name):
            raise files.unknown_name(name)
    return _load_file(name)


@lru_cache(maxsize=32)
def _load_shipped(name: str) -> SystemConfig:
    """Load a config that comes with minitrain, once."""
    label = f"{name}.json"
    return _validated(files.parse(files.shipped_text(name), label), label, name)


def _load_file(path: str) -> SystemConfig:
    """Load a config from a file of the user's."""
    label = label_of(path)
    return _validated(files.parse(files.read_file(path), label), label, Path(path).stem)


def _validated(data: Any, label: str, name: str) -> SystemConfig:
    """Turn raw data into a config, or raise one error with all its faults."""
    from minitrain.machine.config_schema import validate  # noqa: PLC0415 - pydantic is heavy

    if not isinstance(data, Mapping):
        raise refuse(label, [f"expected a JSON object, found {shown(data)}"])
    copy, repeated = files.plain(data, label)
    if files.LIKE in copy:
        copy = files.like_another(copy, label)
    if PROFILE_KEY in copy:
        copy = config_of_profile(copy, label)
    model, faults = validate(copy)
    if model is None or repeated:
        raise refuse(label, repeated + faults)
    return _system(model, name)


def _system(model: ConfigModel, name: str) -> SystemConfig:
    """Make the config's value out of its validated model."""
    return SystemConfig(
        name=name,
        processor=Processor(_rates(model.matrix), _rates(model.vector)),
        mem1=_memory(model.mem1),
        mem2=_memory(model.mem2),
        processing_mode=model.processing_mode,
        networks=tuple(map(_network, model.networks)),
        kernels=None if model.kernels is None else _kernels(model.kernels),
        sheet=model.data_sheet(None if model.kernels is None else model.kernels.units),
        storage=None if model.storage is None else Storage(model.storage.GBps, model.storage.node_GBps),
    )


def _rates(models: Mapping[str, RateModel]) -> dict[str, Rate]:
    return {key: Rate(model.tflops, tuple(model.gflops_efficiency)) for key, model in models.items()}


def _memory(model: MemoryModel) -> Memory:
    return Memory(model.GiB, model.GBps, tuple(model.MB_efficiency), model.usable_GiB)


def _network(model: NetworkModel) -> Network:
    ops = model.ops
    named = {op: getattr(ops, op) for op in type(ops).model_fields}
    return Network(
        bandwidth=model.bandwidth,
        efficiency=model.efficiency,
        size=model.size,
        latency=model.latency,
        ops={**named, **(ops.__pydantic_extra__ or {})},
        must_be_filled=model.must_be_filled,
        processor_usage=model.processor_usage,
        nics=model.nics,
        curves={op: _curve(curve) for op, curve in (model.curves or {}).items()},
    )


def _curve(model: CurveModel) -> TransferCurve:
    return TransferCurve(
        latency=model.latency,
        latency_per_rank=model.latency_per_rank,
        bandwidths=None if model.ranks_GBps is None else tuple(model.ranks_GBps),
        efficiency=model.efficiency,
        half_bytes=model.half_MB * 1e6,
        exponent=model.exponent,
    )


def _kernels(model: KernelsModel) -> KernelRates:
    return KernelRates(
        num_units=model.units,
        GBps=model.GBps,
        launch_s=model.launch,
        graph_launch_s=model.graph_launch,
        matmul={key: MatmulRate(rate.tflops, rate.prologue) for key, rate in model.matmul.items()},
        attention={key: (_attention(rate.forward), _attention(rate.backward)) for key, rate in model.attention.items()},
    )


def _attention(model: AttentionPassModel) -> AttentionRate:
    return AttentionRate(model.efficiency, model.tail, tuple(model.head_efficiency))


_ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "units": "num_units",
        "launch": "launch_s",
        "graph_launch": "graph_launch_s",
        "half_MB": "half_bytes",
        "ranks_GBps": "bandwidths",
    }
)
"""Keys of config files whose values have another name in a loaded config."""

_VALIDATORS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tflops", "GBps", "node_GBps", "GiB", "bandwidth", "exponent"), "Positive"),
        **dict.fromkeys(("latency", "latency_per_rank", "launch", "graph_launch"), "NonNegative"),
        **dict.fromkeys(("prologue", "tail", "half_MB"), "NonNegative"),
        "efficiency": "Efficiency",
        "processor_usage": "Usage",
        **dict.fromkeys(("size", "nics", "units"), "Whole"),
        **dict.fromkeys(("gflops_efficiency", "MB_efficiency", "head_efficiency"), "RowList"),
        "ranks_GBps": "BandwidthRows",
        "ops": "OpRow",
    }
)
"""The validator of each key's value, a name in `minitrain.machine.config_schema`; "ops" stands for any row in it."""

_COMPUTED = frozenset(
    {
        *("tflops", "GBps", "GiB", "bandwidth", "exponent", "latency", "launch", "graph_launch", "prologue", "tail"),
        *("half_MB", "efficiency", "units", "node_GBps"),
    }
)
"""The keys of numbers that may differ between machines that are priced at once."""

_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "SystemConfig": ("matrix", "vector", "mem1", "mem2", "networks", "kernels", "storage"),
        "Storage": ("GBps", "node_GBps"),
        "Rate": ("tflops", "gflops_efficiency"),
        "Memory": ("GiB", "GBps", "MB_efficiency"),
        "Network": ("bandwidth", "efficiency", "size", "latency", "ops", "processor_usage", "nics", "curves"),
        "TransferCurve": ("latency", "latency_per_rank", "ranks_GBps", "efficiency", "half_MB", "exponent"),
        "KernelRates": ("units", "GBps", "launch", "graph_launch", "matmul", "attention"),
        "MatmulRate": ("tflops", "prologue"),
        "AttentionRate": ("efficiency", "tail", "head_efficiency"),
    }
)
"""The keys of each kind of object in a loaded config."""


def varied_configs(systems: Sequence[SystemConfig], path: str, values: Sequence[Any]) -> list[SystemConfig]:
    """Return configs with another value each under one path.

    Args:
        systems: the configs, one a value.
        path: the key path.
        values: what stands there.

    Raises:
        UsageError: there is no such path.
        HardwareConfigError: a value is not what a config may hold there.
    """
    found = validated(systems[0], path, values)
    return [with_value(system, path, value) for system, value in zip(systems, found, strict=True)]


def with_value(system: SystemConfig, path: str, value: Any) -> SystemConfig:
    """Return a config with another value under one path: one that was validated, or a column of such numbers."""
    return _with(system, _keys_of(path), value)  # type: ignore[no-any-return]  # a config, as it was


def is_number_path(path: str) -> bool:
    """Return whether the figure under a path is a number that formulas compute with, of which there may be a column."""
    keys = _keys_of(path)
    return keys[-1] in _COMPUTED and "ops" not in keys


def numbers_of(system: SystemConfig) -> dict[str, float]:
    """Return every single number of a config by its path, in the order of the file."""
    return {path: value for path, value in _leaves(system, "") if isinstance(value, int | float)}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of all that can be varied."""
    keys = _children(value)
    if keys is None:
        yield path, value
        return
    for key in keys:
        child = _child(value, key)
        if child is not None:
            yield from _leaves(child, f"{path}[{key}]" if key.isdigit() else f"{path}.{key}" if path else key)


def _children(value: Any) -> tuple[str, ...] | None:
    """Return the keys below a value; None for a leaf."""
    if isinstance(value, Mapping):
        return tuple(value)
    if isinstance(value, tuple) and len(value) and type(value[0]).__name__ in _KEYS:
        is_pair = type(value[0]).__name__ == "AttentionRate"
        return ("forward", "backward") if is_pair else tuple(map(str, range(len(value))))
    return _KEYS.get(type(value).__name__)


def _child(value: Any, key: str) -> Any:
    """Return what stands under a key."""
    if isinstance(value, Mapping):
        return value[key]
    if isinstance(value, tuple):
        return value[_index(key)]
    found = getattr(value, _ATTRIBUTES.get(key, key))
    return found / 1e6 if key == "half_MB" else found


def _index(key: str) -> int:
    """Return the place in a tuple that a key means."""
    return {"forward": 0, "backward": 1}.get(key, 0) if not key.isdigit() else int(key)


def _with(value: Any, keys: Sequence[str], leaf: Any) -> Any:
    """Return a value with another leaf under some keys."""
    if not keys:
        return leaf
    key, *rest = keys
    if key in ("matrix", "vector") and isinstance(value, SystemConfig):
        return replace(value, processor=replace(value.processor, **{key: _with(getattr(value, key), rest, leaf)}))
    if key == "half_MB":
        return replace(value, half_bytes=leaf * 1e6)
    changed = _with(_child(value, key), rest, leaf)
    if isinstance(value, Mapping):
        return {**value, key: changed}
    if isinstance(value, tuple):
        place = _index(key)
        return (*value[:place], changed, *value[place + 1 :])
    return replace(value, **{_ATTRIBUTES.get(key, key): changed})


def _keys_of(path: str) -> list[str]:
    """Return the keys of a path."""
    return [key for key in re.split(r"[.\[\]\"]+", path) if key]


@cache
def _validator(kind: str) -> Any:
    """Return the validator of a list of values."""
    from pydantic import TypeAdapter  # noqa: PLC0415  (pydantic is heavy)

    from minitrain.machine import config_schema  # noqa: PLC0415

    leaf: Any = getattr(config_schema, kind)
    values: Any = list[leaf]
    return TypeAdapter(values)


_RANGES = ("Positive", "NonNegative", "Efficiency", "Usage")  # numbers between two others are valid if these are


def validated(system: SystemConfig, path: str, values: Sequence[Any]) -> list[Any]:
    """Return values as a config holds them under a path.

    Args:
        system: a config that has the path.
        path: the key path.
        values: what shall stand there.

    Raises:
        UsageError: there is no such path.
        HardwareConfigError: a value is not what a config may hold there.
    """
    keys = _keys_of(path)
    known = {tuple(_keys_of(found)): found for found, _ in _leaves(system, "")}
    if tuple(keys) not in known:
        close = difflib.get_close_matches(path, known.values(), 1)
        example = close[0] if close else "networks[0].bandwidth"
        raise UsageError(f"{system.name} has no figure {path!r:.80} to vary; a key path is wanted, such as {example}")
    from pydantic import ValidationError  # noqa: PLC0415  (pydantic is heavy)

    kind = _VALIDATORS["ops" if "ops" in keys else keys[-1]]
    if kind in _RANGES and set(map(type, values)) == {float} and math.isfinite(sum(values)) and min(values) > 0:
        with suppress(ValidationError):
            _validator(kind).validate_python([min(values), max(values)])  # what lies between is in the range, too
            return list(values)
    try:
        found: list[Any] = _validator(kind).validate_python(list(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        expected = first.get("ctx", {}).get("expected", "what a config file may hold there")
        raise HardwareConfigError(
            f"{path}: expected {expected}, found {values[int(first['loc'][0])]!r:.80}", faults=(), path=system.name
        ) from None
    return [tuple(value) if isinstance(value, list) else value for value in found]
