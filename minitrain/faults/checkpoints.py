"""Checkpoints: how many bytes one has, how long it takes to write and to read, and how often to write it.

A checkpoint holds weights and optimizer states, each shard once, however many ranks keep a copy. All nodes write at the
same time, evenly, and every rank reads what it holds. The slower of the storage and the busiest node sets the time.

How often: writing one costs delta seconds, and failures come every M seconds on average. Young (1974) finds the
interval that wastes least, sqrt(2 delta M), and Daly (2006, equation 37) the next terms of the series:

    sqrt(2 delta M) (1 + 1/3 sqrt(delta / 2M) + 1/9 (delta / 2M)) - delta    for delta < 2M, and M beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError

if TYPE_CHECKING:
    from minitrain.run.faults import Recovery
    from minitrain.run.result import Run

KEPT = ("weights", "opt_states")
"""The stores that a checkpoint holds."""


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size of a checkpoint, and who reads and writes it.

    Args:
        size_bytes: each shard once.
        read_bytes: what all ranks read together, a copy for each that keeps one.
        largest_bytes: what the rank with the most reads.
        num_nodes: nodes that the ranks are on.
        ranks_a_node: the most ranks of a node.
    """

    size_bytes: float
    read_bytes: float
    largest_bytes: float
    num_nodes: int
    ranks_a_node: int

    def of_size(self, size_bytes: float) -> Checkpoint:
        """Return a checkpoint of another size, which is read and written by the same ranks in the same parts."""
        factor = size_bytes / self.size_bytes
        return replace(
            self,
            size_bytes=size_bytes,
            read_bytes=self.read_bytes * factor,
            largest_bytes=self.largest_bytes * factor,
        )

    def write_s(self, recovery: Recovery) -> float:
        """Return how long writing it takes, s."""
        of_a_node = self.size_bytes / self.num_nodes
        return max(self.size_bytes / recovery.storage_bytes_per_s, of_a_node / recovery.node_bytes_per_s)

    def read_s(self, recovery: Recovery) -> float:
        """Return how long it takes until every rank has its part of it, s."""
        of_a_node = self.largest_bytes * self.ranks_a_node
        return max(self.read_bytes / recovery.storage_bytes_per_s, of_a_node / recovery.node_bytes_per_s)

    def snapshot_s(self, recovery: Recovery) -> float:
        """Return how long the devices take to copy it into the memory of their hosts, s."""
        share = self.size_bytes / (self.num_nodes * self.ranks_a_node)
        return share / recovery.snapshot_bytes_per_s


def checkpoint_of(run: Run) -> Checkpoint:
    """Return the checkpoint that the ranks of a finished run would write.

    Raises:
        UsageError: the run was read from a file, which does not keep what ranks hold.
    """
    models = run.class_models
    if not models:
        raise UsageError(f"the run of {run.strategy} does not keep what its ranks hold; simulate it, do not load it")
    elements_of = models[0].runtime_predictor.workload.memory_elements
    held = [[tensor for name in KEPT for tensor in getattr(model, name).values()] for model in models]
    sizes = [sum(map(elements_of, tensors)) * run.bytes_per_element for tensors in held]
    different = {(type(tensor), tensor.layer): tensor for tensors in held for tensor in tensors}
    whole = sum(elements_of(tensor) * _times_in_whole(tensor) for tensor in different.values())
    ranks_a_node = -(-run.world_size // run.num_nodes)
    read_bytes = fsum(size for size in sizes for _ in range(run.num_ranks_a_class))
    return Checkpoint(whole * run.bytes_per_element, read_bytes, max(sizes), run.num_nodes, ranks_a_node)


def _times_in_whole(tensor: Any) -> float:
    """Return how many times as large a tensor is with all of its shards and parts."""
    shards: float = tensor.num_shards / len(tensor.shards)
    return shards * getattr(tensor, "num_parts", 1) / len(getattr(tensor, "parts", (0,)))


def young_s(write_s: float, mtbf_s: float) -> float:
    """Return the interval between checkpoints that wastes least, by Young (1974), s.

    >>> round(young_s(60, 30_000), 3)
    1897.367
    """
    return math.sqrt(2 * write_s * mtbf_s)


def daly_s(write_s: float, mtbf_s: float) -> float:
    """Return the interval between checkpoints that wastes least, by Daly (2006), s.

    >>> round(daly_s(60, 30_000), 3)
    1857.577
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    return young_s(write_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - write_s


def mtbf_of_all_s(mtbf_hours: Iterable[float]) -> float:
    """Return the mean time between failures of a job, s, from those of its devices, hours: their rates add up."""
    return 3600 / sum(1 / hours for hours in mtbf_hours)
