"""Cutting the operations of a short run into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minitrain.tuning.piece import EndKey, EndPiece, Passes, PassKey, Piece, Triple, joined, triples_of
from minitrain.tuning.recording import Noted

_INPUT_GRADS = "backward_input"
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_MAIN = {
    "F": frozenset({"forward", "project"}),
    "B": frozenset({"backward", "backward_weight", "backward_keys_values"}),
}
_IN_STEPS = frozenset({"project", "backward_keys_values"})  # ends of an attention whose sequence is on several ranks


def _piece(noted: Sequence[Noted]) -> Piece:
    """Return some operations as a piece; a reduction that was launched beside the second half runs at its time."""
    found, launched = Piece(), 0.0
    for place, one in enumerate(noted):
        seconds: tuple[float, ...] = (one.seconds,)
        if place and noted[place - 1].typ == _INPUT_GRADS and one.typ in _REDUCTIONS:
            seconds, launched = (), one.seconds
        elif one.typ == "backward_weight":
            seconds = (max(one.seconds, launched),)
        found = found.then(Piece(seconds, one.net, one.peak))
    return found


def _elapsed(noted: Sequence[Noted]) -> Piece:
    """Return operations as a piece that lasts as long as all of them: keys and values travel beside what computes."""
    found = joined([Piece((), one.net, one.peak) for one in noted])
    return replace(found, seconds=(noted[-1].start + noted[-1].seconds - noted[0].start,))


class StageReader:
    """Cuts the operations of a rank with one stage into pieces, in the order of 1F1B with two microbatches.

    Args:
        noted: the operations of the rank.
        key: what it was executed with.
        layers: those of its stage.
        num_layers: of the model that was executed.
        kinds: of the layers, with what lies beyond them.
    """

    def __init__(
        self, noted: Sequence[Noted], key: PassKey, layers: range, num_layers: int, kinds: Sequence[int]
    ) -> None:
        self._noted, self._key, self._layers, self._num_layers = noted, key, layers, num_layers
        self._kinds = kinds
        self._place = len(layers)  # behind the loads

    def read(self, passes: Passes, warmup: int) -> None:
        """Add the pieces of the rank."""
        steps = ["F"] * warmup + ["F", "B"] * (2 - warmup) + ["B"] * warmup
        num_backwards = 0
        for step in steps:
            self._front(passes, step)
            backward = passes.later if num_backwards else passes.first
            self._pass(passes.forward if step == "F" else backward, step)
            self._send(passes, step)
            num_backwards += step == "B"

    def _front(self, passes: Passes, step: str) -> None:
        """Read what comes before a step's first layer."""
        border = self._kinds[1] if step == "F" else self._kinds[-2]
        at_end = self._layers.start == 0 if step == "F" else self._layers.stop == self._num_layers
        if not at_end:
            received = self._take()
            front = replace(_piece([received]), seconds=())
            if self._key.scatter_gather and self._key.tp > 1 and not self._key.sequence_parallel:
                front = front.then(_piece([self._take()]))
            passes.fronts[step, border] = front
        elif step == "B":
            passes.fronts["loss", border] = _piece([self._take()])

    def _pass(self, table: dict[Triple, Piece], step: str) -> None:
        """Read a step's layers."""
        layers = list(zip(self._layers, triples_of(self._kinds), strict=True))
        for layer, kinds in layers if step == "F" else reversed(layers):
            noted = [self._take()]
            while noted[-1].typ not in _MAIN[step]:
                noted.append(self._take())
            in_steps = noted[-1].typ in _IN_STEPS
            is_summed = self._key.tp > 1 and (step == "F" or layer > 0)
            if is_summed and noted[-1].typ != "backward_weight":
                noted.append(self._take())
            table[kinds] = _elapsed(noted) if in_steps else _piece(noted)

    def _send(self, passes: Passes, step: str) -> None:
        """Read what a step sends."""
        at_end = self._layers.stop == self._num_layers if step == "F" else self._layers.start == 0
        if not at_end:
            passes.message_bytes[step, self._kinds[-2] if step == "F" else self._kinds[1]] = self._take().size_bytes

    def _take(self) -> Noted:
        """Return the next operation."""
        self._place += 1
        return self._noted[self._place - 1]


def end_piece(noted: Sequence[Noted], place: int, layer: int, key: EndKey) -> tuple[EndPiece, int]:
    """Return what a layer takes beside its passes, and the place behind it."""
    seconds = dict.fromkeys(("cover", "total", "update", "gather"), 0.0)
    wanted = ["cover"] if key.sequence_parallel and key.tp > 1 and layer > 0 else []
    wanted += ["total"] if key.dp > 1 or key.zero else []
    wanted += ["update", *(["gather"] if key.zero else [])]
    for name in wanted:
        seconds[name] = noted[place].seconds
        place += 1
    load = noted[layer]
    return EndPiece(Piece((load.seconds,), load.net, load.peak), **seconds), place
