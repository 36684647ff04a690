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
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.files import key_path, shown
from minitrain.machine import config_files as files
from minitrain.machine import config_format
from minitrain.machine.config_files import KEY as PROFILE_KEY
from minitrain.machine.config_files import config_of_profile, label_of, refuse
from minitrain.machine.config_format import Leaf, ListOf, Record, UnexpectedError, kind_at, leaves, one_of, some
from minitrain.machine.data_sheet import NO_DATA_SHEET, DataSheet, Storage
from minitrain.machine.device import KernelRates, Memory, Processor, Rate
from minitrain.machine.network import Network, select_tier

_SOME_TIERS = "a list of at least one tier"

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

    name: Annotated[str, Leaf("a text", str, varies=False)]
    processor: Annotated[Processor, Record(Processor, is_flat=True)]
    mem1: Annotated[Memory, Record(Memory)]
    mem2: Annotated[Memory, Record(Memory)]
    processing_mode: Annotated[str, one_of("roofline", "no_overlap")]
    networks: Annotated[
        tuple[Network, ...],
        ListOf(Record(Network, "an object, one tier"), _SOME_TIERS, some(_SOME_TIERS)),
    ]
    kernels: Annotated[KernelRates | None, Record(KernelRates)] = None
    sheet: Annotated[DataSheet, Record(DataSheet, is_flat=True, varies=False)] = NO_DATA_SHEET
    storage: Annotated[Storage | None, Record(Storage)] = None

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
    if not isinstance(data, Mapping):
        raise refuse(label, [f"expected a JSON object, found {shown(data)}"])
    copy, faults = files.plain(data, label)
    if files.LIKE in copy:
        copy = files.like_another(copy, label)
    if PROFILE_KEY in copy:
        copy = config_of_profile(copy, label)
    needed = [key for key in _FORMAT.needed if key != "name"]
    if copy and not any(key in copy for key in needed):
        found = ", ".join(map(shown, list(copy)[:_KEYS_SHOWN]))
        faults.append(
            f"expected a hardware config, an object with {', '.join(needed)}; found one with {found}; "
            "`minitrain hw show h100_80g_nvl8 --json` prints a config"
        )
        raise refuse(label, faults)
    system: SystemConfig = _FORMAT.read({**copy, "name": name}, (), faults)
    if faults:
        raise refuse(label, faults)
    units = system.sheet.num_units or (system.kernels and system.kernels.num_units)
    return replace(system, sheet=replace(system.sheet, num_units=units))


def _require_consistent(system: SystemConfig) -> None:
    """Require that keys which are each right by themselves are so together."""
    units = system.sheet.num_units
    if units is not None and system.kernels is not None and units != system.kernels.num_units:
        known = f"the same as kernels.units ({system.kernels.num_units})"
        raise UnexpectedError(known, f"{units}; leave it out", "units")


_FORMAT = Record(SystemConfig, check=_require_consistent)
_KEYS_SHOWN = 5  # of an object that is no config


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
    return config_format.with_value(_FORMAT, system, _keys_of(path), value)  # type: ignore[no-any-return]  # a config


def is_number_path(path: str) -> bool:
    """Return whether the figure under a path is a number that formulas compute with, of which there may be a column."""
    kind = kind_at(_FORMAT, _keys_of(path))
    return isinstance(kind, Leaf) and kind.is_column


def numbers_of(system: SystemConfig) -> dict[str, float]:
    """Return every single number of a config by its path, in the order of the file."""
    return {key_path(place): value for place, value in leaves(_FORMAT, system) if isinstance(value, int | float)}


def unit_of(path: str) -> str:
    """Return what the figure under a path counts in; "" for counts, shares, words, and what no config has."""
    *above, last = _keys_of(path)
    record = kind_at(_FORMAT, above)
    return record.unit(last) if isinstance(record, Record) else ""


def _keys_of(path: str) -> list[str]:
    """Return the keys of a path."""
    return [key for key in re.split(r"[.\[\]\"]+", path) if key]


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
    places = {tuple(map(str, place)): place for place, _ in leaves(_FORMAT, system)}
    place = places.get(tuple(_keys_of(path)))
    if place is None:
        close = difflib.get_close_matches(path, map(key_path, places.values()), 1)
        example = close[0] if close else "networks[0].bandwidth"
        raise UsageError(f"{system.name} has no figure {path!r:.80} to vary; a key path is wanted, such as {example}")
    kind: Any = kind_at(_FORMAT, map(str, place))
    faults: list[str] = []
    if type(kind) is Leaf and kind.is_range and set(map(type, values)) == {float} and min(values) > 0:
        found = list(values)  # what lies between two that are right is right, too
        for value in (min(values), max(values), sum(values) / len(values)):
            kind.read(value, place, faults)
    else:
        found = [kind.read(value, place, faults) for value in values]
    if faults:
        raise HardwareConfigError(faults[0], faults=(), path=system.name)
    return found
