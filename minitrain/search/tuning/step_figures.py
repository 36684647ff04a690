"""The step times of many layouts at once: one pass through the order of a pipeline, with clocks as arrays.

Each column is made of the same additions, in the same order, as a simulation of that layout. What a layout lacks adds
0.0, which changes no float. With contention, what replicas exchange slows down what computes beside it, and leaves half
of the wires to messages between stages; the few multiprocessors that these take are left out. Waiting, and so energy,
is a sum in another order, and may differ in its last digits; where messages are launched, it may be off by the time
that a message takes during a wait.

The peak memory of many layouts at once, from what each piece adds and takes, and what their devices must hold.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from minitrain.machine.communication_buffers import Communication
from minitrain.machine.framework_memory import HeldWeight, Place
from minitrain.machine.platforms import Platform
from minitrain.run.analysis.breakdown import BusyTimeSum
from minitrain.run.analysis.timeline import Floats
from minitrain.run.device_memory import DeviceMemory, bytes_of_rounding, known_platform, num_logits, workspace_bytes_of
from minitrain.search.tuning.layouts import (
    BACKWARD,
    END_FIGURES,
    FORWARD,
    LAUNCHED,
    RECEIVE,
    SEND,
    WAIT,
    Columns,
    Order,
    Pipeline,
    order_of,
)

_LOAD, _COVER, _TOTAL, _UPDATE, _GATHER = (
    END_FIGURES.index(name) for name in ("load", "cover", "total", "update", "gather")
)
_NEVER = float("-inf")
Clock = Any
"""The clocks of some layouts, (width,), or that of one."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The steps of some layouts, an entry each.

    Args:
        step_time: s.
        busy_s: computing or communicating, over all ranks, s.
    """

    step_time: Floats
    busy_s: Floats


def steps_of(columns: Columns) -> StepTimes:
    """Return the steps of layouts of one structure."""
    return _Clocks(columns).run()


@dataclass(frozen=True, slots=True)
class StepParts:
    """The step of one layout, and where its time goes at the place that computes longest.

    Args:
        step_time: s.
        forward_s: computing in forwards, also in those that backward takes again, s.
        backward_s: computing otherwise, but for updates, s.
        update_s: updating, s.
        waiting_s: with nothing under way, s.
    """

    step_time: float
    forward_s: float
    backward_s: float
    update_s: float
    waiting_s: float

    @property
    def exposed_s(self) -> float:
        """Return how long it communicates with no compute beside it, s."""
        return self.step_time - self.forward_s - self.backward_s - self.update_s - self.waiting_s


def step_parts_of(columns: Columns) -> StepParts:
    """Return where the time of the step of the first layout goes."""
    computing = [_computing(columns, place) for place in range(columns.pp)]
    busiest = max(range(columns.pp), key=lambda place: sum(computing[place]))
    clocks = _Clocks(columns, busiest)
    step_time = float(clocks.run().step_time[0])
    return StepParts(step_time, *computing[busiest], max(0.0, step_time - clocks.at_work()))


def _computing(columns: Columns, place: int) -> tuple[float, float, float]:
    """Return how long a place of the first layout computes in forwards, otherwise, and in updates, s."""
    forward_s = backward_s = update_s = 0.0
    times, (stages, _) = columns.num_microbatches, columns.blocks[0]
    for stage in columns.stages_of(place):
        piece = columns.pieces.stage(columns.layouts[0].passes, stages[stage])
        for count, one in ((times, piece.forward), (1, piece.first), (times - 1, piece.later)):
            forward_s += count * one.forward_s
            backward_s += count * one.backward_s
        for number in range(len(stages[stage])):
            update_s += float(columns.figures(stage, number)[_UPDATE, 0])
    return forward_s, backward_s, update_s


class _Clocks:
    """The clocks of all places, and the messages and collectives that are under way.

    A clock is an array of (width,), or a float where there is one layout, which takes a fifth of the time.

    Args:
        columns: the layouts.
        traced: the place of the first layout of which `at_work` is asked; None for none.
    """

    def __init__(self, columns: Columns, traced: int | None = None) -> None:
        self._columns, self._traced = columns, traced
        is_single = columns.count == 1
        self._maximum: Any = max if is_single else np.maximum
        self._where: Any = _chosen if is_single else np.where
        self._any: Any = bool if is_single else np.any
        self._one: Any = _first if is_single else np.asarray
        self._plain: Any = float if is_single else np.asarray
        self._added: Any = _last_sum if is_single else _sum_of_rows
        zero = self._one(np.zeros(columns.width))
        self._idle: list[tuple[float, float]] = []  # when the traced place does nothing itself
        self._under_way: list[tuple[float, float]] = []  # what runs beside it
        self._messages = columns.order.messages
        self._time = [zero] * columns.pp
        self._waited = [zero] * columns.pp
        self._summing = [zero] * columns.pp  # when the replicas' stream is free
        self._carried: dict[tuple[int, int], Clock] = {}  # the clocks that messages carry, by kind and microbatch
        self._ends: dict[tuple[bool, int, int], Clock] = {}  # of launched sends (True) and of receives
        self._busy: list[dict[tuple[int, bool], Clock]] = [  # by peer, and whether it is sent to
            defaultdict(lambda: zero) for _ in range(columns.pp)
        ]
        self._submitted: dict[tuple[int, int], deque[tuple[int, int, Clock]]] = defaultdict(deque)
        self._gathered: dict[tuple[int, int], Clock] = {}
        self._reduced: dict[tuple[int, int], Clock] = {}
        self._seconds = [self._one(columns.message_seconds(message)) for message in self._messages]
        self._overlaps = bool(columns.overlaps.any())
        slows_down = columns.contention and columns.taken.any()
        self._taken = self._one(columns.taken) if slows_down else None
        self._shared = [self._one(columns.shared(message)) for message in self._messages if slows_down]

    def run(self) -> StepTimes:
        """Take the steps of all places."""
        columns = self._columns
        begin = self._load()
        self._begin = _first(begin)
        for place in range(columns.pp):
            self._gather(place)
        self._take_turns()
        for place in range(columns.pp):
            self._update(place)
        ends = self._plain(np.array(self._time).max(axis=0))
        self._end = _first(ends)
        if self._traced is not None:
            self._until(self._traced, ends)
        waited: Any = sum(ends - time + wait for time, wait in zip(self._time, self._waited, strict=True))
        strides, steps = self._one(columns.wide([layout.stride for layout in columns.layouts])), ends - begin
        busy = strides * (columns.pp * steps - waited)
        return StepTimes(np.atleast_1d(steps)[: columns.count], np.atleast_1d(busy)[: columns.count])

    def at_work(self) -> float:
        """Return how long the traced place computes or communicates, once all have taken their steps, s."""
        begin = self._begin
        starts, stops = [begin, *(end for _, end in self._idle)], [*(start for start, _ in self._idle), self._end]
        own = [(start, stop, True) for start, stop in zip(starts, stops, strict=True)]
        beside = [(max(start, begin), stop, False) for start, stop in self._under_way]
        sums = BusyTimeSum(begin)
        sums.add(sorted(own + beside))
        return sums.busy.any

    def _until(self, place: int, until: Clock) -> None:
        """Let a place do nothing until some time."""
        time = self._time[place]
        if place == self._traced and _first(until) > _first(time):
            self._idle.append((_first(time), _first(until)))
        self._time[place] = self._maximum(time, until)

    def _runs(self, place: int, start: Clock, end: Clock) -> None:
        """Note what runs beside a place."""
        if place == self._traced:
            self._under_way.append((_first(start), _first(end)))

    def _take_turns(self) -> None:
        """Take the turns of all places."""
        columns = self._columns
        chains = {
            code: [self._chain(columns.chain(code, stage)) for stage in range(columns.pp * columns.num_chunks)]
            for code in (FORWARD, BACKWARD)
        }
        special = {FORWARD: 0, BACKWARD: columns.num_microbatches - 1} if self._overlaps else {}
        for code, place, what, microbatch in columns.order.turns():
            if code > BACKWARD:
                self._message(code, place, what, microbatch)
            elif microbatch == special.get(code):
                self._pass_by_layer(code, place, what)
            else:
                self._pass(place, chains[code][what], code, what)

    def _chain(self, chain: Floats) -> Any:
        """Return a pass as what it adds to a clock."""
        return chain[1:, 0].tolist() if self._columns.count == 1 else chain

    def _pass(self, place: int, chain: Any, code: int, stage: int, number: int | None = None) -> None:
        """Pass through a stage, or through one layer of it; slower while replicas exchange something beside it.

        Of a pass that outlasts the exchange, as much is slowed down as is done by then.
        """
        begin, summing = self._time[place], self._summing[place]
        time = self._time[place] = self._added(chain, begin)
        if self._taken is None or not self._any(summing > begin):
            return
        alone = time - begin
        computing = self._one(self._columns.computing(code, stage, number))
        slowed = alone + computing * self._taken / (1.0 - self._taken)
        beside = np.clip(summing - begin, 0.0, slowed)
        later = beside * (1.0 - np.divide(alone, slowed, out=np.ones_like(alone), where=slowed > 0.0))
        self._time[place] = self._plain(time + later)

    def _message(self, code: int, place: int, kind: int, microbatch: int) -> None:
        """Send, receive or wait."""
        if code == SEND:
            self._carried[kind, microbatch] = self._time[place]
            self._time[place] = self._time[place] + self._seconds[kind]
        elif code == SEND + LAUNCHED:
            self._launch(place, kind, microbatch)
        elif self._columns.messages == "plain":
            carried = self._carried.pop((kind, microbatch))
            self._wait(place, carried)
            self._until(place, carried)
            self._time[place] = self._time[place] + self._seconds[kind]
        else:
            self._receive_in_order(code, place, kind, microbatch)

    def _launch(self, place: int, kind: int, microbatch: int) -> None:
        """Send beside what follows, once the stream is free."""
        streams, stream = self._busy[place], (self._messages[kind].dest, True)
        start = self._carried[kind, microbatch] = self._maximum(self._time[place], streams[stream])
        end = self._ends[True, kind, microbatch] = streams[stream] = start + self._seconds_from(place, kind, start)
        self._runs(place, start, end)

    def _seconds_from(self, place: int, kind: int, start: Clock) -> Clock:
        """Return how long a message takes that starts at some time; beside an exchange it has half of the wires."""
        seconds, summing = self._seconds[kind], self._summing[place]
        if self._taken is None or not self._any(summing > start):
            return seconds
        beside = self._maximum(summing - start, 0.0) * self._shared[kind]
        return seconds + self._plain(np.minimum(0.5 * beside, seconds))

    def _receive_in_order(self, code: int, place: int, kind: int, microbatch: int) -> None:
        """Submit a receive, or wait for one, or for a send; receives from one peer follow one another."""
        message = self._messages[kind]
        stream = self._submitted[message.source, message.dest]
        if code in (RECEIVE, RECEIVE + LAUNCHED):
            stream.append((kind, microbatch, self._time[place]))
        if code == RECEIVE + LAUNCHED:
            return
        key = message.source == place, kind, microbatch
        while key not in self._ends:
            self._settle(*stream.popleft(), place)
        self._until(place, self._ends.pop(key))

    def _settle(self, kind: int, microbatch: int, submitted: Clock, place: int) -> None:
        """Receive the next message of a stream."""
        streams, stream = self._busy[place], (self._messages[kind].source, False)
        start = self._maximum(submitted, self._carried.pop((kind, microbatch)))
        start = self._maximum(start, streams[stream])
        self._wait(place, start)
        end = self._ends[False, kind, microbatch] = streams[stream] = start + self._seconds_from(place, kind, start)
        self._runs(place, start, end)

    def _wait(self, place: int, until: Clock) -> None:
        """Note that a place waits, unless it sums gradients or messages are under way meanwhile."""
        begin = self._maximum(self._time[place], self._summing[place])
        for busy in self._busy[place].values():
            begin = self._maximum(begin, busy)
        self._waited[place] = self._waited[place] + self._maximum(until - begin, 0.0)

    def _load(self) -> Clock:
        """Load the layers of all places, and return when steps begin: at 0 where places load for unequal times."""
        columns = self._columns
        for place in range(columns.pp):
            for stage in columns.stages_of(place):
                for number in range(columns.num_layers(stage)):
                    self._time[place] = self._time[place] + self._one(columns.figures(stage, number)[_LOAD])
        begin = np.where([time == self._time[0] for time in self._time], self._time[0], 0.0).min(axis=0)
        self._time = [self._plain(begin)] * columns.pp
        return self._time[0]

    def _gather(self, place: int) -> None:
        """Begin to gather the layers of a place, in some layouts."""
        columns, gathers = self._columns, self._columns.gathers
        for stage in columns.stages_of(place) if gathers.any() else ():
            for number in range(columns.num_layers(stage)):
                is_there = self._one(gathers & columns.has_layer(stage, number))
                busy = self._summing[place]
                start = self._where(is_there, self._maximum(self._time[place], busy), busy)
                gather = self._one(columns.figures(stage, number)[_GATHER])
                busy = self._summing[place] = start + self._where(is_there, gather, 0.0)
                self._gathered[stage, number] = self._where(is_there, busy, _NEVER)
                self._runs(place, start, busy)

    def _pass_by_layer(self, code: int, place: int, stage: int) -> None:
        """Pass for the first time forward, as weights are gathered; or for the last time back, and sum gradients."""
        columns = self._columns
        for number in range(columns.num_layers(stage)):
            if code == FORWARD and (stage, number) in self._gathered:
                self._until(place, self._gathered[stage, number])
            self._pass(place, self._chain(columns.layer_chain(code, stage, number)), code, stage, number)
            if code == BACKWARD:
                self._sum(place, stage, number)

    def _sum(self, place: int, stage: int, number: int) -> None:
        """Begin to sum the gradient of the number-th layer from behind over replicas, where that is overlapped."""
        columns = self._columns
        for stages, members in columns.blocks:
            layer = len(stages[stage]) - 1 - number
            if layer < 0:
                continue
            chosen = np.zeros(columns.width, dtype=bool)
            chosen[members] = columns.overlaps[members]
            is_there, figures = self._one(chosen), columns.figures(stage, layer)
            time, busy = self._time[place], self._summing[place]
            time = self._time[place] = self._where(is_there, time + self._one(figures[_COVER]), time)
            start = self._maximum(time, busy)
            busy = self._summing[place] = self._where(is_there, start + self._one(figures[_TOTAL]), busy)
            if chosen[0]:
                self._runs(place, start, busy)
            reduced = self._reduced.get((stage, layer), _NEVER)
            self._reduced[stage, layer] = self._where(is_there, busy, reduced)

    def _update(self, place: int) -> None:
        """Sum gradients, update, and gather weights, layer by layer."""
        columns, late = self._columns, self._one(~self._columns.overlaps)
        for stage in columns.stages_of(place):
            for number in range(columns.num_layers(stage)):
                cover, total, update, gather = (
                    self._one(columns.figures(stage, number)[what]) for what in (_COVER, _TOTAL, _UPDATE, _GATHER)
                )
                if (stage, number) in self._reduced:
                    self._until(place, self._reduced[stage, number])
                time = self._time[place]
                time = self._where(late, time + cover + total, time) + update
                self._time[place] = self._where(late, time + gather, time)


def _first(values: Any) -> float:
    """Return the first of some values, or the only one."""
    return float(values) if isinstance(values, float) else float(values[0])


def _chosen(condition: Any, value: float, other: float) -> float:
    """Return a value if a condition holds, else the other one."""
    return value if condition else other


def _last_sum(seconds: Sequence[float], time: float) -> float:
    """Return a clock after some times, added up in their order."""
    return deque(accumulate(seconds, initial=time), 1)[0]


def _sum_of_rows(chain: Floats, time: Floats) -> Any:
    """Return clocks after the times in the rows of a chain but the first, which has place for the clocks."""
    chain[0] = time
    return np.add.reduce(chain, axis=0)


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
    tensors, _ = _tensors(columns, order, place)
    beside, element_bytes = np.zeros(columns.width), columns.pieces.workload.bytes_per_element
    for _, members in columns.blocks:
        known: dict[Any, float] = {}  # of the same layers and groups
        for column in members:
            layout = columns.layouts[column]
            groups = layout.ends.tp, layout.passes.cp, layout.stride
            if groups not in known:
                known[groups] = _device(columns, place, column).beside_bytes / element_bytes
            beside[column] = known[groups]
    return tensors, tensors + beside


def _tensors(columns: Columns, order: Order, place: int) -> tuple[Floats, Floats]:
    """Return the most that the tensors of a place take, and the most at the beginning of a step's last backward."""
    base, most = _loaded(columns, place)
    asked, before, tops = _memory_by_step(columns, order, place, base)
    last = columns.pp * columns.num_chunks - 1
    at_loss = [step == (BACKWARD, last) for step in asked]
    tensors: Floats = np.maximum(most, (before + tops).max(axis=0, initial=0.0))
    return tensors, before[at_loss].max(axis=0, initial=0.0)


def _memory_by_step(
    columns: Columns, order: Order, place: int, base: Floats
) -> tuple[list[tuple[int, int]], Floats, Floats]:
    """Return what each step of a place is, what is held before it, and the most that it adds meanwhile, elements."""
    steps, keys = _steps(order, place)
    rows = [_row(columns, order, key) for key in keys]
    nets, tops = (np.stack(part)[steps] for part in zip(*rows, strict=True))
    return [keys[step][:2] for step in steps], np.cumsum(np.vstack([base, nets]), axis=0)[:-1], tops


def _with_totals(columns: Columns, order: Order, place: int, gradients: Mapping[int, float]) -> tuple[float, float]:
    """Return the most at losses and in forwards but the last stage's, with totals of all gradients, bytes.

    Args:
        columns: the layouts, of which the first is meant.
        order: their order.
        place: of which rank.
        gradients: the totals of each stage, bytes.
    """
    asked, before, tops = _memory_by_step(columns, order, place, _loaded(columns, place)[0])
    missing, at_loss, in_forward = dict(gradients), 0.0, 0.0
    last, element_bytes = columns.pp * columns.num_chunks - 1, columns.pieces.workload.bytes_per_element
    for (code, stage), held, top in zip(asked, before[:, 0], tops[:, 0], strict=True):
        if code == FORWARD and stage != last:
            in_forward = max(in_forward, (held + top) * element_bytes + sum(missing.values()))
        elif code == BACKWARD:
            if stage == last:
                at_loss = max(at_loss, held * element_bytes + sum(missing.values()))
            missing.pop(stage, None)
    return float(at_loss), float(in_forward)


def _device(columns: Columns, place: int, column: int) -> DeviceMemory:
    """Return what a device of a place holds beside tensors, in one layout."""
    layout, workload = columns.layouts[column], columns.pieces.workload
    layers = [layer for stage in columns.stages_of(place) for layer in layout.stages[stage]]
    return DeviceMemory(
        rank=place * layout.stride,
        peak_bytes=0.0,
        held_bytes=0.0,
        workspace_bytes=workspace_bytes_of(columns.pieces.predictor),
        rounding_bytes=bytes_of_rounding(workload, layers),
        buffer_bytes=_buffer_bytes(columns, place, layout),
    )


def _buffer_bytes(columns: Columns, place: int, layout: Pipeline) -> int:
    """Return what the communication of a place's first rank keeps on its device."""
    tp, cp, stride = layout.ends.tp, layout.passes.cp, layout.stride
    rank, wraps = place * stride, columns.num_chunks > 1
    places = {(place + step) % columns.pp if wraps else place + step for step in (-1, 1)} - {place}
    peers = {other * stride for other in places if 0 <= other < columns.pp}
    if cp > 1:
        peers |= {rank + tp, rank + (cp - 1) * tp}
    groups = range(rank, rank + tp), range(rank, rank + stride, tp)
    predictor = columns.pieces.predictor
    known = Communication(columns.pp * stride, rank, groups, (), peers)
    return known.buffer_bytes(getattr(predictor, "system", None), known_platform(predictor))


def fullest_of(columns: Columns, platform: Platform, of_stage: str = "") -> DeviceMemory:
    """Return what the fullest device of the first layout holds, or of its "first" or "last" place, as allocated."""
    order = order_of(columns.pp, columns.num_chunks, _num_microbatches(columns), columns.messages)
    places = range(columns.pp)[{"first": slice(1), "last": slice(-1, None)}.get(of_stage, slice(None))]
    devices = [_filled(columns, order, place, platform) for place in places]
    return max(devices, key=lambda device: device.allocated_bytes)


def _filled(columns: Columns, order: Order, place: int, platform: Platform) -> DeviceMemory:
    """Return what the devices of a place hold in the first layout."""
    passes, workload = columns.layouts[0].passes, columns.pieces.workload
    tensors, at_loss = (float(part[0]) * workload.bytes_per_element for part in _tensors(columns, order, place))
    ends, layout = columns.layouts[0].ends, columns.layouts[0]
    layers = [layer for stage in columns.stages_of(place) for layer in layout.stages[stage]]
    share = ends.dp if ends.zero else 1
    sizes = [(layer, workload.held_bytes(layer, ends.tp)) for layer in layers]
    has_table = bool(workload.table_layers) and set(workload.table_layers) <= {*layers}
    counted = workload.with_one_table(in_shards=False) if has_table else workload
    at_update = [counted.held_bytes(layer, ends.tp) for layer in layers]
    logits = num_logits(workload, passes.microbatch_size) / (passes.tp * passes.cp)
    totals = dict(zip(layers, (gradient for _, gradient, _ in at_update), strict=True))
    of_stages = {stage: sum(totals[layer] for layer in layout.stages[stage]) for stage in columns.stages_of(place)}
    full_at_loss, full_forward = _with_totals(columns, order, place, of_stages)
    known = Place(
        workload=workload,
        weights=[
            HeldWeight(layer, weight, gradient, state / share, layout.gathers_early)
            for layer, (weight, gradient, state) in sizes
        ],
        num_parts=passes.tp,
        num_samples=passes.microbatch_size,
        num_logits=logits if at_loss else 0.0,
        peak_bytes=tensors,
        at_loss_bytes=at_loss,
        full_at_loss_bytes=full_at_loss,
        full_forward_bytes=full_forward,
        at_update_bytes=sum(weight + gradient + state / share for weight, gradient, state in at_update),
        is_scattered=passes.sequence_parallel,
        is_single=columns.num_microbatches * columns.num_chunks == 1,
        num_in_flight=_num_in_flight(order, place) / columns.num_chunks,
        recompute=passes.recompute,
    )
    return replace(_device(columns, place, 0), peak_bytes=tensors).filled(known, platform)


def _num_in_flight(order: Order, place: int) -> int:
    """Return the most passes that a place has taken forward and not yet back."""
    steps = ((code == FORWARD) - (code == BACKWARD) for code, *_ in order.asked[place])
    return max(accumulate(steps))


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
    return _steps_of(tuple([(code, what) for code, what, _ in order.asked[place]]))


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
