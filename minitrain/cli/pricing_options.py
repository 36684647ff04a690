"""How the options that price a run become arguments: --hw, --network, --fidelity with its own, or --durations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrain.cli.options import DEFAULT, name_and_value, named_hardware
from minitrain.errors import UsageError
from minitrain.hardware.fixed_durations import FixedPredictor
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.run.command_line import OPTIONS
from minitrain.run.parameters import DEFAULTS, split_keywords


def pricing(fidelity: str | None, platform: str | None, without: str | None, prices: str | None) -> dict[str, Any]:
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


def machine(
    world_size: int | None,
    hardware: Any,
    network: str | None,
    durations: str | None,
    priced_by: Mapping[str, Any],
    trained: Mapping[str, Any],
    *,
    by_name: bool = False,
) -> dict[str, Any]:
    """Return the ranks and what prices their operations, as arguments of `simulate`.

    Args:
        world_size: number of ranks; of a cluster, a rank for each device if None.
        hardware: the config or cluster.
        network: its kind.
        durations: durations by hand instead of hardware.
        priced_by: how operations are priced.
        trained: what is trained; a transformer's prices follow from the strategy too, so that its hardware is named.
        by_name: give the hardware itself instead of a predictor, which is for one number of ranks.

    Raises:
        UsageError: the options exclude each other.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    if durations is not None:
        _require_none({"hardware": hardware, "network": network, **priced_by})
        by_hand = FixedPredictor(**parse_durations(durations))
        return {"world_size": world_size or DEFAULT.world_size, "hardware": by_hand}
    kind = DEFAULT.network if network is None else network
    named = {"hardware": named_hardware(hardware), "network": kind, **priced_by}
    ranks = {} if world_size is None else {"world_size": world_size}
    parameters, _ = split_keywords({**named, **ranks, **trained})
    predictor = parameters.predictor()
    is_named = by_name or getattr(parameters.workload, "model", None) is not None
    return {"world_size": parameters.world_size, **(named if is_named else {"hardware": predictor})}


def _require_none(of_machine: Mapping[str, Any]) -> None:
    """Require that no machine is given beside --durations, which stand for one."""
    for name, value in of_machine.items():
        if value is not None:
            raise UsageError(f"--durations stands for a machine of its own; give it or {OPTIONS[name]}, not both")


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
