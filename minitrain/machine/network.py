"""What a message or a collective costs: on one tier of a network, on two levels, and by which algorithm.

**One tier** (`Network`). Every operation is a line: one latency, plus the bytes that cross the wire over the bandwidth
reached. How many bytes cross is the operation's row `[scalar, offset]`: `x = bytes * scalar`, then `x += (1/n * x) *
offset` for n ranks. A ring, which moves (n-1)/n of the bytes a pass, is [1, -1] for all_gather and reduce_scatter and
[2, -1] for all_reduce; a switch that reduces in flight is [1, 1] for all_reduce. `bytes` is always the full size of the
tensor that the collective makes or consumes. `latency_per_rank` is that of a ring's steps, where a config has one. Left
out: congestion, and the shape of the wires inside a tier, but for the axes of a torus.

Source: the format and the order of operations are Calculon's (Isaev et al., SC 2023; calculon/network.py of
github.com/calculon-ai/calculon). Ring costs: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005; in-network reduction and bus bandwidth:
doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests.

**A measured tier** (`TransferCurve`): a latency, and a bandwidth that grows with the size until it saturates. For n
ranks and S bytes (of the whole tensor), with f = 2 for all_reduce and 1 for the other collectives,

    latency + latency_per_rank n + f (n-1)/n S / B(n) (1 + (half/S)^exponent)

B is the bus bandwidth that nccl-tests prints; at S = half, half of it is reached. A message (p2p) takes latency + S / B
(1 + (half/S)^exponent). half may grow with n, as steps do that send 1/n of the bytes. B may depend on n, as it does
where links do not form the same rings for every number of ranks.
Between nodes B is a share of the network interfaces that a group's local ranks have together, and no more than what the
ranks of a node reach among themselves. Left out: congestion, and how the switches beyond are wired.

**Two levels** (`two_level_seconds`): inside nodes, and across them; formulas are in `topology`. Each phase is priced by
whatever prices operations among its ranks: one tier, or several links of which the slowest sets the pace.

**Algorithms.** A strategy may ask: `all_reduce(..., algorithm="tree")`. `"ring"` is one ring through all ranks.
`"tree"` is NCCL's: a chain in each node, and two binary trees of the nodes, for all_reduce alone. `"hierarchical"` is
the one of two levels. Where nobody asks, a network decides. Between nodes, NCCL takes the algorithm and the protocol
(LL, LL128, Simple) of which its own model expects the least time. For n ranks in N nodes:

    base + (steps - steps_across) inside + steps_across across + wire / share            (ring)
    base + 2 ((n/N - 1) inside + floor(log2 N) across) + wire / (share correction(S))    (tree)

A ring has 2 (n-1) steps for an all_reduce, of which 2 N are across, else n-1 and N-1. Where hosts forward what crosses
(EFA), no step of a ring is shorter than they take for its pieces, one a channel of 32 KiB or more (`threadThreshold` of
src/enqueue.cc), and a tree of more levels is longer in filling. wire is the time of the bytes at
full bandwidth, of which a protocol reaches a share; so few bytes go by a protocol of short steps and many by one of
full bandwidth. `overhead_s` is all of this but the wire itself. A chain counts eight ranks at most: the larger nodes
that there are sum in their switch (NVLS). Left out: what else switches that reduce in flight save (NVLS, SHARP), limits
of bandwidth a channel and of LL, and the plateau of rings.

Source: `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` of src/graph/tuning.cc, github.com/NVIDIA/nccl, commit b647562.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, NamedTuple, Protocol

from minitrain.errors import UsageError
from minitrain.machine.columns import is_number, larger, least, power
from minitrain.machine.config_format import (
    BANDWIDTHS,
    FLAG,
    NON_NEGATIVE,
    OP_ROW,
    POSITIVE,
    SECONDS,
    SHARE,
    USAGE,
    WHOLE,
    Entries,
    Key,
    ReadOnly,
    Record,
)
from minitrain.operations.collectives import COLLECTIVES

Rows = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class TransferCurve:
    """The price of one operation on one tier.

    Args:
        latency: of the operation, s.
        latency_per_rank: for each rank that takes part, s.
        bandwidths: rows `(lower bound of ranks, bus bandwidth in 1e9 bytes/s)`, bounds strictly descending to 0; None
            where `efficiency` says it.
        efficiency: share of the wires that are reached: of one processor's into the tier, times the local ranks.
        half_bytes: the size at which half the bandwidth is reached; 0 where there is no saturation.
        exponent: how quickly it saturates.
        half_ranks: the ranks of the group that half_bytes is of, where it grows in proportion to more, as steps of a
            ring do that each send 1/n of the bytes; 0 where it does not.
    """

    latency: Annotated[float, SECONDS, "s"]
    latency_per_rank: Annotated[float, SECONDS, "s a rank"] = 0.0
    bandwidths: Annotated[Rows | None, BANDWIDTHS, Key("ranks_GBps"), "[ranks, GB/s]"] = None
    efficiency: Annotated[float, SHARE] = 1.0
    half_bytes: Annotated[float, NON_NEGATIVE, Key("half_MB", 1e6), "MB"] = 0.0
    exponent: Annotated[float, POSITIVE] = 1.0
    half_ranks: Annotated[float, NON_NEGATIVE, "ranks"] = 0.0

    def bandwidth(self, num_ranks: int, wires: float) -> float:
        """Return the bus bandwidth of large transfers, in 1e9 bytes/s.

        Args:
            num_ranks: how many take part.
            wires: what they could carry, in 1e9 bytes/s, where no measured bandwidth is given.
        """
        if self.bandwidths is None:
            return self.efficiency * wires
        return next(value for bound, value in self.bandwidths if num_ranks >= bound)

    def seconds(self, op: str, size_bytes: float, num_ranks: int, bandwidth: float) -> float:
        """Return the duration, s.

        Args:
            op: "p2p" or a collective.
            size_bytes: of the whole tensor.
            num_ranks: how many take part; 2 for a message.
            bandwidth: of large transfers, in 1e9 bytes/s.
        """
        start = self.latency + self.latency_per_rank * num_ranks
        if not size_bytes:
            return start
        slowed_bytes = size_bytes  # S (1 + (half/S)^exponent), written so that no tiny S overflows
        if not is_number(self.half_bytes) or self.half_bytes:
            half_bytes = self.half_bytes * (max(1.0, num_ranks / self.half_ranks) if self.half_ranks else 1)
            slowed_bytes += power(half_bytes, self.exponent) * power(size_bytes, 1 - self.exponent)
        return start + wire_share(op, num_ranks) * slowed_bytes / (bandwidth * 1e9)


def wire_share(op: str, num_ranks: int) -> float:
    """Return the bytes that cross each wire, as a share of the tensor: what bus bandwidth divides by.

    >>> wire_share("all_reduce", 4), wire_share("all_gather", 4), wire_share("p2p", 2)
    (1.5, 0.75, 1.0)
    """
    return 1.0 if op == "p2p" else (COLLECTIVES[op].passes or 1) * (num_ranks - 1) / num_ranks


OpRow = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Network(ReadOnly):
    """One tier of the network; the fields are the config's keys.

    Args:
        bandwidth: of one processor into the tier, one way, in 1e9 bytes/s.
        efficiency: share of the bandwidth that transfers reach, in (0, 1].
        size: how many processors the tier spans.
        latency: seconds, once an operation.
        ops: `(scalar, offset)` by operation; has at least p2p, reduce_scatter, all_gather and all_reduce.
        must_be_filled: whether a group that reaches beyond the tier must hold a multiple of its size.
        processor_usage: share of the processor that communication takes while it is in flight, in [0, 1).
        torus: how many axes the links have, where they form a torus: collectives among a part of its processors, which
            lie along some axes, have the links of those alone. None where any processors reach what all do.
        nics: network interfaces of a node, which its ranks share, for `MeasuredTopology`; None for one a processor.
        latency_per_rank: seconds more of a collective for each rank but one: the steps of a ring through hosts.
        latency_across: seconds more of each step to another node than NCCL reckons, for `MeasuredTopology`.
        ring_step: seconds that hosts take for a step of a ring in which all channels send, for `MeasuredTopology`; 0
            where no host forwards it.
        curves: prices by size, by operation, for `MeasuredTopology`; `time` does not use them.
    """

    bandwidth: Annotated[float, POSITIVE, "GB/s"]
    efficiency: Annotated[float, SHARE]
    size: Annotated[int, WHOLE, "ranks"]
    latency: Annotated[float, SECONDS, "s"]
    ops: Annotated[
        Mapping[str, OpRow],
        Entries(
            OP_ROW,
            "an object of rows [scalar, offset]",
            needed=("p2p", "reduce_scatter", "all_gather", "all_reduce"),
        ),
    ] = field(hash=False)
    must_be_filled: Annotated[bool, FLAG, Key(is_needed=True)] = False
    processor_usage: Annotated[float, USAGE, Key(is_needed=True)] = 0.0
    torus: Annotated[int | None, WHOLE, "axes"] = None
    nics: Annotated[int | None, WHOLE] = None
    latency_per_rank: Annotated[float, SECONDS, "s"] = 0.0
    latency_across: Annotated[float, SECONDS, "s"] = 0.0
    ring_step: Annotated[float, SECONDS, "s"] = 0.0
    curves: Annotated[
        Mapping[str, TransferCurve],
        Entries(
            Record(TransferCurve, "an object with latency, and ranks_GBps or efficiency"),
            "an object of operations",
        ),
    ] = field(default_factory=dict, hash=False)

    def time(self, op: str, size_bytes: float, num_ranks: float) -> float:
        """Return how long an operation among ranks of this tier lasts.

        An operation without a row of its own is priced by others: broadcast by the all_gather row;
        all_to_all as (n-1)/n of its bytes at the p2p rate, plus one latency; barrier as one latency.

        Args:
            op: p2p, reduce_scatter, all_gather, all_reduce, broadcast, all_to_all, barrier, or any row of
                `ops`.
            size_bytes: full size of the tensor, in bytes, at least 0.
            num_ranks: how many ranks take part; p2p always counts 2. A collective of one rank lasts 0.

        Returns:
            Seconds, at least 0.

        Raises:
            UsageError: an unknown operation, a negative size, or fewer than one rank.
        """
        if not size_bytes >= 0:
            raise UsageError(f"the size of an operation must be a number of bytes >= 0, not {size_bytes} ({op})", op=op)
        if op == "p2p":
            return self._priced(self._row("p2p"), size_bytes, 2)
        if num_ranks < 1:
            raise UsageError(f"{op} needs at least one rank, not {num_ranks}", op=op)
        if op not in self.ops and op in _derived_ops():
            seconds = self._derived(op, size_bytes, num_ranks)
        else:
            seconds = self._priced(self._row(op), size_bytes / self._axes_share(num_ranks), num_ranks)
            if self.latency_per_rank:
                seconds += self.latency_per_rank * (num_ranks - 1)
        return 0.0 if num_ranks == 1 else seconds

    def of_slice(self, num_ranks: int) -> Network:
        """Return the tier of a run that lies within it: a torus of so many processors."""
        return replace(self, size=num_ranks) if self.torus and 1 < num_ranks < self.size else self

    def _axes_share(self, num_ranks: float) -> float:
        """Return the share of a processor's links that a group's axes have: as many as its size makes of all, rounded.

        In a torus of equal sides s, a group of s^k ranks lies along k axes.
        """
        if not self.torus or num_ranks >= self.size or num_ranks <= 1:
            return 1
        return max(1, round(self.torus * math.log(num_ranks) / math.log(self.size))) / self.torus

    def _priced(self, row: OpRow, size_bytes: float, num_ranks: float) -> float:
        """Price by a row. The order of the float operations is part of the format: the last digit counts."""
        scalar, offset = row
        wire_bytes = size_bytes * scalar
        if offset is not None:
            wire_bytes += (1 / num_ranks * wire_bytes) * offset
        return self.latency + wire_bytes / (self.bandwidth * 1e9 * self.efficiency)

    def _derived(self, op: str, size_bytes: float, num_ranks: float) -> float:
        """Price an operation that has no row of its own."""
        record = COLLECTIVES[op]
        row = record.priced_as or op
        return self._priced(self._row(row), record.wire_share(num_ranks) * size_bytes, 2 if row == "p2p" else num_ranks)

    def _row(self, op: str) -> OpRow:
        """Return the row of an operation, or say which operations there are."""
        try:
            return self.ops[op]
        except KeyError:
            known = ", ".join(dict.fromkeys((*self.ops, *_derived_ops())))
            raise UsageError(
                f"a network prices the operations it knows, not {op!r}; use one of {known}", op=op
            ) from None


def _derived_ops() -> list[str]:
    """Return the operations that are priced as others are."""
    return [name for name, record in COLLECTIVES.items() if record.priced_as]


def select_tier(tiers: Iterable[Network], world_size: int) -> Network:
    """Return the smallest tier that spans a whole run.

    Args:
        tiers: the tiers of a config, in any order.
        world_size: number of ranks of the run, at least 1.

    Returns:
        The smallest tier with size >= world_size.

    Raises:
        UsageError: no tier is large enough (the message names the largest), or world_size is below 1.
    """
    if world_size < 1:
        raise UsageError(f"world_size must be at least 1, not {world_size}", world_size=world_size)
    ordered = sorted(tiers, key=lambda tier: tier.size)
    for tier in ordered:
        if tier.size >= world_size:
            return tier
    largest = max((tier.size for tier in ordered), default=0)
    raise UsageError(
        f"world_size ({world_size}) must fit into a tier of the network, whose largest spans {largest} "
        f"ranks; use at most {largest} ranks or a config with a larger tier",
        world_size=world_size,
    )


@dataclass(frozen=True, slots=True)
class Split:
    """How many ranks take part in a collective, and how they lie in nodes.

    Args:
        num_ranks: all of them.
        num_nodes: in how many nodes they sit.
        least: those in the node that has fewest.
        most: those in the node that has most.
    """

    num_ranks: int
    num_nodes: int
    least: int
    most: int

    @property
    def has_two_levels(self) -> bool:
        """Whether there are several nodes with two ranks or more in each."""
        return self.num_nodes > 1 and self.least > 1

    @staticmethod
    def of(counts: Collection[int]) -> Split:
        """Return that of so many ranks in each node."""
        return Split(sum(counts), len(counts), min(counts), max(counts))


class PricesOps(Protocol):
    """The interface of what prices a phase: one tier, or several of which the slowest counts."""

    def time(self, op: str, size_bytes: float, num_ranks: float) -> float:
        """Return how long an operation lasts, s."""


def two_level_seconds(op: str, size_bytes: float, inner: PricesOps, outer: PricesOps, split: Split) -> float:
    """Return the seconds of the two-level algorithm: inside the nodes and across them, at once in an all_to_all.

    Args:
        op: all_reduce, all_gather, reduce_scatter or all_to_all.
        size_bytes: full size of the tensor.
        inner: what connects the ranks of a node.
        outer: what connects nodes, at the bandwidth of one rank.
        split: how the ranks lie in nodes.
    """
    if op == "all_to_all":
        each = size_bytes / split.num_ranks
        across = outer.time("p2p", each * (split.num_ranks - split.least), 2)
        return larger(across, inner.time("p2p", each * (split.most - 1), 2))  # type: ignore[no-any-return]  # a number
    # What passes the ports of the emptiest node is what n/least nodes like it would exchange; sums pass once a node.
    num_nodes = split.num_nodes if op == "all_reduce" else split.num_ranks / split.least
    across = outer.time(op, size_bytes / split.least, num_nodes)
    if op == "all_gather":
        return across + inner.time("all_gather", size_bytes, split.most)
    scattered = inner.time("reduce_scatter", size_bytes, split.most) + across
    if op == "reduce_scatter":
        return scattered
    return scattered + inner.time("all_gather", size_bytes, split.most)


MEASURED_RANKS, MEASURED_NODES = 16, 2
"""The layout of the sweeps that curves between nodes were read from: two full nodes of eight."""


def require_algorithm(op: str, algorithm: str | None) -> str | None:
    """Return an algorithm that the operation has, or None.

    Raises:
        UsageError: it has no such algorithm.
    """
    algorithms = COLLECTIVES[op].algorithms if op in COLLECTIVES else ()
    if algorithm is not None and algorithm not in algorithms:
        known = ", ".join(map(repr, algorithms))
        raise UsageError(
            f"the algorithm of {op} must be one of {known}, or None for the network's choice; got {algorithm!r}", op=op
        )
    return algorithm


def no_such_algorithm(op: str, algorithm: str, why: str) -> UsageError:
    """Return the error for an algorithm that a network cannot price for a group.

    Args:
        op: the collective.
        algorithm: what was asked for.
        why: the rule that the network or the group breaks, and what to use.
    """
    return UsageError(f"{op} was asked for by algorithm={algorithm!r}, but {why}", op=op)


def require_two_levels(op: str, *, has_two_levels: bool) -> None:
    """Require a group that lies in several nodes with several ranks in each, as the hierarchical algorithm needs."""
    if not has_two_levels:
        raise no_such_algorithm(
            op, "hierarchical", "its group has not two ranks or more in each of several nodes; use algorithm=None"
        )


class _Protocol(NamedTuple):
    """One of NCCL's protocols: microseconds of a start and of a step, and the share of the bandwidth it reaches."""

    base_us: float
    inside_us: float
    across_us: float
    share: float


_RING = (_Protocol(6.6, 1.0, 2.7, 1 / 4), _Protocol(14.0, 1.9, 4.0, 0.92), _Protocol(8.4, 3.4, 14.0, 1.0))
_ALONE = 0.7  # the share of a ring of LL128 where each node has one rank
_TREE = (
    _Protocol(6.8, 0.6, 5.0, 0.92 / 3.8),
    _Protocol(14.0, 1.25, 8.5, 0.92 * 120 / 128),
    _Protocol(0.0, 28.0, 28.0, 0.92),
)
_LONGEST_CHAIN = 8
# What trees of each protocol reach of their share, for sizes of 64 B times powers of two, up to 256 MiB.
_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)


_CHANNEL_BYTES, _RING_CHANNELS = 32 * 1024, 16


def overhead_s(
    algorithm: str,
    op: str,
    size_bytes: float,
    num_ranks: int,
    num_nodes: int,
    wire_s: float,
    tier: Network | None = None,
) -> float:
    """Return what a collective between nodes takes beyond its bytes at full bandwidth, by NCCL's model, s.

    Args:
        algorithm: "ring" or "tree".
        op: all_reduce, all_gather or reduce_scatter.
        size_bytes: full size of the tensor.
        num_ranks: how many take part.
        num_nodes: in how many nodes, at least 2.
        wire_s: the time of the bytes at full bandwidth, s.
        tier: the network between nodes, if its steps are longer than NCCL reckons.

    >>> round(overhead_s("ring", "all_gather", 1e9, 16, 2, 3e-3) * 1e6)  # 8.4 us, 14 steps inside, 1 across
    70
    """
    if algorithm == "tree":
        chain = min(num_ranks // num_nodes, _LONGEST_CHAIN)
        inside, across = 2 * (chain - 1), 2 * (num_nodes.bit_length() - 1)
    elif op == "all_reduce":
        inside, across = max(0, 2 * (num_ranks - 1 - num_nodes)), 2 * num_nodes
    else:
        inside, across = num_ranks - num_nodes, num_nodes - 1
    further_s, waits_s = (across * tier.latency_across, 0.0) if tier else (0.0, 0.0)
    if tier and algorithm == "ring":
        channels = min(max(size_bytes / num_ranks / _CHANNEL_BYTES, 1.0), _RING_CHANNELS)
        waits_s = (inside + across) * tier.ring_step * channels / _RING_CHANNELS
    return least(  # type: ignore[no-any-return]  # a number
        larger((each.base_us + inside * each.inside_us + across * each.across_us) * 1e-6 + further_s, waits_s)
        + wire_s * (1 / share - 1)
        for each, share in _protocols(algorithm, size_bytes, is_alone=num_ranks < 2 * num_nodes)
    )


def _protocols(algorithm: str, size_bytes: float, *, is_alone: bool) -> Iterator[tuple[_Protocol, float]]:
    """Yield LL, LL128 and Simple with the share of the bandwidth that each reaches at a size."""
    doublings = max(0, (int(size_bytes) >> 6).bit_length() - 1)
    for place, each in enumerate(_TREE if algorithm == "tree" else _RING):
        if algorithm == "tree":
            yield each, each.share * (_CORRECTION[place][doublings] if doublings < len(_CORRECTION[place]) else 1)
        else:
            yield each, _ALONE if is_alone and place == 1 else each.share


CHANNEL_GBPS = MappingProxyType({"v100": 26.5, "a100": 24.0, "h100": 38.7, "h200": 38.7, "gh200": 38.7, "b200": 70.0})
"""What a channel carries at most within a node, 1e9 bytes/s: `perChMaxTreeBws` of NCCL's src/graph/tuning.cc, protocol
Simple, which messages take."""

SENDING_WARPS = 0.5
"""The share of a channel's warps that send, while the others receive what comes in the same batch: NCCL keeps "a
balanced number of reading and writing threads" (src/device/sendrecv.h)."""

_ACCESSES: Mapping[str, int] = {"all_gather": 2, "reduce_scatter": 3, "all_reduce": 2 + 3, "all_to_all": 2}


def memory_bytes(op: str, size_bytes: float, num_ranks: int) -> float:
    """Return the bytes of its memory that a transfer reads and writes on each rank.

    Of what a ring moves, (n - 1)/n of the bytes, a gather writes what arrives and reads it to send it on; a sum reads
    its own part too. An exchange reads all that it sends and writes all that comes, a message does one of both. This
    counts a ring's steps; nobody measured it. Left out: NCCL's buffers, which caches hold.

    >>> memory_bytes("all_reduce", 8e6, 8), memory_bytes("send", 8e6, 2)
    (35000000.0, 8000000.0)
    """
    if op not in _ACCESSES:
        return size_bytes
    return _ACCESSES[op] * size_bytes * (num_ranks - 1) / num_ranks


_CHANNELS, _CHANNELS_BETWEEN_NODES = 32, 2
_MOST_CHANNEL_BYTES = 32 * 2**19


def channels_of_message(size_bytes: float, num_ranks: int, num_nodes: int) -> int:
    """Return on how many channels NCCL sends a message within a node.

    Args:
        size_bytes: of the message.
        num_ranks: those of the group that sends it, such as a pipeline's.
        num_nodes: in how many nodes these sit.

    A group of several nodes has two channels a peer. One in a node has 32, shared by its ranks; a message takes twice
    as many as long as more than 16 MiB are left to each. Source: `ncclTopoComputeP2pChannels` and
    `scheduleP2pTasksToPlan` (with `calcP2pChunkSize`) of github.com/NVIDIA/nccl 2.18 to 2.24; AWS's nccl-tests on
    p5.48xlarge log "32 p2p channels per peer" on one node and "2 p2p channels per peer" on two.

    >>> channels_of_message(28e6, 8, 1), channels_of_message(28e6, 16, 2), channels_of_message(1e9, 8, 1)
    (4, 2, 32)
    """
    if num_nodes > 1:
        return _CHANNELS_BETWEEN_NODES
    number = _CHANNELS
    while number * num_ranks > _CHANNELS and number > 1:
        number //= 2
    while size_bytes / number > _MOST_CHANNEL_BYTES and number < _CHANNELS:
        number *= 2
    return number
