"""Who takes how much of a step, where ranks are not alike: samples of a replica, and layers of a stage.

A run gets its shares by `simulate(..., shares=mt.Shares(samples=[12, 4], layers=[20, 12]))`, and a strategy reads those
of its own rank from its model: `model.samples_of_rank()`, `model.microbatches()` and `model.stages()`. Without shares
all of these divide equally, so that one strategy serves both.

A *replica* is what has a share of the batch: a rank of data parallelism, or a whole pipeline where there are stages.
Samples go to replicas in their order, contiguously. Every gradient is the sum over its samples divided by those of the
whole batch, so that a rank with more samples weighs more; nothing has to be scaled.

Left out: pipelines whose replicas are cut into different stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.tensors.index_sets import between

EXAMPLE = "as in mt.Shares(samples=[12, 4]) or mt.Shares(layers=[20, 12])"


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """How a step is divided between ranks that are not alike.

    Args:
        samples: of each replica, at least 1; equal shares of the batch if None.
        layers: of each stage, at least 1; as `Model.stages` finds them if None.
        microbatch_sizes: the most samples of a microbatch, of each replica; the strategy's own option if None.

    Raises:
        UsageError: all three are None, one is no sequence of counts, or samples and microbatch sizes are of different
            numbers of replicas.

    >>> Shares(samples=[3, 1]).samples_of(1)
    range(3, 4)
    """

    samples: Sequence[int] | None = None
    layers: Sequence[int] | None = None
    microbatch_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if all(value is None for value in given.values()):
            raise UsageError(f"shares must say samples, layers or microbatch_sizes, {EXAMPLE}")
        for name, value in given.items():
            if value is not None:
                object.__setattr__(self, name, _counts(name, value))
        if self.samples and self.microbatch_sizes and len(self.samples) != len(self.microbatch_sizes):
            raise UsageError(
                f"samples and microbatch_sizes of shares must be of the same replicas, got {len(self.samples)} and "
                f"{len(self.microbatch_sizes)}; give one of each a replica"
            )

    @classmethod
    def of(cls, value: Any) -> Shares:
        """Return shares from what a run is given: shares, samples of each replica, or a plan that has `shares`.

        Raises:
            UsageError: it is something else.
        """
        found = getattr(value, "shares", value)
        if isinstance(found, Shares):
            return found
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise UsageError(f"shares must be samples of each replica or a mt.Shares, got {value!r:.80}; {EXAMPLE}")
        return cls(samples=found)

    def require(self, global_batch_size: int, num_layers: int) -> None:
        """Require that the shares make up a step.

        Raises:
            UsageError: they make up more or less.
        """
        for name, total in (("samples", global_batch_size), ("layers", num_layers)):
            counts = getattr(self, name)
            if counts is not None and sum(counts) != total:
                whole = "global_batch_size" if name == "samples" else "num_layers"
                raise UsageError(
                    f"{name} of shares must add up to {whole} ({total}), and {list(counts)} add up to {sum(counts)}; "
                    f"change a share, or use {whole}={sum(counts)}",
                    shares=self,
                )

    @property
    def names(self) -> frozenset[str]:
        """What they divide: "samples", "layers", or both."""
        divides = {"samples": self.samples or self.microbatch_sizes, "layers": self.layers}
        return frozenset(name for name, counts in divides.items() if counts)

    def samples_of(self, replica: int) -> range:
        """Return the samples of a replica; there must be samples."""
        assert self.samples is not None
        return ranges_of(self.samples)[replica]

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Shares(samples=[3, 1], layers=[20, 12]))
        'samples 3, 1; layers 20, 12'
        """
        said = {field.name.replace("_", " "): getattr(self, field.name) for field in fields(self)}
        return "; ".join(f"{name} {', '.join(map(str, counts))}" for name, counts in said.items() if counts)


@final
@dataclass(frozen=True, slots=True)
class SharesOfRun:
    """The shares of a run, and what of them was asked for.

    Args:
        shares: the shares.
        read: which of `Shares.names` some rank has asked for.
    """

    shares: Shares
    read: set[str] = field(default_factory=set)

    @property
    def unread(self) -> list[str]:
        """What no rank has asked for, so that it was divided equally."""
        return sorted(self.shares.names - self.read)


def ranges_of(counts: Sequence[int]) -> tuple[range, ...]:
    """Return contiguous ranges of some lengths."""
    return between([0, *accumulate(counts)])


def _counts(name: str, value: Any) -> tuple[int, ...]:
    """Return counts as a tuple."""
    counts = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    are_counts = all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in counts)
    if not counts or not are_counts:
        raise UsageError(f"{name} of shares must be whole numbers of at least 1, got {value!r:.80}; {EXAMPLE}")
    return counts
