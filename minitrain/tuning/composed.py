"""Steps of many layouts at once, put together from pieces: their times and memories as arrays.

Layouts with one pipeline (ranks, stages a rank, microbatches) take their steps in one order. So their clocks are an
array with a column a layout, and one pass through the order prices all of them. Each column is made of the same
additions, in the same order, as a simulation of that layout: a piece that a layout lacks adds 0.0, which changes no
float. Columns of zeros at the end of a shorter stage do the same.

Waiting and energy are sums in another order, and may differ in the last digits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from minitrain.analysis.timeline import Floats
from minitrain.events import SEND
from minitrain.tuning.orders import Asked, Message, orders
from minitrain.tuning.pieces import EndKey, PassKey, Piece, Pieces, StagePiece, joined

_NEVER = -np.inf


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
        overlap_replicas: as the option of `megatron`; so the next.
        overlap_messages: as the option.
    """

    passes: PassKey
    ends: EndKey
    pp: int
    stages: tuple[range, ...]
    num_microbatches: int
    overlap_replicas: bool = False
    overlap_messages: bool = False

    @property
    def structure(self) -> tuple[int, int, int, bool]:
        """What layouts that are priced together have in common."""
        return self.pp, len(self.stages) // self.pp, self.num_microbatches, self.overlap_messages

    @property
    def stride(self) -> int:
        """Ranks of a stage."""
        return self.ends.dp * self.ends.tp


@final
@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of some layouts, an entry each.

    Args:
        step_time: s.
        peak_memory: of the fullest rank, elements.
        busy_s: computing or communicating, over all ranks, s.
    """

    step_time: Floats
    peak_memory: Floats
    busy_s: Floats


def steps_of(pieces: Pieces, layouts: Sequence[Pipeline], *, only_memory: bool = False) -> Steps:
    """Return the steps of layouts of one structure.

    Raises:
        MinitrainError: the strategy cannot be run so.
    """
    batch = _Batch(pieces, layouts)
    peaks = batch.peaks()
    if only_memory:
        nothing = np.zeros(len(layouts))
        return Steps(nothing, peaks, nothing)
    return _Clocks(batch).run(peaks)


class _Batch:
    """The pieces of some layouts of one structure."""

    def __init__(self, pieces: Pieces, layouts: Sequence[Pipeline]) -> None:
        self.pieces, self.layouts = pieces, layouts
        self.pp, self.num_chunks, self.num_microbatches, self.overlap_messages = layouts[0].structure
        self.asked = orders(self.pp, self.num_chunks, self.num_microbatches, overlap_messages=self.overlap_messages)
        self.stages: list[list[StagePiece]] = [
            [pieces.stage(layout.passes, layout.stages[stage]) for layout in layouts]
            for stage in range(self.pp * self.num_chunks)
        ]
        self.ends = [pieces.ends(layout.ends) for layout in layouts]
        self.overlaps = np.array([layout.overlap_replicas for layout in layouts])

    def layers_of(self, place: int, column: int) -> list[int]:
        """Return the layers of a rank, in the order in which they are loaded."""
        stages = self.layouts[column].stages[place :: self.pp]
        return [layer for layers in stages for layer in layers]

    def message(self, tag: Hashable) -> tuple[str, int]:
        """Return the direction of a message and the stage that takes it."""
        assert isinstance(tag, tuple)
        return tag[0], tag[1]

    def message_bytes(self, direction: str, stage: int) -> Floats:
        """Return the bytes of the messages that a stage takes, (num_layouts,)."""
        found = [
            self.pieces.message_bytes(layout.passes, *_border(layout, direction, stage)) for layout in self.layouts
        ]
        return np.array(found, dtype=float)

    def message_seconds(self, source: int, dest: int, sizes: Floats) -> Floats:
        """Return how long a message between two places takes, s, (num_layouts,)."""
        price = self.pieces.predictor.p2p
        pairs = zip(self.layouts, sizes.tolist(), strict=True)
        return np.array(
            [price(SEND, size, source * one.stride, dest * one.stride).seconds for one, size in pairs], dtype=float
        )

    def peaks(self) -> Floats:
        """Return the peak memory of the fullest rank, elements, (num_layouts,)."""
        peaks: Floats = np.max([self._peaks_of(place) for place in range(self.pp)], axis=0)
        return peaks

    def _peaks_of(self, place: int) -> Floats:
        """Return the peak memory of one place, elements."""
        loads = [self._loaded(place, column) for column in range(len(self.layouts))]
        base, most = (np.array([getattr(load, name) for load in loads]) for name in ("net", "peak"))
        nets, tops = _MemoryOrder(self, place).rows()
        before = np.cumsum(np.vstack([base, nets]), axis=0)
        peaks: Floats = np.maximum(most, (before[:-1] + tops).max(axis=0, initial=0.0))
        return peaks

    def _loaded(self, place: int, column: int) -> Piece:
        """Return what loading a rank's layers does to memory."""
        layout, ends = self.layouts[column], self.ends[column]
        early = layout.overlap_replicas and layout.ends.zero
        found = []
        for layer in self.layers_of(place, column):
            load = ends[self.pieces.kind(layer)].load
            found.append(load if not early else self._sharded(load, layer, layout))
        return joined(found)

    def _sharded(self, load: Piece, layer: int, layout: Pipeline) -> Piece:
        """Return a load whose weight is kept in shards, and gathered at once."""
        net = load.net + self.shard_elements(layer, layout)
        return Piece(load.seconds, net, max(load.peak, net))

    def shard_elements(self, layer: int, layout: Pipeline) -> float:
        """Return what a shard of a layer's weight holds, elements."""
        size: float = self.pieces.workload.load_bytes(1, 1, layer, layout.ends.tp)
        return size / layout.ends.dp


def _border(layout: Pipeline, direction: str, stage: int) -> tuple[str, int]:
    """Return the direction of a message, and the layer of the stage that sends it."""
    if direction == "F":
        return direction, layout.stages[stage - 1][-1]
    return direction, layout.stages[stage + 1][0]


class _MemoryOrder:
    """What memory of one place does, in its order of steps."""

    def __init__(self, batch: _Batch, place: int) -> None:
        self._batch, self._place = batch, place
        self._kinds: dict[Hashable, int] = {}
        self._rows: list[tuple[Floats, Floats]] = []
        self._held: dict[Any, tuple[str, int]] = {}

    def rows(self) -> tuple[Floats, Floats]:
        """Return what each step adds, and the most that it adds meanwhile, elements, (num_steps, num_layouts)."""
        counts: dict[tuple[str, int], int] = defaultdict(int)
        order = []
        for one in self._batch.asked[self._place]:
            if one.message is not None:
                order += self._message(one)
                continue
            nth = min(counts[one.typ, one.stage], 1)
            counts[one.typ, one.stage] += 1
            order.append(self._row((one.typ, one.stage, nth)))
        nets, tops = (np.stack(part) for part in zip(*self._rows, strict=True))
        return nets[order], tops[order]

    def _row(self, key: Any) -> int:
        """Return the place of what is done, among the different rows."""
        if key not in self._kinds:
            self._kinds[key] = len(self._rows)
            pieces = [self._piece(key, column) for column in range(len(self._batch.layouts))]
            self._rows.append((np.array([one.net for one in pieces]), np.array([one.peak for one in pieces])))
        return self._kinds[key]

    def _piece(self, key: Any, column: int) -> Piece:
        """Return what a step does to memory."""
        typ, stage, nth = key
        found, layout = self._batch.stages[stage][column], self._batch.layouts[column]
        if typ == "backward":
            return found.later if nth else found.first
        if nth or not (layout.overlap_replicas and layout.ends.zero):
            return found.forward
        parts = []
        for layer, piece in zip(layout.stages[stage], found.forward_layers, strict=True):
            parts += [Piece(net=-self._batch.shard_elements(layer, layout)), piece]
        return joined(parts)

    def _message(self, one: Asked) -> list[int]:
        """Return what a message that is launched does to memory: it counts until somebody waits for it."""
        if one.typ != "wait" and not one.is_launched:
            return []
        assert one.message is not None
        direction, stage = self._batch.message(one.message[2])
        key = ("message", direction, stage, one.typ == "wait")
        if key not in self._kinds:
            sizes = self._batch.message_bytes(direction, stage)
            self._kinds[key] = len(self._rows)
            self._rows.append((-sizes if one.typ == "wait" else sizes, np.zeros_like(sizes) if one.typ == "wait" else sizes))
        return [self._kinds[key]]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Something that a place does.

    Args:
        place: which.
        asked: what.
        nth: how often it has passed this stage in this direction before.
    """

    place: int
    asked: Asked
    nth: int


@lru_cache(maxsize=16)
def _turns(pp: int, num_chunks: int, num_microbatches: int, overlap_messages: bool) -> tuple[_Turn, ...]:
    """Return what all places do, each thing after all that it waits for."""
    asked = orders(pp, num_chunks, num_microbatches, overlap_messages=overlap_messages)
    counts: dict[tuple[str, int], int] = defaultdict(int)
    sent: set[Any] = set()
    waiting: dict[Any, int] = {}
    submitted: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    positions, found, ready = [0] * pp, [], list(range(pp))
    while ready:
        place = ready.pop()
        for one in asked[place][positions[place] :]:
            lacking = _lacking(place, one, submitted, sent)
            if lacking is not None:
                waiting[lacking] = place
                break
            positions[place] += 1
            found.append(_Turn(place, one, counts[one.typ, one.stage]))
            counts[one.typ, one.stage] += 1
            if one.typ == "send":
                sent.add(one.message)
                if one.message in waiting:
                    ready.append(waiting.pop(one.message))
    return tuple(found)


def _lacking(
    place: int, one: Asked, submitted: dict[tuple[int, int], deque[Message]], sent: set[Message]
) -> Message | None:
    """Return a message that must be sent first: receives from one peer are done in the order they were submitted."""
    if one.message is None or one.typ == "send" or one.message[1] != place:
        return None
    stream = submitted[one.message[:2]]
    if one.typ == "receive" and one.message not in stream:
        stream.append(one.message)
    if one.is_launched:
        return None
    while stream and stream[0] in sent and one.message in stream:
        stream.popleft()
    return stream[0] if one.message in stream else None


class _Clocks:
    """The clocks of all places of a batch, (num_layouts,) each."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._count = len(batch.layouts)
        width = max(2, self._count)  # numpy adds a single column up in another order
        self._width = width
        self._time = [np.zeros(width) for _ in range(batch.pp)]
        self._waited = [np.zeros(width) for _ in range(batch.pp)]
        self._carried: dict[Any, Floats] = {}
        self._submitted: dict[tuple[int, int], deque[tuple[Message, Floats]]] = defaultdict(deque)
        self._busy: dict[Any, Floats] = defaultdict(lambda: np.zeros(width))
        self._ends: dict[Any, Floats] = {}
        self._seconds: dict[Any, Floats] = {}
        self._chains: dict[tuple[str, int], Floats] = {}
        self._summing = [np.zeros(width) for _ in range(batch.pp)]  # when the replicas' stream is free
        self._gathered: dict[tuple[int, int, int], Floats] = {}
        self._reduced: dict[tuple[int, int, int], Floats] = {}

    def run(self, peaks: Floats) -> Steps:
        """Let all places do all they do."""
        batch = self._batch
        for place in range(batch.pp):
            self._load(place)
        for turn in _turns(*batch.layouts[0].structure):
            self._do(turn)
        for place in range(batch.pp):
            self._update(place)
        steps = np.max(self._time, axis=0)
        strides = np.array([layout.stride for layout in batch.layouts])
        waited = sum(steps - time + wait for time, wait in zip(self._time, self._waited, strict=True))
        busy = strides * (batch.pp * steps - waited)[: self._count]
        return Steps(steps[: self._count], peaks, busy)

    def _do(self, turn: _Turn) -> None:
        """Do one thing."""
        one, place = turn.asked, turn.place
        if one.message is None:
            self._pass(turn)
        elif one.typ == "send":
            self._send(place, one)
        elif not self._batch.overlap_messages:
            self._receive(place, one)
        else:
            self._receive_in_order(place, one)

    def _send(self, place: int, one: Asked) -> None:
        """Send a message, which carries the clock of its departure."""
        assert one.message is not None
        source, dest, tag = one.message
        seconds, time = self._message_seconds(source, dest, tag), self._time[place]
        if not one.is_launched:
            self._carried[one.message] = time.copy()
            time += seconds
            return
        busy = self._busy["send", source, dest]
        np.maximum(time, busy, out=busy)
        self._carried[one.message] = busy.copy()
        busy += seconds
        self._ends["send", one.message] = busy.copy()

    def _receive(self, place: int, one: Asked) -> None:
        """Receive a message that is there."""
        assert one.message is not None
        time, carried = self._time[place], self._carried.pop(one.message)
        self._wait(place, carried)
        np.maximum(time, carried, out=time)
        time += self._message_seconds(*one.message)

    def _receive_in_order(self, place: int, one: Asked) -> None:
        """Submit a receive, or wait for one, or for a send; receives from one peer follow one another."""
        assert one.message is not None
        time, stream = self._time[place], self._submitted[one.message[:2]]
        if one.typ == "receive":
            stream.append((one.message, time.copy()))
        if one.is_launched:
            return
        kind = "receive" if one.message[1] == place else "send"
        while (kind, one.message) not in self._ends:
            self._settle(*stream.popleft(), place)
        np.maximum(time, self._ends.pop((kind, one.message)), out=time)

    def _settle(self, message: Message, submitted: Floats, place: int) -> None:
        """Receive the next message of a stream."""
        source, dest, _ = message
        start = np.maximum(np.maximum(submitted, self._carried.pop(message)), self._busy["receive", source, dest])
        self._wait(place, start)
        self._ends["receive", message] = self._busy["receive", source, dest] = start + self._message_seconds(*message)

    def _wait(self, place: int, until: Floats) -> None:
        """Note that a place waits, unless it sums gradients or sends meanwhile."""
        begin = np.maximum(self._time[place], self._summing[place])
        for other in range(self._batch.pp) if self._batch.overlap_messages else ():
            for stream in (("send", place, other), ("receive", other, place)):
                if stream in self._busy:
                    np.maximum(begin, self._busy[stream], out=begin)
        self._waited[place] += np.maximum(until - begin, 0)

    def _message_seconds(self, source: int, dest: int, tag: Hashable) -> Floats:
        """Return how long a message takes, s."""
        direction, stage = self._batch.message(tag)
        key = source, dest, direction, stage
        if key not in self._seconds:
            sizes = self._batch.message_bytes(direction, stage)
            self._seconds[key] = self._wide(self._batch.message_seconds(source, dest, sizes))
        return self._seconds[key]

    def _pass(self, turn: _Turn) -> None:
        """Pass through a stage."""
        typ, stage, place = turn.asked.typ, turn.asked.stage, turn.place
        last = self._batch.num_microbatches - 1
        if self._batch.overlaps.any() and turn.nth == (0 if typ == "forward" else last):
            (self._first_forward if typ == "forward" else self._last_backward)(place, stage)
            return
        if (typ, stage) not in self._chains:
            pieces = self._batch.stages[stage]
            self._chains[typ, stage] = self._chain([one.forward if typ == "forward" else one.first for one in pieces])
        self._add(place, self._chains[typ, stage])

    def _add(self, place: int, chain: Floats) -> None:
        """Let operations follow one another: their sum, from the clock on."""
        chain[0] = self._time[place]
        np.add.reduce(chain, axis=0, out=self._time[place])

    def _chain(self, pieces: Sequence[Piece]) -> Floats:
        """Return pieces, one a layout, as columns, with place for a clock above them."""
        most = max(len(piece.seconds) for piece in pieces)
        chain = np.zeros((most + 1, self._width))
        for column, piece in enumerate(pieces):
            chain[1 : len(piece.seconds) + 1, column] = piece.seconds
        return chain

    def _wide(self, values: Any) -> Floats:
        """Return a value a layout, with what a single one needs beside it."""
        found = np.zeros(self._width)
        found[: self._count] = values
        return found

    def _layers(self, stage: int) -> int:
        """Return the most layers that a stage has in any layout."""
        return max(len(layout.stages[stage]) for layout in self._batch.layouts)

    def _of_layers(self, stage: int, number: int, name: str) -> Floats:
        """Return a figure of the number-th layer of a stage, by layout; 0 where there is none."""
        found = np.zeros(self._width)
        for column, layout in enumerate(self._batch.layouts):
            if number < len(layout.stages[stage]):
                kind = self._batch.pieces.kind(layout.stages[stage][number])
                found[column] = getattr(self._batch.ends[column][kind], name)
        return found

    def _has(self, stage: int, number: int) -> Any:
        """Return which layouts have the number-th layer of a stage."""
        return self._wide([number < len(layout.stages[stage]) for layout in self._batch.layouts]) > 0

    def _stages_of(self, place: int) -> range:
        """Return the stages of a place."""
        return range(place, self._batch.pp * self._batch.num_chunks, self._batch.pp)

    def _load(self, place: int) -> None:
        """Load the layers of a place; some layouts begin to gather them."""
        gathers = self._wide([one.overlap_replicas and one.ends.zero for one in self._batch.layouts]) > 0
        for stage in self._stages_of(place):
            for number in range(self._layers(stage)):
                time, busy = self._time[place], self._summing[place]
                time += self._load_seconds(stage, number)
                if gathers.any():
                    np.maximum(time, busy, out=busy, where=gathers)
                    busy += np.where(gathers, self._of_layers(stage, number, "gather"), 0.0)
                    is_there = gathers & self._has(stage, number)
                    self._gathered[place, stage, number] = np.where(is_there, busy, _NEVER)

    def _load_seconds(self, stage: int, number: int) -> Floats:
        """Return how long loading a layer takes."""
        found = np.zeros(self._width)
        for column, layout in enumerate(self._batch.layouts):
            if number < len(layout.stages[stage]):
                kind = self._batch.pieces.kind(layout.stages[stage][number])
                found[column] = self._batch.ends[column][kind].load.seconds[0]
        return found

    def _first_forward(self, place: int, stage: int) -> None:
        """Pass forward for the first time, layer by layer, each as soon as its weight is gathered."""
        time = self._time[place]
        for number in range(self._layers(stage)):
            gathered = self._gathered.get((place, stage, number))
            if gathered is not None:
                np.maximum(time, gathered, out=time)
            self._add(place, self._chain([_nth(one.forward_layers, number) for one in self._batch.stages[stage]]))

    def _last_backward(self, place: int, stage: int) -> None:
        """Pass back for the last time, layer by layer; some layouts begin to sum each gradient at once."""
        time, busy, overlaps = self._time[place], self._summing[place], self._wide(self._batch.overlaps) > 0
        for number in range(self._layers(stage)):
            self._add(place, self._chain([_nth(one.backward_layers, number) for one in self._batch.stages[stage]]))
            ends = [_end_of(batch_ends, self._batch.pieces, layout.stages[stage], number)
                    for batch_ends, layout in zip(self._batch.ends, self._batch.layouts, strict=True)]
            time += np.where(overlaps, self._wide([0.0 if one is None else one.cover for one in ends]), 0.0)
            is_there = overlaps & (self._wide([one is not None for one in ends]) > 0)
            np.maximum(time, busy, out=busy, where=is_there)
            busy += np.where(is_there, self._wide([0.0 if one is None else one.total for one in ends]), 0.0)
            for column in np.flatnonzero(is_there).tolist():
                layer = self._batch.layouts[column].stages[stage][len(self._batch.layouts[column].stages[stage]) - 1 - number]
                self._reduced.setdefault((place, stage, layer), np.full(self._width, _NEVER))[column] = busy[column]

    def _update(self, place: int) -> None:
        """Sum gradients, update, and gather weights, layer by layer."""
        time, overlaps = self._time[place], self._wide(self._batch.overlaps) > 0
        for stage in self._stages_of(place):
            for number in range(self._layers(stage)):
                sums = np.full(self._width, _NEVER)
                for column, layout in enumerate(self._batch.layouts):
                    if number < len(layout.stages[stage]):
                        reduced = self._reduced.get((place, stage, layout.stages[stage][number]))
                        sums[column] = _NEVER if reduced is None else reduced[column]
                np.maximum(time, sums, out=time)
                for name in ("cover", "total"):
                    time += np.where(overlaps, 0.0, self._of_layers(stage, number, name))
                time += self._of_layers(stage, number, "update")
                time += np.where(overlaps, 0.0, self._of_layers(stage, number, "gather"))


def _nth(pieces: Sequence[Piece], number: int) -> Piece:
    """Return one of some pieces, or nothing beyond the last."""
    return pieces[number] if number < len(pieces) else Piece()


def _end_of(ends: Any, pieces: Pieces, layers: range, number: int) -> Any:
    """Return what the number-th layer from behind takes beside its passes; None beyond the first."""
    return ends[pieces.kind(layers[len(layers) - 1 - number])] if number < len(layers) else None
