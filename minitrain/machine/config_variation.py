"""Many configs from one: a figure by its key path, with a value for each.

A path is what messages about configs name, `networks[0].bandwidth`, `mem1.GBps`, `matrix.float16.tflops`,
`kernels.attention.flash2.forward.efficiency`; `networks.0.bandwidth` means the same. Values are validated as those of a
config file are. Left out are keys of the data sheet.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine.config import SystemConfig

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
        **dict.fromkeys(("tflops", "GBps", "GiB", "bandwidth", "exponent"), "Positive"),
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
"""The validator of each key's value, a name in `minitrain.machine.config_leaves`; "ops" stands for any row in it."""

_COMPUTED = frozenset(
    {
        *("tflops", "GBps", "GiB", "bandwidth", "exponent", "latency", "launch", "graph_launch", "prologue", "tail"),
        *("half_MB", "efficiency", "units"),
    }
)
"""The keys of numbers that may differ between machines that are priced at once."""

_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "SystemConfig": ("matrix", "vector", "mem1", "mem2", "networks", "kernels"),
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

    from minitrain.machine import config_leaves  # noqa: PLC0415

    leaf: Any = getattr(config_leaves, kind)
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
