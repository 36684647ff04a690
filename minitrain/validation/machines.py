"""The machine of a row: a shipped hardware config, with the interfaces between nodes that the row names."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from minitrain.hardware import load_config
from minitrain.validation.rows import LackingError, Row

if TYPE_CHECKING:
    from minitrain.hardware.config import SystemConfig
    from minitrain.hardware.network import Network
    from minitrain.hardware.transfer_curve import Rows, TransferCurve

# What a device is called in tables, and its config; the first that is found in the text is taken. A800 and H800 are the
# same devices with fewer links among them.
_CONFIGS = (
    (r"gb200", "gb200_nvl72"),
    (r"gh200|gh-96", "gh200_96g_nvl4"),
    (r"b200", "b200_192g_nvl8"),
    (r"h200", "h200_141g_nvl8"),
    (r"h[18]00", "h100_80g_nvl8"),
    (r"a100.*40|a100_40g", "a100_40g"),
    (r"a[18]00", "a100_80g"),
    (r"v100", "v100_32g_nvl8"),
    (r"titan-rtx", "titan_rtx"),
    (r"rtx-2080", "rtx_2080ti"),
    (r"rtx-3090", "rtx_3090"),
)
_LINKS = re.compile(r"(\d+)\s*x\s*(\d+)\s*G", re.IGNORECASE)  # 8x200Gb/s
_HDR = re.compile(r"(\d+)\s*x\s*HDR200", re.IGNORECASE)
_PER_NODE = re.compile(r"(\d+)\s*Gb/s per node", re.IGNORECASE)
_OMNI_PATH = re.compile(r"(\d+)\s*x?\s*Omni-Path", re.IGNORECASE)
_OMNI_PATH_GBPS = 100
_EXPORT_GBPS = 200.0


def device_of(row: Row) -> str:
    """Return the name of the shipped config that a row's device has.

    Raises:
        LackingError: there is none.
    """
    text = row.text("gpu").lower()
    memory = row.number("gpu_mem_gb")
    for pattern, name in _CONFIGS:
        if re.search(pattern, text):
            return "a100_40g" if name == "a100_80g" and memory == 40 else name
    raise LackingError(f"gpu is {row.text('gpu')!r}, for which there is no hardware config")


def machine_of(row: Row) -> SystemConfig:
    """Return the config of a row's machine: nodes as large as it says, joined by the interfaces that it names.

    Raises:
        LackingError: there is no config for its device, or the config has no prices of kernels.
    """
    name = device_of(row)
    if load_config(name).kernels is None:
        raise LackingError(f"config {name} says nothing of kernels, so that none can be priced")
    is_switched = "nvswitch" in row.text("intra_node").lower()
    node_size = row.count("gpus_per_node", load_config(name).networks[0].size)
    if "a800" in row.text("gpu").lower() or "h800" in row.text("gpu").lower():
        return _with_fewer_links(_machine(name, node_size, _interfaces(row), is_switched=is_switched))
    return _machine(name, node_size, _interfaces(row), is_switched=is_switched)


@lru_cache(maxsize=8)
def _with_fewer_links(system: SystemConfig) -> SystemConfig:
    """Return a system whose devices have eight links of 25 GB/s into their node, one way."""
    inner, *outer = system.networks
    share = _EXPORT_GBPS / inner.bandwidth
    curves = {op: replace(curve, bandwidths=_scaled(curve.bandwidths, share)) for op, curve in inner.curves.items()}
    return replace(system, networks=(replace(inner, bandwidth=_EXPORT_GBPS, curves=curves), *outer))


def _scaled(rows: Rows | None, share: float) -> Rows | None:
    """Return bandwidths times a share."""
    return None if rows is None else tuple((bound, value * share) for bound, value in rows)


def _interfaces(row: Row) -> tuple[int, float] | None:
    """Return how many network interfaces a node has and the GB/s of each; None where the row does not say."""
    text = row.text("inter_node")
    if "not stated" in text.lower() and not _LINKS.search(text):
        return None
    found = _LINKS.search(text)
    if found:
        return int(found.group(1)), float(found.group(2)) / 8
    found = _HDR.search(text)
    if found:
        return int(found.group(1)), 25.0
    found = _OMNI_PATH.search(text)
    if found:
        return int(found.group(1)), _OMNI_PATH_GBPS / 8
    found = _PER_NODE.search(text)
    return (8, float(found.group(1)) / 64) if found else None


@lru_cache(maxsize=64)
def _machine(name: str, node_size: int, interfaces: tuple[int, float] | None, *, is_switched: bool) -> SystemConfig:
    """Return a config with other nodes and interfaces."""
    system = load_config(name)
    inner, *outer = sorted(system.networks, key=lambda tier: tier.size)
    within = _switched(inner) if is_switched else inner
    if node_size > inner.size:
        within = replace(within, size=node_size)
    tiers = [within, *(_with_interfaces(tier, inner.size, interfaces) for tier in outer)]
    return replace(system, networks=tuple(tiers))


def _switched(tier: Network) -> Network:
    """Return a tier in which any ranks reach what all of them reach: a switch has no rings that need certain ranks."""
    return replace(tier, curves={op: _of_all_ranks(curve) for op, curve in tier.curves.items()})


def _of_all_ranks(curve: TransferCurve) -> TransferCurve:
    """Return a curve whose bandwidth does not drop by half or more with the number of ranks."""
    bandwidths = curve.bandwidths
    if not bandwidths or min(value for _, value in bandwidths) > max(value for _, value in bandwidths) / 2:
        return curve
    return replace(curve, bandwidths=((0.0, max(value for _, value in bandwidths)),))


def _with_interfaces(tier: Network, node_size: int, interfaces: tuple[int, float] | None) -> Network:
    """Return the tier between nodes with another number of interfaces."""
    if interfaces is None:
        return tier
    num_nics, nic_GBps = interfaces  # noqa: N806 - a unit
    return replace(tier, bandwidth=num_nics * nic_GBps / node_size, nics=num_nics)
