"""A network whose transfers are priced by measured curves of bandwidth over size, the `curves` of the config's tiers.

A tier without a curve is priced as in `HierarchicalTopology`. `fidelity="kernels"` chooses this topology where the
config has curves, unless `network="flat"` is given.

Ranks sit in nodes as `HierarchicalTopology` places them. A group inside a node takes the innermost tier's curve. A
group of several nodes takes the outer tier's curve at the bandwidth of the network interfaces that its local ranks
have, in the node that has fewest of them: of `nics` interfaces a node, shared evenly by the ranks of a node, since in a
training step the groups beside a group do the same at the same time. That is at most what its ranks within a node reach
among themselves. A ring through n ranks brings (n-1)/n of the bytes into each node; an all_reduce, which NCCL does by
trees of N nodes, 2 (N-1)/N instead of 2 (n-1)/n of them, so that two nodes reach nearly twice the bus bandwidth of
their interfaces. Half the bandwidth is reached at a size in proportion to the group's interfaces.

An operation without a curve of its own is priced by others where they have one: broadcast as all_gather; all_to_all as
(n-1)/n of its bytes at the p2p curve, those to ranks of the own node inside it and at the same time; barrier as an
all_reduce of no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from minitrain.errors import UsageError
from minitrain.hardware.topology import HierarchicalTopology, Transfer
from minitrain.hardware.transfer_curve import wire_share

if TYPE_CHECKING:
    from minitrain.hardware.network import Network
    from minitrain.hardware.topology import GroupShape
    from minitrain.hardware.transfer_curve import TransferCurve

_PRICED_AS = {"broadcast": "all_gather", "all_to_all": "p2p", "barrier": "all_reduce"}


@final
class MeasuredTopology:
    """Ranks in nodes, with transfers priced by the curves of the tiers.

    Args:
        tiers: the tiers of a config, in any order.
        world_size: number of ranks of the run.
        placement: the node of each rank; by default as `nodes_in_rank_order` says.
        may_be_unfilled: whether the run may fill a `must_be_filled` tier in part.

    Attributes:
        places: which ranks sit where; groups of equal shape there have equal prices here.

    Raises:
        UsageError: as for `HierarchicalTopology`.

    Example:
        >>> from minitrain.hardware import load_config
        >>> net = MeasuredTopology(load_config("a100_80g").networks, world_size=8)
        >>> round(net.collective("all_reduce", 2**30, range(8)).seconds * 1e3, 1)
        8.4
    """

    kind: ClassVar[str] = "measured"

    def __init__(
        self,
        tiers: Sequence[Network],
        world_size: int,
        placement: Sequence[int] | None = None,
        *,
        may_be_unfilled: bool = False,
    ) -> None:
        """Place the ranks."""
        self.places = HierarchicalTopology(tiers, world_size, placement, may_be_unfilled=may_be_unfilled)
        self._inner = self.places.tiers[0]
        self._ranks_per_node = self.places.ranks_per_node

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int]) -> Transfer:
        """Price a collective of `size_bytes` bytes among `ranks`; errors as for `HierarchicalTopology`."""
        shape = self.places.shape(ranks)
        curve = _curve(shape.tier, op)
        if curve is None or shape.split.num_ranks == 1:
            return self.places.collective(op, size_bytes, ranks)
        _check_size(op, size_bytes)
        if op == "all_to_all" and shape.split.has_two_levels and "all_to_all" not in shape.tier.curves:
            return self._exchange(size_bytes, shape)
        bandwidth = self._bandwidth(op, shape, curve)
        if shape.tier is not self._inner:
            curve = self._a_share(curve, shape)
        return Transfer(_seconds(op, size_bytes, shape.split.num_ranks, curve, bandwidth), "ring", shape.tier)

    def _a_share(self, curve: TransferCurve, shape: GroupShape) -> TransferCurve:
        """Return the curve of a group that has some ranks of each node: what saturates is an interface.

        Curves between nodes are those of groups that have all ranks of a node.
        """
        share = shape.split.least / self._inner.size
        return replace(curve, half_bytes=curve.half_bytes * share) if share < 1 and curve.half_bytes else curve

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message of `size_bytes` bytes from rank `source` to rank `dest`."""
        tier = self.places.p2p(size_bytes, source, dest).tier
        return Transfer(self._message(tier, size_bytes), None, tier)

    def _exchange(self, size_bytes: float, shape: GroupShape) -> Transfer:
        """Price an all_to_all of several ranks in each of several nodes: across, and inside at the same time."""
        split = shape.split
        each = size_bytes / split.num_ranks
        across = self._message(shape.tier, each * (split.num_ranks - split.least))
        return Transfer(max(across, self._message(self._inner, each * (split.most - 1))), "hierarchical", shape.tier)

    def _message(self, tier: Network, size_bytes: float) -> float:
        """Return the seconds of a message on a tier."""
        curve = tier.curves.get("p2p")
        if curve is None:
            return tier.time("p2p", size_bytes, 2)
        return curve.seconds("p2p", size_bytes, 2, curve.bandwidth(2, self._wires(tier, 1)))

    def _bandwidth(self, op: str, shape: GroupShape, curve: TransferCurve) -> float:
        """Return the bus bandwidth of a group, in 1e9 bytes/s."""
        local = 1 if op == "all_to_all" else shape.split.least  # its bytes are a rank's own
        if shape.tier is self._inner:
            return curve.bandwidth(shape.split.num_ranks, self._inner.bandwidth)
        reached = curve.bandwidth(shape.split.num_ranks, self._wires(shape.tier, local)) * _tree_gain(op, shape)
        inside = _curve(self._inner, op)
        if local == 1 or inside is None:
            return reached
        return min(reached, inside.bandwidth(local, self._inner.bandwidth))

    def _wires(self, tier: Network, num_local: int) -> float:
        """Return what some ranks of a node have into a tier beside its other ranks, in 1e9 bytes/s."""
        if tier is self._inner or tier.nics is None:
            return tier.bandwidth * num_local
        node_size = self._inner.size
        nic_GBps = tier.bandwidth * node_size / tier.nics  # noqa: N806 - a unit
        shared = tier.nics * num_local / self._ranks_per_node
        return nic_GBps * min(shared, num_local * max(1.0, tier.nics / node_size))


def places_of(topology: Any) -> Any:
    """Return which ranks sit where, so that groups of equal shape have equal prices; None where all are alike."""
    if hasattr(topology, "one_of_each_shape"):
        return topology
    return getattr(topology, "places", None)


def _curve(tier: Network, op: str) -> TransferCurve | None:
    """Return what prices an operation on a tier: its own curve, or that of the operation it is priced as."""
    return tier.curves.get(op) or tier.curves.get(_PRICED_AS.get(op, op))


def _tree_gain(op: str, shape: GroupShape) -> float:
    """Return how many times fewer bytes than in a ring cross a node's interfaces, for the same bus bandwidth."""
    if op != "all_reduce" or shape.split.num_nodes == 1:
        return 1.0
    return wire_share(op, shape.split.num_ranks) / wire_share(op, shape.split.num_nodes)


def _seconds(op: str, size_bytes: float, num_ranks: int, curve: TransferCurve, bandwidth: float) -> float:
    """Return the duration of a collective, s."""
    return curve.seconds(op, 0 if op == "barrier" else size_bytes, num_ranks, bandwidth)


def _check_size(op: str, size_bytes: float) -> None:
    """Refuse a negative size."""
    if not size_bytes >= 0:
        raise UsageError(
            f"the size of an operation must be a number of bytes >= 0, not {size_bytes} ({op})",
            op=op,
            size_bytes=size_bytes,
        )
