"""Pieces of a pipeline's step: what passing through one layer takes, in time and in memory, by what lies beside it.

The strategy `megatron` does the same for a layer whatever the number of stages, of microbatches and of replicas. So it
is executed on short pipelines of few layers (`minitrain.tuning.recording`), and what each layer takes is cut out of
their logs. A layer's piece depends on the layers beside it in its stage, as the engine keeps less for a layer whose
input can be made again. Long pipelines are put together from these pieces in `minitrain.tuning.step_times`, by the same
additions in the same order, so that times are those of a whole simulation to the last float. Where ranks share a
sequence, an attention is one piece of as long as its ring takes; then times differ by rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minitrain.tuning.piece import NOTHING, EndKey, EndPiece, Passes, PassKey, Piece, StagePiece, joined, triples_of
from minitrain.tuning.piece_cutting import StageReader, end_piece
from minitrain.tuning.recording import PricesOfFirst, record

_LONGEST = 7
_LONGEST_RING = 4
"""Beyond so many ranks that share a sequence, each further one adds a step like the last."""
_SMALL_LAYERS = 5  # transformer layers of a short pipeline


class Pieces:
    """The pieces of a workload on a machine, which are executed when they are asked for.

    Args:
        workload: what is trained, a transformer.
        predictor: what prices its operations on the whole machine.
        ring: ranks that share a sequence, where fewer stand for them; those of a `PassKey` if None.
    """

    def __init__(self, workload: Any, predictor: Any, ring: int | None = None) -> None:
        self.workload, self._ring = workload, ring
        self._shorter: dict[
            tuple[int, int], Pieces
        ] = {}  # by ranks that share a sequence, and those that stand for them
        self.predictor = predictor.training(workload)
        self._short = _short_workload(workload)
        self._of_short = predictor.training(self._short)
        self._of_neighbours: dict[tuple[int, int], PricesOfFirst] = {}  # by `tp` and `cp`
        self._kind_of: list[int] = [*map(workload.first_like, range(workload.num_layers))]
        self._figures: dict[tuple[EndKey, int], Sequence[float]] = {}
        self._passes: dict[PassKey, Passes] = {}
        self._ends: dict[EndKey, dict[int, EndPiece]] = {}
        self._stages: dict[tuple[PassKey, int, int], StagePiece] = {}

    @property
    def is_short(self) -> bool:
        """Whether a shorter model stands for the workload's."""
        return self._short is not self.workload

    def kind(self, layer: int) -> int:
        """Return the kind of a layer, a number; equal kinds cost the same."""
        return self._kind_of[layer]

    def stage(self, key: PassKey, layers: range) -> StagePiece:
        """Return what a stage takes.

        Raises:
            MinitrainError: the strategy cannot be run so.
        """
        signature = key, *self.signature(layers)
        found = self._stages.get(signature)
        if found is None:
            passes, kinds = self._passes.setdefault(key, Passes()), self._kinds(layers)
            if not passes.has(kinds, self._at_ends(layers)):
                self._execute(key, passes, *self._shortened(layers))
            found = self._stages[signature] = _stage(passes, kinds, layers, self.workload.num_layers)
        return found

    def _at_ends(self, layers: range) -> tuple[bool, bool]:
        """Return whether a stage is the first, and whether it is the last."""
        return layers.start == 0, layers.stop == self.workload.num_layers

    def message_bytes(self, key: PassKey, direction: str, layers: range) -> float:
        """Return the bytes of what a stage sends to the next one ("F") or to the one before ("B")."""
        self.stage(key, layers)
        layer = layers[-1] if direction == "F" else layers[0]
        return self._passes[key].message_bytes[direction, self.kind(layer)]

    def ends(self, key: EndKey) -> dict[int, EndPiece]:
        """Return what each kind of layer takes before and after a rank's steps."""
        if key not in self._ends:
            self._ends[key] = self._executed_ends(key)
        return self._ends[key]

    def _kind_of_short(self, layer: int) -> int:
        """Return the kind, in the whole model, of a layer of the short one."""
        is_head = layer == self._short.num_layers - 1
        return self.kind(self.workload.num_layers - 1) if is_head else int(self._short.first_like(layer))

    def _kinds(self, layers: range) -> list[int]:
        """Return the kinds of a stage's layers, and of what lies beyond them."""
        return [NOTHING, *map(self.kind, layers), NOTHING]

    def signature(self, layers: range) -> tuple[int, int]:
        """Return a key of a stage: those with equal keys have layers of the same kinds."""
        if not self.is_short or layers.start == 0 or layers.stop == self.workload.num_layers:
            return layers.start, layers.stop
        start = 1 + (layers.start - 1) % 2
        return start, start + len(layers)

    def _shortened(self, layers: range) -> tuple[int, int]:
        """Return a stage of the short model that has the same layers at its ends, and all that lie between."""
        if not self.is_short:
            return layers.start, layers.stop
        num_layers, short = self.workload.num_layers, self._short.num_layers
        if len(layers) == num_layers:
            return 0, short
        length = len(layers) if len(layers) <= _LONGEST else _LONGEST - 1 + len(layers) % 2
        if layers.stop == num_layers:
            return short - length, short
        start = layers.start if layers.start == 0 else 3 + (layers.start - 1) % 2
        return start, start + length

    def _execute(self, key: PassKey, passes: Passes, start: int, stop: int) -> None:
        """Execute a pipeline that has a stage of the short model, and keep the pieces of all its stages."""
        if key.cp > _LONGEST_RING:
            self._execute_shorter(key, passes, start, stop)
            return
        num_layers = self._short.num_layers
        borders = sorted({0, start, stop, num_layers})
        stages = [range(*pair) for pair in itertools.pairwise(borders)]
        pp, num_neighbours = len(stages), key.cp * key.tp
        sharing = {"cp": key.cp} if key.cp > 1 else {}
        ring = key.tp, self._ring or key.cp
        prices = self._of_neighbours.setdefault((key.tp, key.cp), PricesOfFirst(self._of_short, num_neighbours, ring))
        noted = record(
            "megatron",
            {"pp": pp, "dp": 1, **sharing, "tp": key.tp},
            frozenset({*sharing, *(("pp",) if pp > 1 else ())}),
            world_size=pp * num_neighbours,
            global_batch_size=2 * key.microbatch_size,
            microbatch_size=key.microbatch_size,
            hardware=prices,
            tp=key.tp,
            pp=pp,
            **sharing,
            layers_per_stage=[len(layers) for layers in stages],
            sequence_parallel=key.sequence_parallel,
            recompute=key.recompute,
            scatter_gather=key.scatter_gather,
            overlap_parts=key.overlap_parts,
            overlap_messages=False,  # so that pieces follow one another
        )
        for place, layers in enumerate(stages):
            operations = noted[place * key.cp]  # all of a ring do the same at the same time
            kinds = [NOTHING, *map(self._kind_of_short, layers), NOTHING]
            StageReader(operations, key, layers, num_layers, kinds).read(passes, min(pp - 1 - place, 2))

    def _execute_shorter(self, key: PassKey, passes: Passes, start: int, stop: int) -> None:
        """Execute rings of fewer ranks with as many tokens a rank, and add the steps that they lack."""
        tokens, found = self.workload.seq_len // key.cp, list[Passes]()
        for cp in (_LONGEST_RING - 1, _LONGEST_RING):
            if (key.cp, cp) not in self._shorter:
                workload = type(self.workload)(self.workload.model, tokens * cp)
                self._shorter[key.cp, cp] = Pieces(workload, self.predictor, key.cp)
            shorter = self._shorter[key.cp, cp]
            found.append(shorter._passes.setdefault(replace(key, cp=cp), Passes()))
            shorter._execute(replace(key, cp=cp), found[-1], start, stop)
        passes.extend(found[0], found[1], key.cp - _LONGEST_RING)

    def end_figures(self, key: EndKey, kind: int) -> Sequence[float]:
        """Return what a kind of layer takes beside its passes, in the order of `layouts.END_FIGURES`."""
        if (key, kind) not in self._figures:
            one = self.ends(key)[kind]
            shard = self.workload.load_bytes(1, 1, kind, key.tp) / key.dp
            times = one.load.seconds[0], one.cover, one.total, one.update, one.gather
            self._figures[key, kind] = (*times, one.load.net, one.load.peak, shard)
        return self._figures[key, kind]

    def _executed_ends(self, key: EndKey) -> dict[int, EndPiece]:
        """Execute a step of one stage, and keep what comes before and after its passes."""
        (noted,) = record(
            "megatron",
            {"pp": 1, "dp": key.dp, "tp": key.tp},
            frozenset(),
            world_size=key.dp * key.tp,
            global_batch_size=key.dp,
            microbatch_size=1,
            hardware=self._of_short,
            tp=key.tp,
            pp=1,
            zero=key.zero,
            sequence_parallel=key.sequence_parallel,
        )
        num_layers, found = self._short.num_layers, {}
        behind = [one.typ for one in noted]
        place = len(behind) - behind[::-1].index("backward")  # after the backward of layer 0
        for layer in range(num_layers):
            found[self._kind_of_short(layer)], place = end_piece(noted, place, layer, key)
        return found


def _short_workload(workload: Any) -> Any:
    """Return a workload of fewer layers of the same kinds, or the same one where layers differ otherwise."""
    num_layers = workload.num_layers
    usual = [0, *[1 + (layer - 1) % 2 for layer in range(1, num_layers - 1)], num_layers - 1]
    if [workload.first_like(layer) for layer in range(num_layers)] != usual or num_layers <= 2 * _SMALL_LAYERS + 2:
        return workload
    short: Any = type(workload)(replace(workload.model, num_layers=_SMALL_LAYERS), workload.seq_len)
    same = all(_unit_like(short.units[layer]) == _unit_like(workload.units[layer]) for layer in range(3))
    return short if same and _unit_like(short.units[-1]) == _unit_like(workload.units[-1]) else workload


def _unit_like(unit: Any) -> Any:
    """Return a unit without its place."""
    return replace(unit, layer=None)


def _stage(passes: Passes, kinds: Sequence[int], layers: range, num_layers: int) -> StagePiece:
    """Put a stage together."""
    triples = triples_of(kinds)
    front = passes.fronts[("F", kinds[1])] if layers.start else Piece()
    forward_layers = [passes.forward[triple] for triple in triples]
    forward_layers[0] = front.then(forward_layers[0])
    backs = []
    for table in (passes.first, passes.later):
        pieces = [table[triple] for triple in reversed(triples)]
        behind = passes.fronts[("loss" if layers.stop == num_layers else "B", kinds[-2])]
        pieces[0] = behind.then(pieces[0])
        backs.append(pieces)
    return StagePiece(
        joined(forward_layers),
        joined(backs[0]),
        joined(backs[1]),
        tuple(forward_layers),
        tuple(backs[0]),
    )
