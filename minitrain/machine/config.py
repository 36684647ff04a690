"""The hardware config, `SystemConfig`: all that is known of one machine, from a shipped name, a file or a mapping.

The format is that of Calculon's `systems/*.json` (github.com/calculon-ai/calculon), so files written for it
load unchanged: `matrix` and `vector` by datatype, `mem1` (HBM), `mem2` (host), `processing_mode`,
`networks`. Beside these a config may hold `kernels` and the keys of a `DataSheet`. The mode is kept and
validated but prices nothing: how compute and memory time combine is the predictor's choice.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import HardwareConfigError
from minitrain.files import shown
from minitrain.machine import config_files as files
from minitrain.machine.config_files import label_of, refuse
from minitrain.machine.data_sheet import NO_DATA_SHEET, DataSheet
from minitrain.machine.device import AttentionRate, KernelRates, MatmulRate, Memory, Processor, Rate
from minitrain.machine.network import Network, TransferCurve, select_tier
from minitrain.machine.profile_files import KEY as PROFILE_KEY
from minitrain.machine.profile_files import config_of_profile

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
    """

    name: str
    processor: Processor
    mem1: Memory
    mem2: Memory
    processing_mode: str
    networks: tuple[Network, ...]
    kernels: KernelRates | None = None
    sheet: DataSheet = NO_DATA_SHEET

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


def load_config(source: "str | os.PathLike[str] | Mapping[str, Any] | SystemConfig") -> SystemConfig:
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
    if PROFILE_KEY in copy:
        copy = config_of_profile(copy, label)
    model, faults = validate(copy)
    if model is None or repeated:
        raise refuse(label, repeated + faults)
    return _system(model, name)


def _system(model: "ConfigModel", name: str) -> SystemConfig:
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
    )


def _rates(models: "Mapping[str, RateModel]") -> dict[str, Rate]:
    return {key: Rate(model.tflops, tuple(model.gflops_efficiency)) for key, model in models.items()}


def _memory(model: "MemoryModel") -> Memory:
    return Memory(model.GiB, model.GBps, tuple(model.MB_efficiency), model.usable_GiB)


def _network(model: "NetworkModel") -> Network:
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


def _curve(model: "CurveModel") -> TransferCurve:
    return TransferCurve(
        latency=model.latency,
        latency_per_rank=model.latency_per_rank,
        bandwidths=None if model.ranks_GBps is None else tuple(model.ranks_GBps),
        efficiency=model.efficiency,
        half_bytes=model.half_MB * 1e6,
        exponent=model.exponent,
    )


def _kernels(model: "KernelsModel") -> KernelRates:
    return KernelRates(
        num_units=model.units,
        GBps=model.GBps,
        launch_s=model.launch,
        graph_launch_s=model.graph_launch,
        matmul={key: MatmulRate(rate.tflops, rate.prologue) for key, rate in model.matmul.items()},
        attention={key: (_attention(rate.forward), _attention(rate.backward)) for key, rate in model.attention.items()},
    )


def _attention(model: "AttentionPassModel") -> AttentionRate:
    return AttentionRate(model.efficiency, model.tail, tuple(model.head_efficiency))
