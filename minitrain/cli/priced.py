"""What prices a run on the command line: --hw, --network, --fidelity and what goes with it, or --durations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minitrain.cli.options import DEFAULT, OWN_OPTIONS, name_and_value
from minitrain.errors import UsageError
from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.cluster_files import names_cluster
from minitrain.hardware.clusters.predictors import predictors_of
from minitrain.hardware.fixed_durations import FixedPredictor
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.pricing import Pricing
from minitrain.run.parameters import DEFAULTS


def pricing(fidelity: str, platform: str | None, without: str | None, prices: str | None) -> dict[str, Any]:
    """Return how operations are priced, as arguments of `simulate`; nothing where that is the default."""
    terms = tuple(term.strip() for term in without.split(",")) if without else ()
    layers = None if prices is None else measured_layers(prices)
    given = {"fidelity": fidelity, "platform": platform, "without": terms, "prices": layers}
    return {name: value for name, value in given.items() if value != DEFAULTS[name]}


def measured_layers(text: str) -> MeasuredLayers:
    """Return the measured times of layers that "FILE.csv" or "FILE.csv:gpu=NAME,model=NAME" means.

    Raises:
        UsageError: it is written otherwise, or the table cannot be read.
    """
    path, chosen = text, ""
    if not Path(text).exists():
        path, _, chosen = text.partition(":")
    columns: dict[str, Any] = {}
    for part in filter(None, chosen.split(",")):
        name, value = name_and_value("--prices", part, columns)
        if name not in ("gpu", "model"):
            raise UsageError(
                f"--prices chooses rows by gpu and model, got {name!r}; write FILE.csv:gpu=NAME,model=NAME"
            )
        columns[name] = value
    return MeasuredLayers.read(path, **columns)


def priced(
    world_size: int,
    hardware: str | None,
    network: str | None,
    durations: str | None,
    priced_by: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the predictor that prices the operations of a run.

    Raises:
        UsageError: the options exclude each other.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    if durations is None:
        chosen = Pricing(**priced_by)
        if names_cluster(hardware):
            cluster = Cluster.load(str(hardware))
            return predictors_of(cluster, world_size, network or DEFAULT.network, pricing=chosen)
        return make_predictor(hardware or DEFAULT.hardware, world_size, network or DEFAULT.network, pricing=chosen)
    own = {"hardware": hardware, "network": network, **priced_by}
    for name, value in own.items():
        if value is not None:
            raise UsageError(f"--durations stands for a machine of its own; give it or {OWN_OPTIONS[name]}, not both")
    return FixedPredictor(**parse_durations(durations))


def machine(
    world_size: int | None,
    hardware: str | None,
    network: str | None,
    durations: str | None,
    priced_by: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the ranks and what prices their operations, as arguments of `simulate`.

    Raises:
        UsageError, HardwareConfigError: as for `priced`.
    """
    if world_size is None and durations is None and names_cluster(hardware):
        world_size = Cluster.load(str(hardware)).num_devices
    num_ranks = DEFAULT.world_size if world_size is None else world_size
    return {"world_size": num_ranks, "hardware": priced(num_ranks, hardware, network, durations, priced_by)}


def parse_durations(text: str) -> dict[str, float]:
    """Return the durations by event type, s.

    >>> parse_durations("forward=1,backward=2e-3")
    {'forward': 1.0, 'backward': 0.002}
    """
    durations: dict[str, float] = {}
    for part in text.split(","):
        typ, value = name_and_value("--durations", part.strip(), durations)
        try:
            durations[typ] = float(value)
        except ValueError:
            durations[typ] = math.nan
        if not 0 <= durations[typ] < math.inf:
            raise UsageError(f"--durations: {typ} must last a number of seconds of at least 0, got {value!r}")
    return durations
