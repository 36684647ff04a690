"""One tier of a network: what a message or a collective among its ranks costs.

Every operation is a line: one latency, plus the bytes that cross the wire over the bandwidth reached. How
many bytes cross is the operation's row `[scalar, offset]`: `x = bytes * scalar`, then `x += (1/n * x) *
offset` for n ranks. A ring, which moves (n-1)/n of the bytes a pass, is [1, -1] for all_gather and
reduce_scatter and [2, -1] for all_reduce; a switch that reduces in flight is [1, 1] for all_reduce. `bytes`
is always the full size of the tensor that the collective makes or consumes.

Left out: the latency of each of a ring's steps, congestion, and the shape of the wires inside a tier.

Source: the format and the order of operations are Calculon's (Isaev et al., SC 2023; calculon/network.py of
github.com/calculon-ai/calculon). Ring costs: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005; in-network reduction and bus bandwidth:
doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware.transfer_curve import TransferCurve
from minitrain.operations.collectives import COLLECTIVES

OpRow = tuple[float, float | None]


@final
@dataclass(frozen=True, slots=True)
class Network:
    """One tier of the network; the fields are the config's keys.

    Args:
        bandwidth: of one processor into the tier, one way, in 1e9 bytes/s.
        efficiency: share of the bandwidth that transfers reach, in (0, 1].
        size: how many processors the tier spans.
        latency: seconds, once an operation.
        ops: `(scalar, offset)` by operation; has at least p2p, reduce_scatter, all_gather and all_reduce.
        must_be_filled: whether a group that reaches beyond the tier must hold a multiple of its size.
        processor_usage: share of the processor that communication takes while it is in flight, in [0, 1).
        nics: network interfaces of a node, which its ranks share, for `MeasuredTopology`; None for one a processor.
        curves: prices by size, by operation, for `MeasuredTopology`; `time` does not use them.
    """

    bandwidth: float
    efficiency: float
    size: int
    latency: float
    ops: Mapping[str, OpRow] = field(hash=False)
    must_be_filled: bool = False
    processor_usage: float = 0.0
    nics: int | None = None
    curves: Mapping[str, TransferCurve] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Keep read-only copies of the rows, so that a frozen value cannot be changed through them."""
        object.__setattr__(self, "ops", MappingProxyType(dict(self.ops)))
        object.__setattr__(self, "curves", MappingProxyType(dict(self.curves)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        wires = (self.bandwidth, self.efficiency, self.size, self.latency, dict(self.ops))
        return Network, (*wires, self.must_be_filled, self.processor_usage, self.nics, dict(self.curves))

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
            raise UsageError(
                f"the size of an operation must be a number of bytes >= 0, not {size_bytes} ({op})",
                op=op,
                size_bytes=size_bytes,
            )
        if op == "p2p":
            return self._priced(self._row("p2p"), size_bytes, 2)
        if num_ranks < 1:
            raise UsageError(f"{op} needs at least one rank, not {num_ranks}", op=op, num_ranks=num_ranks)
        if op not in self.ops and op in _derived_ops():
            seconds = self._derived(op, size_bytes, num_ranks)
        else:
            seconds = self._priced(self._row(op), size_bytes, num_ranks)
        return 0.0 if num_ranks == 1 else seconds

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
        largest=largest,
    )
