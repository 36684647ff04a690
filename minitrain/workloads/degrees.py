"""How ranks divide the work on a transformer: parallel degrees, where a dimension can be cut, and one rank's work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.workloads.field_faults import count_fault, refuse, shown


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Into how many parts ranks divide a unit, by axis.

    Args:
        tp: parts of the heads, the MLP's columns and rows, and the vocabulary.
        cp: parts of the sequence, for the whole network.
        ep: parts of the experts.
        sequence_parallel: whether what `tp` does not cut is divided along the sequence, by `tp`.

    Raises:
        UsageError: a degree is no integer of at least 1, or `sequence_parallel` is no bool; all faults at once.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        found = (count_fault(axis, getattr(self, axis), 1, f"{axis}=2") for axis in ("tp", "cp", "ep"))
        faults = [fault for fault in found if fault is not None]
        if not isinstance(self.sequence_parallel, bool):
            faults.append(
                f"sequence_parallel must be True or False, got {shown(self.sequence_parallel)}; use one of them"
            )
        if faults:
            raise refuse("Degrees", faults)

    @property
    def sequence(self) -> int:
        """Return the parts of the sequence between tensor-parallel operations, beside `cp`."""
        return self.tp if self.sequence_parallel else 1


WHOLE = Degrees()
"""One rank does everything."""


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """The things that a dimension consists of (heads, columns, experts): it can be cut between two of them.

    Args:
        what: the things, as `Transformer` calls their number: "num_heads".
        count: how many there are.
        is_padded: whether empty ones are added until their number divides, as is usual for a vocabulary.
        is_copied: whether each part has all of them, as with the columns of an adapter.
    """

    what: str
    count: int
    is_padded: bool = False
    is_copied: bool = False

    def part(self, size: int, num_parts: int, axis: str = "tp") -> int:
        """Return the size of one of `num_parts` equal parts of a dimension.

        Args:
            size: the dimension's size, a multiple of `count`.
            num_parts: how many parts.
            axis: the degree's name, for the message.

        Raises:
            UsageError: the things do not divide by the parts.

        Example:
            >>> Cut("num_heads", 8).part(8 * 128, 4)
            256
        """
        if self.is_copied:
            return size
        rest = self.count % num_parts
        if rest and not self.is_padded:
            fitting = max(parts for parts in range(1, num_parts) if self.count % parts == 0)
            raise UsageError(
                f"{self.what} ({self.count}) must be a multiple of {axis} ({num_parts}); use {axis}={fitting}, "
                f"or a model with {self.what}={self.count - rest + num_parts}",
                what=self.what,
                axis=axis,
            )
        return size // self.count * -(-self.count // num_parts)


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in a pass of a unit.

    Args:
        num_samples: sequences.
        seq_len: tokens of a sequence, over all ranks that divide it.
        degrees: how ranks divide the unit.
        pairs: the `minitrain.workloads.workload.Pairs` of a sequence, the mean over the samples, where their documents
            leave others than the causal mask does.
    """

    num_samples: int
    seq_len: int
    degrees: Degrees = WHOLE
    pairs: Any = None

    @property
    def num_queries(self) -> int:
        """Return the tokens of a sequence that are the rank's; a UsageError where `seq_len` does not divide."""
        return Cut("seq_len", self.seq_len).part(self.seq_len, self.degrees.cp, "cp")

    @property
    def num_tokens(self) -> int:
        """Return the tokens on which the rank computes its heads, columns and rows."""
        return self.num_samples * self.num_queries

    @property
    def num_tokens_between(self) -> int:
        """Return the tokens that the rank holds between tensor-parallel operations: fewer with sequence parallelism."""
        parts = self.degrees.cp * self.degrees.sequence
        return self.num_samples * Cut("seq_len", self.seq_len).part(self.seq_len, parts, "cp x tp")
