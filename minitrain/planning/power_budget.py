"""Dividing a power budget between groups of devices, by what a watt buys.

Under a cap a device's clock grows with the cube root of its dynamic power (`minitrain.hardware.clusters.power`). The
time of a step that is divided by speed is inverse to the sum of rate x clock over all devices, so this sum is
maximised. With d the dynamic power of a device at its full clock and x its share of it, it is the sum of
rate x^(1/3), subject to a given sum of d x. By Lagrange, x grows with (rate / d)^(3/2), and is 1 at most.
"""

from __future__ import annotations

from minitrain.hardware.clusters.cluster import Cluster
from minitrain.hardware.clusters.device_groups import Devices

_ROUNDS = 60  # of bisection: more than a float has bits
_LEAST_WATTS = 1e-9  # in place of a dynamic power of 0, by which nothing can be divided


def within_budget(cluster: Cluster, watts: float) -> Cluster | None:
    """Return the cluster with caps under which its devices together are fastest.

    Args:
        cluster: the devices that take part; others are switched off.
        watts: what all of them may draw together.

    Returns:
        None where the budget does not keep these devices above their idle power.

    Raises:
        HardwareConfigError: a config does not say its power.
    """
    if cluster.peak_watts is not None and cluster.peak_watts <= watts:
        return cluster
    left = watts - sum(group.idle_watts * group.count for group in cluster.devices)
    if left <= 0:
        return None
    dynamic = {group.label: max((group.watts or 0.0) - group.idle_watts, _LEAST_WATTS) for group in cluster.devices}
    worth = {each.label: (_rate(each) / dynamic[each.label]) ** 1.5 for each in cluster.devices}
    low, high = 0.0, 1.0 / min(worth.values())
    for _ in range(_ROUNDS):
        scale = (low + high) / 2
        needed = sum(min(1.0, scale * worth[each.label]) * dynamic[each.label] * each.count for each in cluster.devices)
        low, high = (scale, high) if needed <= left else (low, scale)
    found = cluster
    for group in cluster.devices:
        share = min(1.0, low * worth[group.label])
        found = found.changed(group.label, power_cap_watts=group.idle_watts + share * dynamic[group.label])
    return found


def _rate(group: Devices) -> float:
    """Return the best matrix rate of a device, FLOP/s."""
    return max(rate.peak_flop_per_s for rate in group.system.processor.matrix.values())
