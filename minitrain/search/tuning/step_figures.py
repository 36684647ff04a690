"""The step times of many layouts at once: one pass through the order of a pipeline, with clocks as arrays.

Each column is made of the same additions, in the same order, as a simulation of that layout. What a layout lacks adds
0.0, which changes no float. Waiting, and so energy, is a sum in another order, and may differ in its last digits;
where messages are launched, it may be off by the time that a message takes during a wait.

The peak memory of many layouts at once, from what each piece adds and takes, and what their devices must hold.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from minitrain.run.analysis.timeline import Floats
from minitrain.run.device_memory import DeviceMemory, bytes_of_rounding
from minitrain.search.tuning.layouts import END_FIGURES, Columns
from minitrain.search.tuning.orders import BACKWARD, FORWARD, LAUNCHED, RECEIVE, SEND, WAIT, Order, order_of

_LOAD, _COVER, _TOTAL, _UPDATE, _GATHER = (
    END_FIGURES.index(name) for name in ("load", "cover", "total", "update", "gather")
)
_NEVER = -np.inf


@final
@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of some layouts, an entry each.

    Args:
        step_time: s.
        busy_s: computing or communicating, over all ranks, s.
    """

    step_time: Floats
    busy_s: Floats


def steps_of(columns: Columns) -> Steps:
    """Return the steps of layouts of one structure."""
    return _Clocks(columns).run()


class _Clocks:
    """The clocks of all places, (width,) each, and the messages and collectives that are under way."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._messages = columns.order.messages
        self._time = [np.zeros(columns.width) for _ in range(columns.pp)]
        self._waited = [np.zeros(columns.width) for _ in range(columns.pp)]
        self._summing = [np.zeros(columns.width) for _ in range(columns.pp)]  # when the replicas' stream is free
        self._carried: list[Any] = [None] * len(self._messages)  # the clocks that messages carry
        self._ends: dict[tuple[bool, int], Floats] = {}  # of launched sends (True) and of receives
        self._busy: dict[tuple[int, int, bool], Floats] = defaultdict(lambda: np.zeros(columns.width))
        self._submitted: dict[tuple[int, int], deque[tuple[int, Floats]]] = defaultdict(deque)
        self._gathered: dict[tuple[int, int], Floats] = {}
        self._reduced: dict[tuple[int, int], Floats] = {}
        self._seconds = self._seconds_of_messages()
        self._overlaps = bool(columns.overlaps.any())

    def _seconds_of_messages(self) -> list[Floats]:
        """Return how long each message takes; equal ones share an array."""
        known: dict[Any, Floats] = {}
        for message in self._messages:
            if message not in known:
                known[message] = self._columns.message_seconds(message)
        return [known[message] for message in self._messages]

    def run(self) -> Steps:
        """Take the steps of all places."""
        columns = self._columns
        begin = self._load()
        for place in range(columns.pp):
            self._gather(place)
        self._take_turns()
        for place in range(columns.pp):
            self._update(place)
        ends: Floats = np.max(self._time, axis=0)
        waited: Any = sum(ends - time + wait for time, wait in zip(self._time, self._waited, strict=True))
        strides, steps = columns.wide([layout.stride for layout in columns.layouts]), ends - begin
        busy = strides * (columns.pp * steps - waited)
        return Steps(steps[: columns.count], busy[: columns.count])

    def _take_turns(self) -> None:
        """Take the turns of all places."""
        columns = self._columns
        chains = {
            code: [columns.chain(code, stage) for stage in range(columns.pp * columns.num_chunks)]
            for code in (FORWARD, BACKWARD)
        }
        for code, place, number, is_special in columns.order.turns():
            if code > BACKWARD:
                self._message(code, place, number)
            elif is_special and self._overlaps:
                self._pass_by_layer(code, place, number)
            else:
                chain, time = chains[code][number], self._time[place]
                chain[0] = time
                np.add.reduce(chain, axis=0, out=time)

    def _message(self, code: int, place: int, number: int) -> None:
        """Send, receive or wait."""
        time = self._time[place]
        if code == SEND:
            self._carried[number] = time.copy()
            time += self._seconds[number]
        elif code == SEND + LAUNCHED:
            self._launch(place, number)
        elif self._columns.messages == "plain":
            carried, self._carried[number] = self._carried[number], None
            self._wait(place, carried)
            np.maximum(time, carried, out=time)
            time += self._seconds[number]
        else:
            self._receive_in_order(code, place, number)

    def _launch(self, place: int, number: int) -> None:
        """Send beside what follows, once the stream is free."""
        busy = self._busy[place, self._messages[number].dest, True]
        np.maximum(self._time[place], busy, out=busy)
        self._carried[number] = busy.copy()
        busy += self._seconds[number]
        self._ends[True, number] = busy.copy()

    def _receive_in_order(self, code: int, place: int, number: int) -> None:
        """Submit a receive, or wait for one, or for a send; receives from one peer follow one another."""
        time, message = self._time[place], self._messages[number]
        stream = self._submitted[message.source, message.dest]
        if code in (RECEIVE, RECEIVE + LAUNCHED):
            stream.append((number, time.copy()))
        if code == RECEIVE + LAUNCHED:
            return
        key = message.source == place, number
        while key not in self._ends:
            self._settle(*stream.popleft(), place)
        np.maximum(time, self._ends.pop(key), out=time)

    def _settle(self, number: int, submitted: Floats, place: int) -> None:
        """Receive the next message of a stream."""
        stream = self._messages[number].source, place, False
        start = np.maximum(submitted, self._carried[number], out=submitted)
        np.maximum(start, self._busy[stream], out=start)
        self._carried[number] = None
        self._wait(place, start)
        self._ends[False, number] = self._busy[stream] = start + self._seconds[number]

    def _wait(self, place: int, until: Floats) -> None:
        """Note that a place waits, unless it sums gradients or messages are under way meanwhile."""
        begin = np.maximum(self._time[place], self._summing[place])
        for (source, dest, is_sent), busy in self._busy.items():
            if place == (source if is_sent else dest):
                np.maximum(begin, busy, out=begin)
        np.subtract(until, begin, out=begin)
        self._waited[place] += np.maximum(begin, 0.0, out=begin)

    def _load(self) -> Floats:
        """Load the layers of all places, and return when steps begin: at 0 where places load for unequal times."""
        columns = self._columns
        for place in range(columns.pp):
            for stage in columns.stages_of(place):
                for number in range(columns.num_layers(stage)):
                    self._time[place] += columns.figures(stage, number)[_LOAD]
        begin: Floats = np.where([time == self._time[0] for time in self._time], self._time[0], 0.0).min(axis=0)
        for time in self._time:
            time[:] = begin
        return begin

    def _gather(self, place: int) -> None:
        """Begin to gather the layers of a place, in some layouts."""
        columns, time, busy = self._columns, self._time[place], self._summing[place]
        gathers = columns.gathers
        for stage in columns.stages_of(place) if gathers.any() else ():
            for number in range(columns.num_layers(stage)):
                is_there = gathers & columns.has_layer(stage, number)
                np.maximum(time, busy, out=busy, where=is_there)
                busy += np.where(is_there, columns.figures(stage, number)[_GATHER], 0.0)
                self._gathered[stage, number] = np.where(is_there, busy, _NEVER)

    def _pass_by_layer(self, code: int, place: int, stage: int) -> None:
        """Pass for the first time forward, as weights are gathered; or for the last time back, and sum gradients."""
        columns, time = self._columns, self._time[place]
        for number in range(columns.num_layers(stage)):
            if code == FORWARD and (stage, number) in self._gathered:
                np.maximum(time, self._gathered[stage, number], out=time)
            chain = columns.layer_chain(code, stage, number)
            chain[0] = time
            np.add.reduce(chain, axis=0, out=time)
            if code == BACKWARD:
                self._sum(place, stage, number)

    def _sum(self, place: int, stage: int, number: int) -> None:
        """Begin to sum the gradient of the number-th layer from behind over replicas, where that is overlapped."""
        columns, time, busy = self._columns, self._time[place], self._summing[place]
        for stages, members in columns.blocks:
            layer = len(stages[stage]) - 1 - number
            if layer < 0:
                continue
            chosen = np.array([column for column in members if columns.overlaps[column]], dtype=int)
            figures = columns.figures(stage, layer)[:, chosen]
            time[chosen] += figures[_COVER]
            busy[chosen] = np.maximum(time[chosen], busy[chosen]) + figures[_TOTAL]
            reduced = self._reduced.setdefault((stage, layer), np.full(columns.width, _NEVER))
            reduced[chosen] = busy[chosen]

    def _update(self, place: int) -> None:
        """Sum gradients, update, and gather weights, layer by layer."""
        columns, time = self._columns, self._time[place]
        late = ~columns.overlaps
        for stage in columns.stages_of(place):
            for number in range(columns.num_layers(stage)):
                figures = columns.figures(stage, number)
                if (stage, number) in self._reduced:
                    np.maximum(time, self._reduced[stage, number], out=time)
                np.add(time, figures[_COVER], out=time, where=late)
                np.add(time, figures[_TOTAL], out=time, where=late)
                time += figures[_UPDATE]
                np.add(time, figures[_GATHER], out=time, where=late)


_NET, _PEAK, _SHARD = (END_FIGURES.index(name) for name in ("net", "peak", "weight_shard"))
_PERIODS = 3
"""Rounds of microbatches after which memory repeats: one to fill the pipeline, one that is steady, one to empty it."""


def peaks_of(columns: Columns) -> tuple[Floats, Floats]:
    """Return what tensors of the fullest rank of each layout take, and what its device must hold, bytes.

    Returns:
        Two arrays, (num_layouts,) each: the second has what `minitrain.run.device_memory` counts as needed.
    """
    order = order_of(columns.pp, columns.num_chunks, _num_microbatches(columns), columns.messages)
    of_places = [_of_place(columns, order, place) for place in range(columns.pp)]
    tensors, needed = np.max(of_places, axis=0)[:, : columns.count] * columns.pieces.workload.bytes_per_element
    return tensors, needed


def _num_microbatches(columns: Columns) -> int:
    """Return as few microbatches as have the same peak."""
    return min(columns.num_microbatches, _PERIODS * columns.pp)


def _of_place(columns: Columns, order: Order, place: int) -> tuple[Floats, Floats]:
    """Return the peak memory of one place, without and with what is no tensor of the run, elements, (width,) each."""
    base, most = _loaded(columns, place)
    steps, keys = _steps(order, place)
    rows = [_row(columns, order, key) for key in keys]
    nets, tops = (np.stack(part)[steps] for part in zip(*rows, strict=True))
    before = np.cumsum(np.vstack([base, nets]), axis=0)
    tensors: Floats = np.maximum(most, (before[:-1] + tops).max(axis=0, initial=0.0))
    return tensors, tensors + _beside(columns, place)


def _beside(columns: Columns, place: int) -> Floats:
    """Return what a place's device must hold beside tensors, elements, (width,)."""
    workload = columns.pieces.workload
    found = np.zeros(columns.width)
    for stages, of_layouts in columns.blocks:
        layers = [layer for stage in columns.stages_of(place) for layer in stages[stage]]
        for column in of_layouts:
            ends, cp = columns.layouts[column].ends, columns.layouts[column].passes.cp
            memory = DeviceMemory(
                rank=place,
                peak_bytes=0.0,
                held_bytes=0.0,
                rounding_bytes=bytes_of_rounding(workload, layers),
                num_groups=(ends.tp > 1) + (ends.dp > 1) + (columns.pp > 1 or cp > 1),
            )
            found[column] = memory.beside_bytes / workload.bytes_per_element
    return found


def _loaded(columns: Columns, place: int) -> tuple[Floats, Floats]:
    """Return what a place holds once its layers are loaded, and the most until then."""
    base, most = np.zeros(columns.width), np.zeros(columns.width)
    for stage in columns.stages_of(place):
        for number in range(columns.num_layers(stage)):
            figures = columns.figures(stage, number)
            net = figures[_NET] + np.where(columns.gathers, figures[_SHARD], 0.0)
            most = np.maximum(most, base + np.maximum(figures[_PEAK], net))
            base = base + net
    return base, most


@lru_cache(maxsize=4096)
def _steps_of(asked: tuple[tuple[int, int], ...]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the steps of a place as indices into the distinct ones, and the distinct ones."""
    numbers: dict[tuple[int, int, int], int] = {}
    seen: set[tuple[int, int]] = set()
    steps = []
    for code, what in asked:
        if code in (SEND, RECEIVE):
            continue
        nth = 1 if (code, what) in seen else 0
        seen.add((code, what))
        steps.append(numbers.setdefault((code, what, nth), len(numbers)))
    return steps, list(numbers)


def _steps(order: Order, place: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the steps of a place; messages of one kind are one step."""
    asked: list[tuple[int, int]] = []
    first: dict[Hashable, int] = {}
    for code, what in order.asked[place]:
        if code in (FORWARD, BACKWARD, SEND, RECEIVE):
            asked.append((code, what))
        else:
            message = order.messages[what]
            kind = message.direction, message.stage, message.dest == place
            asked.append((code, first.setdefault(kind, what)))
    return _steps_of(tuple(asked))


def _row(columns: Columns, order: Order, key: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """Return what a step adds, and the most that it adds meanwhile, elements, (width,) each."""
    code, what, nth = key
    if code == FORWARD and nth == 0 and columns.gathers.any():
        return _first_forward(columns, what)
    if code in (FORWARD, BACKWARD):
        return columns.memory(code, what, nth)
    sizes = columns.message_bytes(order.messages[what])
    if code == WAIT:
        return -sizes, np.zeros_like(sizes)
    assert code >= LAUNCHED
    return sizes, sizes


def _first_forward(columns: Columns, stage: int) -> tuple[Any, Any]:
    """Return what the first forward adds to memory; layouts that gather early free their shards in it."""
    net, most = np.zeros(columns.width), np.zeros(columns.width)
    for number in range(columns.num_layers(stage)):
        net = net - np.where(columns.gathers, columns.figures(stage, number)[_SHARD], 0.0)
        added, peak = columns.layer_memory(stage, number)
        most, net = np.maximum(most, net + peak), net + added
    return net, most
