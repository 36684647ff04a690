"""Layouts of `megatron` that are priced together, and the pieces of their steps as columns, one a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from minitrain.operations import SEND
from minitrain.run.analysis.timeline import Floats
from minitrain.search.tuning.orders import BACKWARD, FORWARD, Message, Order, order_of
from minitrain.search.tuning.pieces import EndKey, PassKey, Piece, Pieces, StagePiece, Triple

END_FIGURES = ("load", "cover", "total", "update", "gather", "net", "peak", "weight_shard")
"""What a layer takes beside its passes: seconds, and elements of memory when it is loaded."""

Structure = tuple[int, int, int, str]
"""Ranks of a pipeline, stages a rank, microbatches, and how messages are exchanged."""


@final
@dataclass(frozen=True, slots=True)
class Pipeline:
    """A layout of `megatron`.

    Args:
        passes: what passing through layers depends on.
        ends: what loading and updating depends on.
        pp: ranks of the pipeline.
        stages: the layers of each stage.
        num_microbatches: of a replica and step.
        overlap_replicas: as the option of `megatron`.
        messages: how stages exchange messages, one of `minitrain.search.tuning.orders.MESSAGES`.
    """

    passes: PassKey
    ends: EndKey
    pp: int
    stages: tuple[range, ...]
    num_microbatches: int
    overlap_replicas: bool = False
    messages: str = "plain"

    @property
    def structure(self) -> Structure:
        """What layouts that are priced together have in common."""
        return self.pp, len(self.stages) // self.pp, self.num_microbatches, self.messages

    @property
    def stride(self) -> int:
        """Ranks of a stage."""
        return self.ends.dp * self.ends.tp

    @property
    def gathers_early(self) -> bool:
        """Whether weights are gathered under the first forward."""
        return self.overlap_replicas and self.ends.zero == 1


@final
class Columns:
    """The pieces of some layouts of one structure, as arrays with a column a layout.

    Layouts with the same stages are a block; what is asked of a block is asked of one layout of it and each `PassKey`.

    Args:
        pieces: of the workload.
        layouts: of one structure.
    """

    def __init__(self, pieces: Pieces, layouts: Sequence[Pipeline]) -> None:
        self.pieces, self.layouts = pieces, layouts
        self.pp, self.num_chunks, self.num_microbatches, self.messages = layouts[0].structure
        self.count = len(layouts)
        self.width = max(2, self.count)  # numpy adds a single column up in another order
        self.overlaps = self.wide([layout.overlap_replicas for layout in layouts]) > 0
        self.gathers = self.wide([layout.gathers_early for layout in layouts]) > 0
        by_stages: dict[tuple[range, ...], list[int]] = {}
        for column, layout in enumerate(layouts):
            by_stages.setdefault(layout.stages, []).append(column)
        self.blocks = list(by_stages.items())
        self._chains: dict[Any, Floats] = {}
        self._memory: dict[Any, tuple[Floats, Floats]] = {}
        self._figures: dict[tuple[int, ...], Floats] = {}
        self._bytes: dict[Any, Floats] = {}

    @cached_property
    def order(self) -> Order:
        """What the ranks do."""
        return order_of(self.pp, self.num_chunks, self.num_microbatches, self.messages)

    def wide(self, values: Any) -> Floats:
        """Return values, one a layout, as an array of `width` entries."""
        found = np.zeros(self.width)
        found[: self.count] = values
        return found

    def stages_of(self, place: int) -> range:
        """Return the stages of a place."""
        return range(place, self.pp * self.num_chunks, self.pp)

    def num_layers(self, stage: int) -> int:
        """Return the most layers that a stage has in any layout."""
        return max(len(stages[stage]) for stages, _ in self.blocks)

    def chain(self, code: int, stage: int) -> Floats:
        """Return a pass through a stage, s, (1 + num_operations, width), with place for a clock in the first row."""
        key = code, *(self.pieces.signature(stages[stage]) for stages, _ in self.blocks)
        if key not in self._chains:
            self._chains[key] = self._chained(self._stage_pieces(stage), _PASSES[code, 0])
        return self._chains[key]

    def memory(self, code: int, stage: int, nth: int) -> tuple[Floats, Floats]:
        """Return what a pass adds to memory, and the most that it adds meanwhile, elements, (width,) each."""
        key = code, nth, *(self.pieces.signature(stages[stage]) for stages, _ in self.blocks)
        if key not in self._memory:
            get = _PASSES[code, nth]
            found = [None if one is None else get(one) for one in self._stage_pieces(stage)]
            self._memory[key] = self._sizes(found)
        return self._memory[key]

    def layer_chain(self, code: int, stage: int, number: int) -> Floats:
        """Return the pass through one layer of a stage, like `chain`; the last layer comes first on the way back."""
        key = code, *self._layer_keys(code, stage, number)
        if key not in self._chains:
            self._chains[key] = self._chained(self._stage_pieces(stage), lambda one: _layer(one, code, number))
        return self._chains[key]

    def layer_memory(self, stage: int, number: int) -> tuple[Floats, Floats]:
        """Return what the forward of one layer adds to memory, like `memory`."""
        key = "layer", *self._layer_keys(FORWARD, stage, number)
        if key not in self._memory:
            found = [None if one is None else _layer(one, FORWARD, number) for one in self._stage_pieces(stage)]
            self._memory[key] = self._sizes(found)
        return self._memory[key]

    def figures(self, stage: int, number: int) -> Floats:
        """Return what a layer of a stage takes beside its passes, (len(END_FIGURES), width); 0 beyond the last."""
        kinds = tuple(
            self.pieces.kind(stages[stage][number]) if number < len(stages[stage]) else -1 for stages, _ in self.blocks
        )
        if kinds not in self._figures:
            found = np.zeros((len(END_FIGURES), self.width))
            for kind, (_, columns) in zip(kinds, self.blocks, strict=True):
                for column in columns if kind >= 0 else ():
                    found[:, column] = self.pieces.end_figures(self.layouts[column].ends, kind)
            self._figures[kinds] = found
        return self._figures[kinds]

    def has_layer(self, stage: int, number: int) -> Any:
        """Return which layouts have a layer of a stage, (width,)."""
        found = np.zeros(self.width, dtype=bool)
        for stages, columns in self.blocks:
            found[columns] = number < len(stages[stage])
        return found

    def message_bytes(self, message: Message) -> Floats:
        """Return the bytes of a message, (width,)."""
        direction, sender = message.direction, message.stage + (-1 if message.direction == "F" else 1)
        last = -1 if direction == "F" else 0
        key = direction, *(self.pieces.kind(stages[sender][last]) for stages, _ in self.blocks)
        if key not in self._bytes:
            found = self._bytes[key] = np.zeros(self.width)
            for stages, columns in self.blocks:
                for column in columns:
                    passes = self.layouts[column].passes
                    found[column] = self.pieces.message_bytes(passes, direction, stages[sender])
        return self._bytes[key]

    def message_seconds(self, message: Message) -> Floats:
        """Return how long a message takes, s, (width,)."""
        price, sizes = self.pieces.predictor.p2p, self.message_bytes(message).tolist()
        return self.wide(
            [
                price(SEND, size, message.source * one.stride, message.dest * one.stride).seconds
                for one, size in zip(self.layouts, sizes, strict=False)
            ]
        )

    def _layer_keys(self, code: int, stage: int, number: int) -> list[Any]:
        """Return what the piece of a layer depends on, a key a block: kinds around it, and what precedes the first."""
        return [self._layer_key(stages[stage], code, number) for stages, _ in self.blocks]

    def _layer_key(self, layers: range, code: int, number: int) -> tuple[Triple, int, int] | None:
        if number >= len(layers):
            return None
        place = number if code == FORWARD else len(layers) - 1 - number
        layer, kind = layers[place], self.pieces.kind
        before = kind(layer - 1) if place else -1
        behind = kind(layer + 1) if place + 1 < len(layers) else -1
        return (before, kind(layer), behind), number == 0, number == 0 and layers.start == 0

    def _stage_pieces(self, stage: int) -> list[StagePiece | None]:
        """Return the pieces of a stage, one a layout."""
        found: list[StagePiece | None] = [None] * self.count
        for stages, columns in self.blocks:
            for column in columns:
                found[column] = self.pieces.stage(self.layouts[column].passes, stages[stage])
        return found

    def _chained(self, stages: Sequence[StagePiece | None], get: Callable[[StagePiece], Piece]) -> Floats:
        """Return pieces as columns, with place for a clock above them."""
        pieces = [Piece() if one is None else get(one) for one in stages]
        chain = np.zeros((1 + max(len(piece.seconds) for piece in pieces), self.width))
        for column, piece in enumerate(pieces):
            chain[1 : len(piece.seconds) + 1, column] = piece.seconds
        return chain

    def _sizes(self, pieces: Sequence[Piece | None]) -> tuple[Floats, Floats]:
        """Return what pieces add to memory, and the most that they add meanwhile, elements, (width,) each."""
        known = [piece or Piece() for piece in pieces]
        return self.wide([piece.net for piece in known]), self.wide([piece.peak for piece in known])


def _layer(stage: StagePiece, code: int, number: int) -> Piece:
    """Return one layer of a stage, or nothing beyond the last."""
    pieces = stage.forward_layers if code == FORWARD else stage.backward_layers
    return pieces[number] if number < len(pieces) else Piece()


_PASSES: dict[tuple[int, int], Callable[[StagePiece], Piece]] = {
    (FORWARD, 0): lambda one: one.forward,
    (FORWARD, 1): lambda one: one.forward,
    (BACKWARD, 0): lambda one: one.first,
    (BACKWARD, 1): lambda one: one.later,
}
