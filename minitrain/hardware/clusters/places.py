"""Which rank has which device of a cluster: its node, its group, and its place among the ranks of the group."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, final

from minitrain.errors import UsageError
from minitrain.hardware.rank_placement import node_of_each_rank

if TYPE_CHECKING:
    from minitrain.hardware.clusters.cluster import Cluster
    from minitrain.hardware.clusters.device_groups import Devices


@final
class Places:
    """Where the ranks of a run on a cluster are.

    Args:
        cluster: groups of devices.
        world_size: number of ranks.
        placement: the node of each rank; by default devices are taken in order, node by node.

    Attributes:
        nodes: the node of each rank, numbered over the whole cluster.

    Raises:
        UsageError: there are more ranks than devices, or the placement names a node that is not there or is full.
    """

    def __init__(self, cluster: Cluster, world_size: int, placement: Sequence[int] | None = None) -> None:
        self._names = [group.label for group in cluster.devices]
        self._first_nodes = [0, *accumulate(group.num_nodes for group in cluster.devices)]
        if world_size > cluster.num_devices:
            raise UsageError(
                f"{cluster.name} has {cluster.num_devices} devices, and the run {world_size} ranks; use at most "
                f"{cluster.num_devices} ranks, or add devices",
                world_size=world_size,
            )
        sizes = [size for group in cluster.devices for size in node_sizes(group)]
        if placement is None:
            self.nodes = tuple([node for node, size in enumerate(sizes) for _ in range(size)][:world_size])
        else:
            self.nodes = _checked(placement, world_size, sizes, cluster)
        self._members: dict[str, list[int]] = {}
        self._local = [self._enlist(rank) for rank in range(world_size)]

    def _enlist(self, rank: int) -> int:
        """Add a rank to the ranks of its group, and return its place among them."""
        members = self._members.setdefault(self.group(rank), [])
        members.append(rank)
        return len(members) - 1

    @property
    def used_groups(self) -> tuple[str, ...]:
        """The groups of which some rank has a device, in the cluster's order."""
        return tuple(name for name in self._names if name in self._members)

    def num_ranks_of(self, name: str) -> int:
        """Return how many ranks have devices of a group."""
        return len(self._members[name])

    def local_nodes(self, name: str) -> list[int]:
        """Return the node of each rank of a group, counted within the group."""
        first = self._first_nodes[self._names.index(name)]
        return [self.nodes[rank] - first for rank in self._members[name]]

    def group(self, rank: int) -> str:
        """Return the group that a rank's device belongs to."""
        return self.group_of_node(self.nodes[rank])

    def group_of_node(self, node: int) -> str:
        """Return the group that a node belongs to."""
        return self._names[bisect_right(self._first_nodes, node) - 1]

    def groups_of(self, ranks: Sequence[int]) -> set[str]:
        """Return the groups of some ranks."""
        return {self.group(rank) for rank in ranks}

    def local(self, ranks: Sequence[int]) -> Sequence[int]:
        """Return the places of some ranks among those of their group; a range stays one."""
        if isinstance(ranks, range):
            first = self._local[ranks[0]]
            places = range(first, first + len(ranks) * ranks.step, ranks.step)
            if all(self._local[rank] == place for rank, place in zip(ranks, places, strict=True)):
                return places
        return tuple(self._local[rank] for rank in ranks)


def node_sizes(group: Devices) -> list[int]:
    """Return how many devices each node of a group has; the last one may have fewer.

    >>> from minitrain.hardware.clusters.device_groups import Devices
    >>> node_sizes(Devices("a100_80g", 12))
    [8, 4]
    """
    size = group.devices_per_node
    return [min(size, group.count - start) for start in range(0, group.count, size)]


def _checked(placement: Sequence[int], world_size: int, sizes: Sequence[int], cluster: Cluster) -> tuple[int, ...]:
    """Return a placement as a tuple, or say what does not fit."""
    nodes = node_of_each_rank(placement, world_size)
    for node, number in sorted(Counter(nodes).items()):
        if not 0 <= node < len(sizes):
            raise UsageError(
                f"a placement's nodes must be in 0..{len(sizes) - 1}, those of {cluster.name}, not {node}", node=node
            )
        if number > sizes[node]:
            raise UsageError(
                f"node {node} of {cluster.name} has {sizes[node]} devices, and the placement puts {number} ranks "
                "there; spread them over more nodes",
                node=node,
                num_ranks=number,
            )
    return nodes
