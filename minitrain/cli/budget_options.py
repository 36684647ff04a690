"""The options `--tokens` and `--cost-per-hour`: what training on so many tokens takes, and what a device costs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.cli.options import MODEL, named_hardware
from minitrain.errors import UsageError
from minitrain.hardware.clusters.chosen_cluster import cluster_or_other, is_cluster
from minitrain.hardware.config import load_config

_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

Tokens = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        metavar="N",
        help="Say the days, dollars and energy of training on so many tokens, such as 15T or 300B.",
        rich_help_panel=MODEL,
    ),
]
CostPerHour = Annotated[
    float | None,
    typer.Option(
        "--cost-per-hour",
        metavar="USD",
        min=0,
        help="What a device costs an hour; the hardware config's price by default.",
        rich_help_panel="Machine",
    ),
]


def tokens_of(text: str | None, *, has_model: bool) -> float | None:
    """Return how many tokens an option asks for.

    >>> tokens_of("15T", has_model=True), tokens_of("0.5B", has_model=True)
    (15000000000000.0, 500000000.0)

    Raises:
        UsageError: it is no number, or what is trained counts no tokens.
    """
    if text is None:
        return None
    if not has_model:
        raise UsageError("--tokens is for transformers; give --model too, or leave it out")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip().upper())
    if found is None or not float(found[1]):
        raise UsageError(f"--tokens takes a number with K, M, B or T, as in 15T; got {text!r:.80}")
    return float(found[1]) * _SCALES[found[2]]


def at_cost(hardware: str | None, usd_per_hour: float | None) -> Any:
    """Return the hardware of --hw, with a price of its own where one is given.

    Raises:
        UsageError: a cluster has devices of several prices.
        HardwareConfigError: the config cannot be found or read, or is invalid.
    """
    if usd_per_hour is None:
        return hardware
    if is_cluster(cluster_or_other(named_hardware(hardware))):
        raise UsageError("--cost-per-hour is for one kind of device; write prices into the configs of a cluster")
    config = load_config(named_hardware(hardware))
    return replace(config, sheet=replace(config.sheet, price_usd_per_hour=usd_per_hour))


def machines_of(hardware: str | None) -> list[str | None]:
    """Return the machines that --hw names, separated by commas.

    >>> machines_of("a100_80g,h100_80g_nvl8")
    ['a100_80g', 'h100_80g_nvl8']
    """
    if hardware is None or "," not in hardware or Path(hardware).exists():
        return [hardware]
    return [name.strip() for name in hardware.split(",") if name.strip()]
