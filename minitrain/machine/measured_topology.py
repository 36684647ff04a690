"""A network whose transfers are priced by measured curves of bandwidth over size, the `curves` of the config's tiers.

A tier without a curve is priced as in `HierarchicalTopology`. `fidelity="kernels"` chooses this topology where the
config has curves, unless `network="flat"` is given.

Ranks sit in nodes as `HierarchicalTopology` places them. A group inside a node takes the innermost tier's curve. A
group of several nodes takes the outer tier's curve at the bandwidth of the network interfaces that its local ranks
have, in the node that has fewest of them: of `nics` interfaces a node, shared evenly by the ranks of a node, since in a
training step the groups beside a group do the same at the same time. That is at most what its ranks within a node reach
among themselves. A ring through n ranks brings (n-1)/n of the bytes into each node, or 2 (n-1)/n for an all_reduce; a
tree of N nodes brings 2 (N-1)/N, so that two nodes reach nearly twice the bus bandwidth of their interfaces. Half the
bandwidth is reached at a size in proportion to the group's interfaces, and to its ranks where a curve says so.

Curves between nodes are read from sweeps on two full nodes of eight, by what NCCL chose there: a tree for an
all_reduce, a ring for the others. Another algorithm, or another number of ranks and nodes, takes longer or shorter by
as much as the model says by which NCCL chooses (`collective_algorithms.overhead_s`): a ring of 512 ranks has 511 steps.
An all_reduce takes ring or tree, whichever is faster so. A curve with a latency a rank says itself how it grows.

A strategy may ask for an algorithm. Within a node, "ring" takes the bandwidth of all_gather, which has no other, and so
does without the sums in the switch that an all_reduce has on newer devices. "hierarchical" is a collective inside the
nodes and one across them, as in `topology`, each priced as here.

An operation without a curve of its own is priced by others where they have one: broadcast as all_gather; all_to_all as
(n-1)/n of its bytes at the p2p curve; barrier as an all_reduce of no bytes. In an all_to_all what goes to ranks of the
own node does so inside it and at the same time; `latency_per_rank` of its curve is for each rank of another node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from minitrain.errors import UsageError
from minitrain.machine.columns import is_number, larger, least
from minitrain.machine.network import (
    MEASURED_NODES,
    MEASURED_RANKS,
    Split,
    no_such_algorithm,
    overhead_s,
    require_algorithm,
    require_two_levels,
    wire_share,
)
from minitrain.machine.topology import RING_OPS, HierarchicalTopology, Transfer, make_topology
from minitrain.operations.collectives import COLLECTIVES

if TYPE_CHECKING:
    from minitrain.machine.network import Network, TransferCurve
    from minitrain.machine.topology import GroupShape, Topology


_FILLING = 0.6
"""How much longer a tree's chunks take, for each of its levels, to fill its links where hosts forward them."""


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
        >>> from minitrain.machine import load_config
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

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Transfer:
        """Price a collective of `size_bytes` bytes among `ranks`; errors as for `HierarchicalTopology`."""
        shape = self.places.shape(ranks)
        curve = _curve(shape.tier, op)
        if curve is None or shape.split.num_ranks == 1:
            return self.places.collective(op, size_bytes, ranks, algorithm)
        if not size_bytes >= 0:
            raise UsageError(f"the size of an operation must be a number of bytes >= 0, not {size_bytes} ({op})", op=op)
        if op in RING_OPS:
            return self._chosen(op, size_bytes, shape, curve, algorithm)
        if op == "all_to_all" and shape.split.has_two_levels:
            return self._exchange(size_bytes, shape)
        if shape.tier is not self._inner:
            curve = self._a_share(curve, shape)
        bandwidth = self._bandwidth(op, shape, curve, by_tree=False)
        return Transfer(_seconds(op, size_bytes, shape.split.num_ranks, curve, bandwidth), None, shape.tier)

    def _chosen(
        self, op: str, size_bytes: float, shape: GroupShape, curve: TransferCurve, algorithm: str | None
    ) -> Transfer:
        """Price an all_reduce, all_gather or reduce_scatter by an algorithm, or by the one that NCCL takes."""
        require_algorithm(op, algorithm)
        if algorithm == "hierarchical":
            require_two_levels(op, has_two_levels=shape.split.has_two_levels)
            return Transfer(self._two_levels(op, size_bytes, shape), algorithm, shape.tier)
        if shape.tier is not self._inner:
            seconds, found = self._across(op, size_bytes, shape, curve, algorithm)
            return Transfer(seconds, found, shape.tier)
        if algorithm == "tree":
            raise no_such_algorithm(op, algorithm, 'trees are of nodes and its group lies in one; use "ring" or None')
        if algorithm == "ring":
            curve = self._inner.curves.get("all_gather", curve)
        return Transfer(self._inside(op, size_bytes, shape.split.num_ranks, curve), algorithm, shape.tier)

    def _inside(self, op: str, size_bytes: float, num_ranks: int, curve: TransferCurve | None) -> float:
        """Return the seconds of a collective within a node."""
        if curve is None:
            return self._inner.time(op, size_bytes, num_ranks)
        return curve.seconds(op, size_bytes, num_ranks, curve.bandwidth(num_ranks, self._inner.bandwidth))

    def _across(
        self, op: str, size_bytes: float, shape: GroupShape, curve: TransferCurve, algorithm: str | None
    ) -> tuple[float, str]:
        """Return the seconds through several nodes by the algorithm that was asked for, or the faster, and its name."""
        curve = self._a_share(curve, shape)
        known = ("tree", "ring") if op == "all_reduce" else ("ring",)
        ways = [(self._by(each, op, size_bytes, shape, curve), each) for each in known if algorithm in (None, each)]
        if all(is_number(seconds) for seconds, _ in ways):
            return min(ways)
        return least(seconds for seconds, _ in ways), ways[-1][1]  # machines need not agree on the algorithm

    def _by(self, algorithm: str, op: str, size_bytes: float, shape: GroupShape, curve: TransferCurve) -> float:
        """Return the seconds of a ring or a tree through several nodes."""
        num_ranks = shape.split.num_ranks
        bandwidth = self._bandwidth(op, shape, curve, by_tree=algorithm == "tree")
        if algorithm == "tree" and not (is_number(shape.tier.ring_step) and shape.tier.ring_step == 0):
            levels = max(1.0, _FILLING * (shape.split.num_nodes.bit_length() - 1))
            curve = replace(curve, half_bytes=curve.half_bytes * levels)
        seconds = curve.seconds(op, size_bytes, num_ranks, bandwidth)
        if curve.latency_per_rank or not size_bytes:
            return seconds
        measured = replace(shape.split, num_ranks=MEASURED_RANKS, num_nodes=MEASURED_NODES)
        usual = "tree" if op == "all_reduce" else "ring"
        longer = self._overhead(algorithm, op, size_bytes, shape, curve) - self._overhead(
            usual, op, size_bytes, replace(shape, split=measured), curve
        )
        return seconds + larger(longer, -curve.latency)  # type: ignore[no-any-return]  # a number

    def _overhead(self, algorithm: str, op: str, size_bytes: float, shape: GroupShape, curve: TransferCurve) -> float:
        """Return what a ring or a tree takes beyond its bytes at full bandwidth, as NCCL reckons, s."""
        split = shape.split
        bandwidth = curve.bandwidth(split.num_ranks, self._wires(shape.tier, split.least))
        if algorithm == "tree":
            bandwidth *= _tree_gain(split)
        wire_s = wire_share(op, split.num_ranks) * size_bytes / (bandwidth * 1e9)
        return overhead_s(algorithm, op, size_bytes, split.num_ranks, split.num_nodes, wire_s, shape.tier)

    def _two_levels(self, op: str, size_bytes: float, shape: GroupShape) -> float:
        """Return the seconds of the two-level algorithm: collectives inside the nodes and between one rank of each."""
        split = shape.split
        num_nodes = split.num_nodes if op == "all_reduce" else -(-split.num_ranks // split.least)
        one_of_each = replace(shape, split=Split(num_nodes, num_nodes, 1, 1))
        curve = _curve(shape.tier, op)
        assert curve is not None  # else `HierarchicalTopology` prices it
        seconds, _ = self._across(op, size_bytes / split.least, one_of_each, curve, None)
        for phase in ("reduce_scatter", "all_gather") if op == "all_reduce" else (op,):
            seconds += self._inside(phase, size_bytes, split.most, _curve(self._inner, phase))
        return seconds

    def _a_share(self, curve: TransferCurve, shape: GroupShape) -> TransferCurve:
        """Return the curve of a group that has some ranks of each node: what saturates is an interface.

        Curves between nodes are those of groups that have all ranks of a node.
        """
        share = shape.split.least / self._inner.size
        return replace(curve, half_bytes=curve.half_bytes * share) if share < 1 else curve

    def p2p(self, size_bytes: float, source: int, dest: int) -> Transfer:
        """Price a message of `size_bytes` bytes from rank `source` to rank `dest`."""
        tier = self.places.p2p(size_bytes, source, dest).tier
        return Transfer(self._message(tier, size_bytes), None, tier)

    def _exchange(self, size_bytes: float, shape: GroupShape) -> Transfer:
        """Price an all_to_all of several ranks in each of several nodes: across, and inside at the same time."""
        split = shape.split
        each = size_bytes / split.num_ranks
        peers = split.num_ranks - split.least
        across = self._message(shape.tier, each * peers, "all_to_all", peers)
        return Transfer(larger(across, self._message(self._inner, each * (split.most - 1))), "hierarchical", shape.tier)

    def _message(self, tier: Network, size_bytes: float, op: str = "p2p", num_ranks: int = 2) -> float:
        """Return the seconds of a message on a tier, or of those to some ranks there in an all_to_all."""
        curve = _curve(tier, op)
        if curve is None:
            return tier.time("p2p", size_bytes, 2)
        return curve.seconds("p2p", size_bytes, num_ranks, curve.bandwidth(2, self._wires(tier, 1)))

    def _bandwidth(self, op: str, shape: GroupShape, curve: TransferCurve, *, by_tree: bool) -> float:
        """Return the bus bandwidth of a group, in 1e9 bytes/s."""
        local = 1 if op == "all_to_all" else shape.split.least  # its bytes are a rank's own
        if shape.tier is self._inner:
            return curve.bandwidth(shape.split.num_ranks, self._inner.bandwidth)
        reached = curve.bandwidth(shape.split.num_ranks, self._wires(shape.tier, local))
        if by_tree:
            reached *= _tree_gain(shape.split)
        inside = _curve(self._inner, op)
        if local == 1 or inside is None:
            return reached
        return least([reached, inside.bandwidth(local, self._inner.bandwidth)])  # type: ignore[no-any-return]  # a number

    def _wires(self, tier: Network, num_local: int) -> float:
        """Return what some ranks of a node have into a tier beside its other ranks, in 1e9 bytes/s."""
        if tier is self._inner or tier.nics is None:
            return tier.bandwidth * num_local
        node_size = self._inner.size
        nic_GBps = tier.bandwidth * node_size / tier.nics
        shared = tier.nics * num_local / self._ranks_per_node
        return nic_GBps * min(shared, num_local * max(1.0, tier.nics / node_size))


def topology_of(
    tiers: Sequence[Network], world_size: int, network: str, placement: Sequence[int] | None, without: Sequence[str]
) -> Topology:
    """Return what `make_topology` does, but measured curves where tiers have them and no ablation leaves them out."""
    specified = make_topology(tiers, world_size, network, placement)
    if network == "flat" or "curves" in without or not any(tier.curves for tier in tiers):
        return specified
    return MeasuredTopology(tiers, world_size, placement, may_be_unfilled=network == "auto")


def places_of(topology: Any) -> Any:
    """Return which ranks sit where, so that groups of equal shape have equal prices; None where all are alike."""
    return topology if hasattr(topology, "one_of_each_shape") else getattr(topology, "places", None)


def _curve(tier: Network, op: str) -> TransferCurve | None:
    """Return what prices an operation on a tier: its own curve, or that of the operation it is priced as."""
    found = tier.curves.get(op)
    return found if found or op not in COLLECTIVES else tier.curves.get(COLLECTIVES[op].priced_as or op)


def _tree_gain(split: Split) -> float:
    """Return how many times fewer bytes than in a ring cross a node's interfaces in a tree."""
    return wire_share("all_reduce", split.num_ranks) / wire_share("all_reduce", split.num_nodes)


def _seconds(op: str, size_bytes: float, num_ranks: int, curve: TransferCurve, bandwidth: float) -> float:
    """Return the duration of a collective, s."""
    return curve.seconds(op, size_bytes if COLLECTIVES[op].gives != "nothing" else 0, num_ranks, bandwidth)
