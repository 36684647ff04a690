"""What differs between the machines of one `price` call: a value of each price-only parameter, and figures of configs.

A *price-only* parameter changes how long operations take, and not which there are.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitrain.errors import UsageError
from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.clusters.chosen_cluster import cluster_or_other
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.config import SystemConfig, load_config
from minitrain.hardware.config_variation import varied_configs
from minitrain.hardware.per_machine import Ints
from minitrain.hardware.price import RankPredictors
from minitrain.hardware.pricing import PRICING_PARAMETERS, Pricing
from minitrain.run.parameters import DEFAULTS, PRICE_ONLY, RunParameters
from minitrain.vector.execution import Config, Machines, Source

_ONE_AT_A_TIME = ("contention", "strict", "strict_memory", "memory_by_kind", "numerics", "observers", "faults")
"""Parameters of a run that follow one machine: with another clock, or another model, it would do something else."""


def columns_of(
    hardware: Any, vary: Mapping[str, Sequence[Any]] | None, grid: Mapping[str, Sequence[Any]] | None
) -> dict[str, list[Any]]:
    """Return what varies as columns, one value a machine.

    Args:
        hardware: what `simulate` takes, or a list of that.
        vary: values by name, one a machine.
        grid: values by name, of which every combination is a machine, the last name fastest.

    Raises:
        UsageError: nothing varies, lists have different lengths, or something varies twice.
    """
    columns: dict[str, list[Any]] = {"hardware": list(hardware)} if isinstance(hardware, list | tuple) else {}
    for name, values in (vary or {}).items():
        if name in columns:
            raise UsageError(f"{name} is varied twice; give it once")
        columns[name] = _listed(name, values)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise UsageError(f"every machine needs a value of all that varies, got {told}; use grid= for combinations")
    if grid:
        columns = _combined(columns, {name: _listed(name, values) for name, values in grid.items()})
    if not columns or not next(iter(columns.values())):
        raise UsageError(
            "price needs several machines: a list of hardware, or vary={name: values}, or grid={name: values}, with at "
            "least one value; simulate takes one machine"
        )
    return columns


def _listed(name: str, values: Any) -> list[Any]:
    """Return the values of a name as a list of Python's own numbers."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str | Mapping) or not isinstance(listed, Sequence):
        raise UsageError(f"{name} must have a list of values, one a machine, got {values!r:.80}", name=name)
    return list(listed)


def _combined(columns: Mapping[str, list[Any]], grid: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns of every combination of a grid, with each of the machines there are."""
    for name in grid:
        if name in columns:
            raise UsageError(f"{name} is varied twice; give it once", name=name)
    rows = list(zip(*columns.values(), strict=True)) if columns else [()]
    points = [(*row, *values) for row in rows for values in itertools.product(*grid.values())]
    names = [*columns, *grid]
    return {name: [point[place] for point in points] for place, name in enumerate(names)}


class Configurations:
    """The parameters of a run on each machine.

    Args:
        parameters: those that all share: parameters of `simulate` and options of the strategy.
        columns: values by name, one a machine: price-only parameters and key paths of configs.

    Attributes:
        names: what the hardware of each machine is called.

    Raises:
        UsageError: a name is neither.
        HardwareConfigError: a value is not what a config may hold.
    """

    def __init__(self, parameters: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> None:
        self._parameters = parameters
        self._own = {name: values for name, values in columns.items() if name in PRICE_ONLY}
        paths = {name: values for name, values in columns.items() if name not in PRICE_ONLY}
        self._count = len(next(iter(columns.values())))
        for name in paths:
            if name in DEFAULTS:
                raise UsageError(
                    f"{name} does not vary prices alone; {', '.join(PRICE_ONLY)} and the figures of a hardware config "
                    "do (sweep takes all others)",
                    name=name,
                )
        if paths:
            self._own["hardware"] = self._varied(paths)

    def __len__(self) -> int:
        return self._count

    def _varied(self, paths: Mapping[str, list[Any]]) -> list[SystemConfig]:
        """Return configs with the values of some paths."""
        systems = [load_config(hardware) for hardware in self._values("hardware")]
        for path, values in paths.items():
            systems = varied_configs(systems, path, values)
        return systems

    def _values(self, name: str) -> list[Any]:
        """Return the values of a parameter, one a machine."""
        if name in self._own:
            return self._own[name]
        return [self._parameters.get(name, DEFAULTS[name])] * self._count

    @property
    def places(self) -> Ints:
        """All machines."""
        return np.arange(self._count)

    def hardware(self, machine: int) -> Any:
        """Return what was given as the hardware of one machine."""
        own = self._own.get("hardware")
        return self._parameters.get("hardware", DEFAULTS["hardware"]) if own is None else own[machine]

    def of(self, machine: int) -> dict[str, Any]:
        """Return the parameters of one machine, as `simulate` takes them."""
        return {**self._parameters, **{name: values[machine] for name, values in self._own.items()}}

    def reason_to_simulate_each(self, parameters: RunParameters) -> str | None:
        """Return why machines must be simulated one by one; None where they need not."""
        found = [name for name in _ONE_AT_A_TIME if getattr(parameters, name)]
        return f"{found[0]} follows one machine at a time" if found else None

    def machines(self, parameters: RunParameters, stands_for: str | None) -> Machines:
        """Return the sources of prices of all machines.

        Args:
            parameters: those of the run on the first machine.
            stands_for: the framework that the strategy stands for.

        Raises:
            UsageError: a parameter is outside its rule, or a network does not connect so many ranks.
            HardwareConfigError: a config cannot be found or read, or is invalid.
        """
        if "slowdown" in self._own:
            for slowdown in self._own["slowdown"]:
                RunParameters(world_size=parameters.world_size, slowdown=slowdown, fold=parameters.fold)
        pricings = self._pricings(stands_for)
        machines = zip(*map(self._values, ("hardware", "network", "placement")), pricings, strict=True)
        sources = [_source(machine, parameters) for machine in machines]
        slowdowns = self._values("slowdown")
        return Machines(sources, slowdowns if any(slowdowns) else None)

    def _pricings(self, stands_for: str | None) -> list[Pricing]:
        """Return how operations are priced on each machine."""
        columns = [self._values(name) for name in PRICING_PARAMETERS]
        if not any(name in self._own for name in PRICING_PARAMETERS):
            columns = [values[:1] for values in columns]
        given = [dict(zip(PRICING_PARAMETERS, own, strict=True)) for own in zip(*columns, strict=True)]
        found = [Pricing(**each, stands_for=stands_for) for each in given]
        return found if len(found) == self._count else found * self._count


def _source(machine: tuple[Any, ...], parameters: RunParameters) -> Source | None:
    """Return the source of prices of one machine; None where only a simulation can find it out.

    Args:
        machine: its hardware, network, placement and pricing.
        parameters: those of the run.
    """
    hardware, network, placement, pricing = machine
    hardware = cluster_or_other(hardware)
    is_config = type(hardware) is SystemConfig or isinstance(hardware, str | os.PathLike | Mapping)
    if is_config:
        system = load_config(hardware)
        pricing = pricing.on(system, parameters.workload)
        if pricing.fidelity == "roofline" and not pricing.reason:
            return Config(system, network, placement, pricing.prices)
    if isinstance(hardware, RankPredictors | Cluster) or hasattr(hardware, "profile"):
        return None
    return make_predictor(hardware, parameters.world_size, network, placement, parameters.workload, pricing)
