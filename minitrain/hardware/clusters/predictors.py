"""A predictor for each rank of a cluster: its own device's prices, and one network for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from minitrain.errors import UsageError
from minitrain.hardware.chosen_predictor import make_predictor
from minitrain.hardware.clusters.cluster_network import ClusterNetwork, tier_of
from minitrain.hardware.clusters.places import Places
from minitrain.hardware.data_sheet import Power
from minitrain.hardware.device import Processor, Rate
from minitrain.hardware.price import Predictor, RankPredictors
from minitrain.hardware.pricing import ROOFLINE, Pricing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minitrain.hardware.clusters.cluster import Cluster
    from minitrain.hardware.clusters.device_groups import Devices
    from minitrain.hardware.config import SystemConfig
    from minitrain.hardware.network import Network
    from minitrain.workloads.workload import Workload


def predictors_of(
    cluster: Cluster,
    world_size: int,
    network: str = "auto",
    placement: Sequence[int] | None = None,
    workload: Workload | None = None,
    pricing: Pricing = ROOFLINE,
) -> RankPredictors:
    """Return what prices the operations of each rank of a run on a cluster.

    Args:
        cluster: groups of devices and links.
        world_size: number of ranks.
        network: "auto" or "hierarchical": how ranks of one group are connected.
        placement: node of each rank, numbered over the whole cluster.
        workload: what is trained; the specified one if None.
        pricing: how operations are priced on a device.

    Raises:
        UsageError: there are more ranks than devices, the placement does not fit, or the network is flat.
        HardwareConfigError: a config lacks what the pricing needs.
    """
    if network == "flat":
        raise UsageError(
            'network="flat" is one tier for all ranks, and a cluster has links of its own; leave network out',
            network=network,
        )
    places = Places(cluster, world_size, placement)
    own: dict[str, Predictor] = {}
    pricings = _pricings(cluster, workload, pricing)
    for name in places.used_groups:
        group, priced = cluster.group(name), pricings[name]
        nodes = None if placement is None else places.local_nodes(name)
        own[name] = make_predictor(
            system_of(group, priced), places.num_ranks_of(name), network, nodes, workload, priced
        )
        if group.clock_share < 1 and group.prices is not None:  # a table cannot tell arithmetic from memory traffic
            own[name] = own[name].slowed(1 / group.clock_share)
    tiers = {name: tiers_of(cluster.group(name)) for name in places.used_groups}
    shared = ClusterNetwork(cluster, places, own, tiers, is_free="transfers" in pricing.without)
    names = [places.group(rank) for rank in range(world_size)]
    return RankPredictors([own[name] for name in names], shared, devices=names, cluster=cluster)


def _pricings(cluster: Cluster, workload: Workload | None, pricing: Pricing) -> dict[str, Pricing]:
    """Return how operations are priced on the devices of each group: by kernels where all of the cluster can be."""
    found = {
        group.label: (pricing if group.prices is None else replace(pricing, prices=group.prices)).on(
            group.system, workload
        )
        for group in cluster.devices
    }
    lacking = next((each.reason for each in found.values() if each.reason), "")
    if not lacking:
        return found
    priced_by = {"fidelity": "roofline", "platform": None, "reason": lacking}
    return {name: replace(each, **priced_by) for name, each in found.items()}  # type: ignore[arg-type]  # each of its kind


def system_of(group: Devices, pricing: Pricing = ROOFLINE) -> SystemConfig:
    """Return the config of a group's devices: its own links, and arithmetic at the clock that caps and heat leave.

    The peak rates stay those of the data sheet, so that MFU counts what the devices could do.
    """
    system = replace(group.system, networks=tiers_of(group))
    share = group.clock_share
    if share == 1.0:
        return system
    power = system.sheet.power
    assert power is not None  # a cap has asked for it
    capped = Power(min(power.tdp_W, group.watts or power.tdp_W), power.idle_W)
    processor = Processor(_slowed(system.matrix, share), _slowed(system.vector, share))
    kernels = system.kernels
    if pricing.fidelity == "kernels":
        from minitrain.hardware.derived_rates import rates_of  # noqa: PLC0415 - only where it is asked for

        kernels = rates_of(system).scaled(share)
    sheet = replace(system.sheet, power=capped)
    return replace(system, processor=processor, kernels=kernels, sheet=sheet)


def _slowed(rates: Mapping[str, Rate], share: float) -> dict[str, Rate]:
    """Return rates of which less is reached."""
    return {
        key: Rate(rate.tflops, tuple((bound, reached * share) for bound, reached in rate.gflops_efficiency))
        for key, rate in rates.items()
    }


def tiers_of(group: Devices) -> tuple[Network, ...]:
    """Return the network of a group: its config's tiers, or what the group says in their place."""
    inner, *outer = sorted(group.system.networks, key=lambda tier: tier.size)
    if group.per_node is None and group.inside_node is group.between_nodes is None:
        return (inner, *outer)
    size = group.devices_per_node
    within = replace(inner, size=size, must_be_filled=False)
    if group.inside_node is not None:
        within = tier_of(group.inside_node, 1.0, size)
    most = max([tier.size for tier in outer], default=inner.size)
    if group.between_nodes is not None:
        return within, tier_of(group.between_nodes, 1 / size, max(most, group.count, size + 1))
    return (within, *outer) if outer else (within, replace(inner, size=max(most, size + 1)))
