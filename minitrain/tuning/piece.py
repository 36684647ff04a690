"""Pieces of a step as values: what some operations take in time and in memory, and what each piece depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

NOTHING = -1
"""The kind of what lies beyond the border of a stage."""


@dataclass(frozen=True, slots=True)
class PassKey:
    """What the passes through layers depend on, beside the layers.

    Args: options of `megatron`, and samples of a microbatch.
    """

    tp: int
    microbatch_size: int
    sequence_parallel: bool
    recompute: str
    scatter_gather: bool = False
    overlap_parts: bool = False
    cp: int = 1


@dataclass(frozen=True, slots=True)
class EndKey:
    """What loading and updating depend on, beside the layers.

    Args: options of `megatron`; `dp` is the number of ranks that hold the same, those that share a sequence among them.
    """

    tp: int
    dp: int
    zero: int
    sequence_parallel: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Some operations that follow one another on a rank.

    Args:
        seconds: how long each lasts, s.
        net: what memory grows by, elements.
        peak: the most that it grows by meanwhile, elements.
    """

    seconds: tuple[float, ...] = ()
    net: float = 0.0
    peak: float = 0.0

    def then(self, other: Piece) -> Piece:
        """Return this piece, and another one after it."""
        return joined((self, other))


@dataclass(frozen=True, slots=True)
class EndPiece:
    """What a layer takes before the first step of a rank and after the last.

    Args:
        load: loading it, and sharding its optimizer state.
        cover: summing what each shard of the sequence has seen of norms, s.
        total: summing its gradient over the replicas, s.
        update: the optimizer step, s.
        gather: gathering the updated weight, s.
    """

    load: Piece
    cover: float
    total: float
    update: float
    gather: float


Triple = tuple[int, int, int]  # kinds: of the layer before, of the layer, of the layer behind


@dataclass(slots=True)
class Passes:
    """The pieces of one `PassKey`.

    Attributes:
        forward: passes of a microbatch, by kinds; so the next two.
        first: backward passes that make a gradient of weights.
        later: those that add to it.
        fronts: what a stage does with what it has received, by direction and kind of the layer at the border; or with
            the loss, by "loss".
        message_bytes: what is sent over a border, by direction and kind of the layer that takes it.
    """

    forward: dict[Triple, Piece] = field(default_factory=dict)
    first: dict[Triple, Piece] = field(default_factory=dict)
    later: dict[Triple, Piece] = field(default_factory=dict)
    fronts: dict[tuple[str, int], Piece] = field(default_factory=dict)
    message_bytes: dict[tuple[str, int], float] = field(default_factory=dict)

    def extend(self, shorter: Passes, longer: Passes, num_steps: int) -> None:
        """Take the pieces of a ring that has some steps more than the longer of two, which has one more than the other.

        Each further step takes as long, and needs no more memory.
        """
        for name in ("forward", "first", "later"):
            of_shorter, table = getattr(shorter, name), getattr(self, name)
            for triple, piece in getattr(longer, name).items():
                pairs = zip(of_shorter[triple].seconds, piece.seconds, strict=True)
                seconds = tuple(more + num_steps * (more - less) for less, more in pairs)
                table[triple] = Piece(seconds, piece.net, piece.peak)
        self.fronts.update(longer.fronts)
        self.message_bytes.update(longer.message_bytes)

    def has(self, kinds: Sequence[int], at_ends: tuple[bool, bool]) -> bool:
        """Return whether all pieces of a stage are here, by its layers' kinds and whether it is first and last."""
        wanted = [] if at_ends[0] else [("F", kinds[1])]
        wanted.append(("loss" if at_ends[1] else "B", kinds[-2]))
        return all(triple in self.forward for triple in triples_of(kinds)) and all(
            front in self.fronts for front in wanted
        )


@dataclass(frozen=True, slots=True)
class StagePiece:
    """What a stage takes, put together from its layers.

    Args:
        forward: of a microbatch.
        first: its first backward.
        later: each other backward.
        forward_layers: the pieces of forward by layer, in order; the front of the stage comes with its first layer.
        backward_layers: those of the first backward, in the order in which they are passed.
    """

    forward: Piece
    first: Piece
    later: Piece
    forward_layers: tuple[Piece, ...]
    backward_layers: tuple[Piece, ...]


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces one after the other."""
    net = peak = 0.0
    for piece in pieces:
        peak = max(peak, net + piece.peak)
        net += piece.net
    return Piece(tuple(one for piece in pieces for one in piece.seconds), net, peak)


def triples_of(kinds: Sequence[int]) -> list[Triple]:
    """Return each layer with what lies beside it.

    Args:
        kinds: those of a stage's layers, with what lies beyond them.
    """
    return [
        (before, kind, behind)
        for (before, kind), (_, behind) in zip(pairwise(kinds), pairwise(kinds[1:]), strict=False)
    ]
