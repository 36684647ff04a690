"""A step of many microbatches that ranks take alike: simulated with a few, and the steady phase repeated.

A strategy that declares its microbatches alike is simulated with few of them, with all its laws. Each class of ranks
then has a block of operations that comes twice: the same prices and memory, on the next microbatches. The whole step
has it as often as it has more microbatches, which is also required of the orders of its pipeline. So memory and prices
are known. Clocks are worked out anew, operation by operation, by the rules of the engine
(`minitrain.engine.operations`), so that they are the floats of the whole run. The clocks of the short run are worked
out first, and must be what was simulated. Where anything is otherwise, the whole step is simulated.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeVar

from minitrain.errors import MinitrainError
from minitrain.operations import (
    COMM,
    HOST_MOVES,
    LAUNCHED,
    LAYER,
    MEMORY,
    NOTE,
    ON_COMPUTE,
    PRICE,
    RECV,
    SAMPLES,
    SEND,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    WAITED_FOR,
    Note,
    Stream,
)
from minitrain.run.event_loops import rare_collections
from minitrain.run.folding.driver import run_of_classes
from minitrain.run.folding.expansion import FoldedRun
from minitrain.run.folding.model import FoldedModel
from minitrain.run.folding.per_rank_values import PerRankSet, of_lowest
from minitrain.run.rank_tasks import PreparedRun, RunProgress, declared_by
from minitrain.run.strategy_loading import unwrapped
from minitrain.workloads.workload import fills_devices

S = TypeVar("S", bound=Callable[..., Any])
T = TypeVar("T")
Cells = Sequence[Any]
"""What a place of a pipeline runs, in its order: tuples of one action or several, as in a `Schedule`."""


@dataclass(frozen=True, slots=True)
class Microbatches:
    """The microbatches of a step.

    Args:
        count: how many each replica has.
        size: samples of each.
        num_places: ranks of a pipeline.
        period: how many microbatches make a block that repeats: 1, or num_places where they go in rounds.
        orders: returns what each place of a pipeline runs, for a number of microbatches.
        num_first: how many gradients are not added up as the others are.
        few: how many are simulated.
    """

    count: int
    size: int
    num_places: int
    period: int
    orders: Callable[[int], Sequence[Cells]]
    num_first: int = 0
    few: int = 0

    @property
    def num_blocks(self) -> int:
        """How many blocks the others are."""
        return (self.count - self.few) // self.period

    def shortened(self) -> Microbatches | None:
        """Return them with how many are simulated: such that orders repeat, and two blocks with what is around."""
        for least in (3 * self.num_places,) if self.period > 1 else (self.num_places, 2 * self.num_places + 1):
            found = replace(self, few=least + (self.count - least) % self.period)
            around = max(2, -(-(3 + self.num_first) // self.period)) * self.period
            longer = replace(found, few=found.few + around)
            if longer.few <= _WORTH * self.count and _repeat(found):
                return longer
        return None


_WORTH = 0.7  # the largest share of the microbatches that is simulated for the sake of the others

Rule = Callable[[Mapping[str, Any], int, int], Microbatches | None]
"""Returns the microbatches of a step from the strategy's options, world size and batch; None where they are unlike."""


def alike_microbatches(rule: Rule) -> Callable[[S], S]:
    """Declare that a strategy treats its microbatches alike, but for the first and last ones; to be put before it."""

    def declare(strategy: S) -> S:
        strategy.microbatches = rule  # type: ignore[attr-defined]  # any callable takes it
        return strategy

    return declare


async def simulate_few(prepared: PreparedRun, simulate: Callable[[PreparedRun], Awaitable[Any]]) -> FoldedRun | None:
    """Simulate a step by few of its microbatches; None where these are too many, or not known to be alike.

    Args:
        prepared: the whole step.
        simulate: simulates a step of fewer, folded; None where it does not fold.
    """
    found = _microbatches_of(prepared)
    if found is None:
        return None
    parameters, options = prepared.parameters, {**prepared.options, "microbatch_size": found.size}
    num_samples = parameters.global_batch_size // found.count * found.few
    fewer = replace(parameters, global_batch_size=num_samples, contention=False)  # the whole step is timed again
    run = await simulate(replace(prepared, parameters=fewer, options=options, watch=None))
    if not isinstance(run, FoldedRun) or not (run.oom is None or fills_devices(prepared.predictor.workload)):
        return None
    models: Any = run.class_models
    starts = [0.0 if prepared.entry_clocks is None else prepared.entry_clocks[model._rank] for model in models]
    with rare_collections():
        if not _lengthen(models, found, starts):
            return None
    if prepared.watch is not None:
        prepared.watch(RunProgress(models, run.num_ranks_a_class))
    return run_of_classes(prepared, run.fold, models, ())


def _microbatches_of(prepared: PreparedRun) -> Microbatches | None:
    """Return the microbatches of a run, if they are alike, and worth it."""
    parameters, workload = prepared.parameters, prepared.predictor.workload
    rule: Rule | None = getattr(unwrapped(prepared.function), "microbatches", None)
    is_extended = prepared.variant is not None or prepared.folded_kind is not None
    tells_apart = parameters.shares is not None or getattr(workload, "is_packed", False)
    if rule is None or is_extended or tells_apart or parameters.memory_by_kind:
        return None
    _, options = declared_by(prepared.function, prepared.options)
    with contextlib.suppress(Exception):  # the whole step says what is wrong
        found = rule(options, parameters.world_size, parameters.global_batch_size)
        return None if found is None else found.shortened()
    return None


def _repeat(found: Microbatches) -> bool:
    """Return whether the orders of all microbatches are those of few, with a block that repeats."""
    try:
        of_few, of_all = found.orders(found.few), found.orders(found.count)
    except MinitrainError:  # so few are not possible
        return False
    return all(_is_longer(few, every, found) for few, every in zip(of_few, of_all, strict=True))


def _is_longer(few: Cells, every: Cells, found: Microbatches) -> bool:
    """Return whether the order of one place is that of few microbatches with blocks between."""
    size, rest = divmod(len(every) - len(few), found.num_blocks)
    begin = next((place for place, (one, other) in enumerate(zip(few, every, strict=False)) if one != other), len(few))
    if rest or begin < size:
        return False
    end, more = begin + size * found.num_blocks, found.count - found.few
    repeats = all(map(_is_later, every[begin - size : end - size], every[begin:end], repeat(found.period)))
    return repeats and all(map(_is_later, few[begin:], every[end:], repeat(more)))


def _is_later(one: Any, other: Any, by: int) -> bool:
    """Return whether a cell has the actions of another one on microbatches that come so much later."""
    return len(one) == len(other) and all(
        (each.kind, each.stage, each.microbatch + by) == (later.kind, later.stage, later.microbatch)
        for each, later in zip(one, other, strict=True)
    )


def _lengthen(models: Sequence[FoldedModel], found: Microbatches, starts: Sequence[float]) -> bool:
    """Give the classes of a short run what they do in the whole step; False, and nothing done, where that is unknown.

    Args:
        models: those of the classes, at their end.
        found: the microbatches of the step.
        starts: when each class begins, s.
    """
    short = [Performed.of(model) for model in models]
    known = [columns for columns in short if columns is not None]
    ranks = [model._rank for model in models]
    clocks = clocks_of(known, ranks, starts) if len(known) == len(models) else None
    if clocks is None or not all(map(are_as_simulated, models, clocks)):
        return False
    longer = [_longer(columns, found) for columns in known]
    whole = [columns for columns in longer if columns is not None]
    clocks = clocks_of(whole, ranks, starts) if len(whole) == len(models) else None
    if clocks is None:
        return False
    for model, columns, times in zip(models, whole, clocks, strict=True):
        write_steps(model, columns, times)
        model._global_batch_size = model._global_batch_size // found.few * found.count
        for counted in ("_recomputed_flop", "_routed_copies", "_dropped_copies"):
            number = getattr(model, counted)
            setattr(model, counted, type(number)(number / found.few) * found.count)
    return True


def are_as_simulated(model: FoldedModel, clocks: _Clocks) -> bool:
    """Return whether the clocks of a class are those that were simulated, to the last float."""
    rows = model._rows
    return (
        clocks.end == model._time
        and clocks.time == rows[TIME::STRIDE]
        and clocks.launched == rows[LAUNCHED::STRIDE]
        and clocks.waited_for == rows[WAITED_FOR::STRIDE]
    )


def write_steps(model: FoldedModel, columns: Performed, clocks: _Clocks) -> None:
    """Give a class the rows of the whole step."""
    lowest = {key: of_lowest(samples) for key, samples in _distinct(columns.samples).items()}
    model.symbolic_columns[SAMPLES] = columns.samples
    rows = model._rows
    rows[:] = [None] * (len(columns.typ) * STRIDE)
    rows[TYP::STRIDE], rows[LAYER::STRIDE], rows[STREAM::STRIDE] = columns.typ, columns.layer, columns.stream
    rows[PRICE::STRIDE], rows[MEMORY::STRIDE], rows[NOTE::STRIDE] = columns.price, columns.memory, columns.note
    rows[SAMPLES::STRIDE] = [lowest[id(samples)] for samples in columns.samples]
    rows[TIME::STRIDE], rows[LAUNCHED::STRIDE] = clocks.time, clocks.launched
    rows[WAITED_FOR::STRIDE] = clocks.waited_for
    model.pass_modes.clear()
    model.pass_modes.update((place * STRIDE, mode) for place, mode in enumerate(columns.mode) if mode is not None)
    model._time = clocks.end


def _distinct(values: Sequence[T]) -> dict[int, T]:
    """Return values by their identity."""
    return dict(zip(map(id, values), values, strict=True))


NO_MICROBATCH = -1


@dataclass(frozen=True, slots=True)
class Performed:
    """What a class does, without clocks: a value an operation in each list.

    Args:
        mode: of a pass that is not the usual one.
        samples: of every rank of the class.
    """

    typ: list[str]
    layer: list[int | None]
    price: list[Any]
    memory: list[int]
    stream: list[Stream]
    mode: list[Any]
    note: list[Note | None]
    samples: list[Any]

    @classmethod
    def of(cls, model: FoldedModel) -> Performed | None:
        """Return what a class has done; None where it passes on what it awaits."""
        rows = model._rows
        if LAYER in model.symbolic_columns or not all(
            stream is ON_COMPUTE or stream.kind in (SEND, RECV, COMM, *HOST_MOVES)
            for stream in _distinct(rows[STREAM::STRIDE]).values()
        ):
            return None
        typ, layer, price, memory, stream, note = (
            rows[place::STRIDE] for place in (TYP, LAYER, PRICE, MEMORY, STREAM, NOTE)
        )
        known = {SEND, *HOST_MOVES}
        if any(stream[before].kind not in known for one in note if one is not None for before in one.after):
            return None
        mode = [*map(model.pass_modes.get, range(0, len(rows), STRIDE))]
        samples = model.symbolic_columns.get(SAMPLES, rows[SAMPLES::STRIDE])
        return cls(typ, layer, price, memory, stream, mode, note, samples)


def _longer(short: Performed, found: Microbatches) -> Performed | None:
    """Return what a class does in the whole step; None where no block comes twice."""
    distinct = _distinct(short.samples)
    numbers = {key: microbatch_of(samples, found) for key, samples in distinct.items()}
    if None in numbers.values():
        return None
    microbatch: Any = [numbers[id(samples)] for samples in short.samples]
    block = _block(short, microbatch, found)
    if block is None or any(short.stream[place].kind in HOST_MOVES for place in block):
        return None  # what the host holds would grow
    cut, times = block.stop, found.num_blocks
    columns: tuple[list[Any], ...] = (
        *(short.typ, short.layer, short.price, short.memory, short.stream),
        *(short.mode, short.note),
    )
    typ, layer, price, memory, stream, mode, note = (
        [*column[:cut], *column[block.start : cut] * times, *column[cut:]] for column in columns
    )
    parts = [(range(cut), 0), *((block, found.period * time) for time in range(1, times + 1))]
    parts.append((range(cut, len(short.typ)), found.count - found.few))
    samples: list[Any] = []
    for places, by in parts:
        further = len(samples) - places.start
        for place in places if by else ():
            if short.note[place] is not None:
                note[place + further] = _note(short, place, further, microbatch, by)
        own = short.samples[places.start : places.stop]
        moved = {key: _moved(one, found, by) for key, one in _distinct(own).items()}
        samples += [moved[id(one)] for one in own]
    return Performed(typ, layer, price, memory, stream, mode, note, samples)


def _block(short: Performed, microbatch: Sequence[int], found: Microbatches) -> range | None:
    """Return the operations of a block that comes twice, one after the other, with as many microbatches in."""
    ends = {number: place for place, number in enumerate(microbatch)}
    sizes = {ends[number + found.period] - ends[number] for number in range(found.few - found.period)}
    wanted = found.period * microbatch.count(found.few // 2)
    what = [
        (*each, None if note is None else _told(place, note, microbatch))
        for place, (note, *each) in enumerate(
            zip(short.note, short.typ, short.layer, short.stream, short.price, short.memory, strict=True)
        )
    ]
    for size in sizes:
        length = 0
        for place, (one, other) in enumerate(zip(what, what[size:], strict=False)):
            number, later = microbatch[place], microbatch[place + size]
            is_next = later == (number if number == NO_MICROBATCH else number + found.period)
            length = length + 1 if is_next and one == other else 0
            block = range(place + 1 - size, place + 1)
            if length >= size and size - microbatch[block.start : block.stop].count(NO_MICROBATCH) == wanted:
                return block
    return None


def _told(place: int, note: Note, microbatch: Sequence[int]) -> tuple[Any, ...]:
    """Return what a note says, wherever the operation is and whatever its microbatch."""
    awaited = None if note.awaited is None else note.awaited - place
    return _tag(note, microbatch[place], None), note.overlaps, awaited, *(before - place for before in note.after)


def _note(short: Performed, place: int, further: int, microbatch: Sequence[int], by: int) -> Note:
    """Return the note of an operation that comes so many operations, and so many microbatches, later."""
    found: Any = short.note[place]
    note = Note(_tag(found, microbatch[place], microbatch[place] + by))
    note.overlaps = found.overlaps
    note.awaited = None if found.awaited is None else found.awaited + further
    note.after = tuple([before + further for before in found.after])
    return note


def _tag(note: Note, microbatch: int, wanted: Any) -> Any:
    """Return the tag of a message, with what is wanted in the place of its microbatch where it ends in that."""
    tag: Any = note.tag
    return (*tag[:-1], wanted) if isinstance(tag, tuple) and tag[-1:] == (microbatch,) else tag


def microbatch_of(samples: Any, found: Microbatches) -> int | None:
    """Return which microbatch some samples are; `NO_MICROBATCH` for a replica's or more, or none; else None."""
    if not samples:
        return NO_MICROBATCH
    if not isinstance(samples, PerRankSet):
        return None
    share = found.few * found.size
    steps = *samples.slopes.values(), *(step for step, _ in samples.repeats)
    if any(step % share for step in steps):
        return None
    if not any(bound % share for interval in samples.intervals for bound in interval):
        return NO_MICROBATCH
    start, stop = samples.intervals[0]
    is_one = len(samples.intervals) == 1 and not start % found.size and stop - start == found.size <= share - start
    return start // found.size if is_one else None


def _moved(samples: Any, found: Microbatches, by: int) -> Any:
    """Return the samples of a microbatch that comes so much later in the whole step, or all where these are all."""
    if not samples:
        return samples
    few, count = found.few, found.count
    is_all = microbatch_of(samples, found) == NO_MICROBATCH

    def moved(bound: int) -> int:
        return bound // few * count if is_all else bound + by * found.size

    slopes = {axis: slope // few * count for axis, slope in samples.slopes.items()}
    repeats = [(step // few * count, times) for step, times in samples.repeats]
    return PerRankSet(
        samples.attempt, [(moved(start), moved(stop)) for start, stop in samples.intervals], slopes, repeats
    )


class _Clocks(NamedTuple):
    """The clocks of a class: of each operation when it began, when it was submitted, and for whom it waited."""

    time: list[Any]
    launched: list[float]
    waited_for: list[int | None]
    end: float


def clocks_of(columns: Sequence[Performed], ranks: Sequence[int], starts: Sequence[float]) -> list[_Clocks] | None:
    """Work out the clocks of classes that communicate; None where they wait for one another in a circle.

    Args:
        columns: what each class does.
        ranks: its lowest rank.
        starts: when it begins, s.
    """
    sent: _Sent = defaultdict(deque)
    users = Counter(key for one in columns for key, stream in _distinct(one.stream).items() if stream.kind == COMM)
    meetings: _Meetings = {key: {} for key, number in users.items() if number > 1}
    classes = [
        _Class(one, rank, start, sent, meetings) for one, rank, start in zip(columns, ranks, starts, strict=True)
    ]
    waiting = classes
    while waiting:
        moved = [each.go_on() for each in waiting]
        if not any(moved):
            return None
        waiting = [each for each in waiting if each.waits]
    return [each.clocks() for each in classes]


_Sent = defaultdict[tuple[Any, ...], "deque[float]"]
"""When the messages on their way began, by sender, receiver and tag, s."""

_Meetings = dict[int, dict["_Class", "deque[int]"]]
"""Which collectives each class has come to and another one has not, by the stream that these share."""


class _Class:
    """A class of ranks that goes through its operations: the clock of its computing, and of each of its streams.

    Args:
        columns: what it does.
        rank: its lowest rank.
        start: when it begins, s.
        sent: the messages that are on their way.
        meetings: where classes meet, to which it adds itself.
    """

    def __init__(self, columns: Performed, rank: int, start: float, sent: _Sent, meetings: _Meetings) -> None:
        self._columns, self._rank, self._sent, self._clock = columns, rank, sent, start
        self._meetings = meetings
        self._seconds = [price.seconds for price in columns.price]
        self._size = len(columns.typ)
        self._time: list[Any] = []
        self._launched: list[float] = []
        self._waited_for: list[int | None] = [None] * self._size
        self._busy: dict[int, float] = defaultdict(float)  # until when each stream is, s
        self._ends: dict[int, float] = {}  # of the communications that have a time, s
        self._receives: dict[int, deque[int]] = defaultdict(deque)  # those of a stream that have none
        streams = _distinct(columns.stream)
        for key in meetings.keys() & streams:
            meetings[key][self] = deque()
        self._awaits: dict[int, list[int]] = defaultdict(list)  # the communications that end before an operation
        beside = {id(stream) for stream, note in zip(columns.stream, columns.note, strict=True) if note is not None}
        alone = {key for key, one in streams.items() if one.kind not in (SEND, RECV)} - beside - meetings.keys()
        self._moves = {place for place, stream in enumerate(columns.stream) if id(stream) not in alone}
        for place in sorted(self._moves):
            note = columns.note[place]
            if note is not None and note.overlaps:
                if note.awaited is not None:
                    self._awaits[note.awaited].append(place)
            elif columns.stream[place].kind == RECV or id(columns.stream[place]) in meetings:
                self._awaits[place + 1].append(place)
        self._stops = deque(sorted({*self._moves, *self._awaits, self._size}))  # what is between goes on alone

    @property
    def waits(self) -> bool:
        """Whether it has not come to its end."""
        return bool(self._stops)

    def clocks(self) -> _Clocks:
        """Return all clocks."""
        return _Clocks(self._time, self._launched, self._waited_for, self._clock)

    def go_on(self) -> bool:
        """Go on until a message or another class is missing; return whether anything was done."""
        stops, first = self._stops, len(self._stops)
        while stops:
            place = stops[0]
            if len(self._time) < place:  # each of these ends before the next one is submitted
                *begins, self._clock = accumulate(self._seconds[len(self._time) : place], initial=self._clock)
                self._time += begins
                self._launched += begins
            ends = [self._end(other) for other in self._awaits.get(place, ())]
            if None in ends:
                break
            self._clock = max([self._clock, *filter(None, ends)])
            if place in self._moves:
                self._launched.append(self._clock)
                self._clock = self._communicate(place, self._clock)
            stops.popleft()
        return len(stops) < first

    def _communicate(self, place: int, clock: float) -> float:
        """Submit a communication, and return the clock after it: later where nothing runs beside it."""
        stream, note = self._columns.stream[place], self._columns.note[place]
        self._time.append(None)
        if stream.kind == RECV:
            self._receives[id(stream)].append(place)
            return clock
        if id(stream) in self._meetings:
            self._meet(place, stream)
            return clock
        self._run(place, stream, max([clock, *(() if note is None else map(self._ends.__getitem__, note.after))]))
        if stream.kind == SEND:
            self._sent[self._rank, stream.peer, note and note.tag].append(self._time[place])
        return clock if note is not None and note.overlaps else max(clock, self._ends[place])

    def _meet(self, place: int, stream: Stream) -> None:
        """Come to a collective of several classes, which runs when the last of them is there."""
        arrived = self._meetings[id(stream)]
        arrived[self].append(place)
        if all(arrived.values()):
            places = {each: waiting.popleft() for each, waiting in arrived.items()}
            launched = {each: each._launched[own] for each, own in places.items()}
            last = max(arrived, key=launched.__getitem__)  # the lowest of them
            for each, own in places.items():
                late = launched[each] < launched[last]
                each._run(own, stream, launched[last], last._rank if late else None)

    def _end(self, place: int) -> float | None:
        """Return when a communication ends, s; None as long as a message or a class is missing."""
        stream = self._columns.stream[place]
        if place in self._ends or stream.kind != RECV:
            return self._ends.get(place)
        receives: Any = self._receives[id(stream)]
        while place not in self._ends:
            note = self._columns.note[receives[0]]
            begun = self._sent[stream.peer, self._rank, note and note.tag]
            if not begun:
                return None
            own, sent = receives.popleft(), begun.popleft()
            late = sent > self._launched[own]
            self._run(own, stream, sent if late else self._launched[own], stream.peer if late else None)
        return self._ends[place]

    def _run(self, place: int, stream: Stream, start: float, waited_for: int | None = None) -> None:
        """Run a communication from `start` on, or from when its stream is free."""
        free = self._busy[id(stream)]
        if free > start:
            start, waited_for = free, None
        self._time[place], self._waited_for[place] = start, waited_for
        self._busy[id(stream)] = self._ends[place] = start + self._seconds[place]
