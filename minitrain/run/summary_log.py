"""Runs whose events are not kept: logs that add them to totals, a run's figures from these, and loops of alike steps.

**Totals** (`SummaryLog`). Rows are buffered, and flushed to the totals when there are many. A row can be flushed when
it is complete: when its operation is settled. Rows leave in program order, as sums take them in that order; so an
operation that waits for long keeps the rows after it in the buffer. The log knows its length and the totals; to read an
event of it is an error.

**Alike steps** (`simulate_alike`). Long loops of steps that a strategy declares alike are simulated until they repeat,
and the rest is added in time. Two runs are simulated with all their laws, of a few steps and of one or two more. The
longer one must have the events of the shorter, with a block between that repeats the ones before it: the same
operations, prices and memory, all times later by the same. Clocks are a function of what came before, as far back as
results are awaited; so a loop of any length has that block as often as it takes (Baccelli, Cohen, Olsder, Quadrat 1992,
theorem 3.109). Where blocks do not repeat, as with documents of unequal length, more steps are tried, and in the end
all.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from minitrain.engine.model import Model
from minitrain.engine.semantics import LocalSteps
from minitrain.errors import MinitrainError, UsageError
from minitrain.machine.price import PENDING
from minitrain.operations import (
    LAUNCHED,
    LAYER,
    LOAD_WEIGHTS,
    MEMORY,
    NOTE,
    PASSES,
    PRICE,
    SAMPLES,
    STREAM,
    STRIDE,
    TIME,
    TYP,
    ReadOnlyLog,
)
from minitrain.run.analysis.breakdown import (
    AxisSums,
    BusyTimeSum,
    Interval,
    PassTimeSum,
    TypeSums,
    axis_finder,
    intervals_of,
    load_end_of,
)
from minitrain.run.facts import Steps, steps_of_round
from minitrain.run.rank_tasks import PreparedRun, declared_by
from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.run.analysis.breakdown import AxisTotal, Breakdown, PassTime, TypeTotal


EVENTS_OF_RUN, EVENTS_OF_RANK = 2**18, 64  # buffered: about so many of all ranks, at least so many of each


@dataclass(slots=True, eq=False, repr=False)
class RankTotals:
    """The totals of one rank.

    Time at work is a sum over intervals in order of their start, but events stand in program order, and what was
    launched may start late. So intervals wait here until no earlier one can come.

    Args:
        by_type: the totals by type, which all ranks share.
        by_axis: what the rank communicates along each axis; None where layers are alike, as it is not reported then.

    Attributes:
        num_events: events taken so far.
        load_end: when the rank's weights are there, s: the end of its loads before its first other operation.
        working: time at work, of those intervals that nothing can precede.
        passing: passes through layers.
    """

    by_type: TypeSums
    by_axis: AxisSums | None = None
    num_events: int = 0
    load_end: float = 0.0
    _loads: bool = True
    working: BusyTimeSum = field(default_factory=BusyTimeSum)
    passing: PassTimeSum = field(default_factory=lambda: PassTimeSum(PASSES))
    _late: list[Interval] = field(default_factory=list)
    _memory_rows: dict[Any, list[Any]] = field(default_factory=dict)

    def take(self, rows: list[Any], complete_until: float) -> None:
        """Take the next rows of the log.

        Args:
            rows: complete ones, which follow those taken before.
            complete_until: no event that is still to come starts earlier, s.
        """
        self.num_events += len(rows) // STRIDE
        self._keep_of_memory(rows)
        self.by_type.add(rows)
        self.passing.add(rows)
        if self.by_axis is not None:
            self.by_axis.take_rows(rows, complete_until)
        if self._loads:
            self.load_end = load_end_of(rows) or self.load_end
            self.working = BusyTimeSum(self.load_end)
            self._loads = all(typ == LOAD_WEIGHTS for typ in rows[TYP::STRIDE])
        known = sorted(self._late + intervals_of(rows))
        self._late = [interval for interval in known if interval[0] >= complete_until]
        self.working.add(known[: len(known) - len(self._late)])

    @property
    def rows_of_memory(self) -> list[Any]:
        """The rows that say what a device must hold, see `minitrain.run.device_memory`."""
        return [value for row in self._memory_rows.values() for value in row]

    def _keep_of_memory(self, rows: list[Any]) -> None:
        """Keep the first row that notes most: of all, and of losses with as many samples; and a row of each stream.

        Groups that exchange have other buffers than those that gather or sum, on the same stream.
        """
        for start in range(0, len(rows), STRIDE):
            typ, stream = rows[start + TYP], rows[start + STREAM]
            detail = rows[start + LAYER] if typ == LOAD_WEIGHTS else len(rows[start + SAMPLES]) if typ == "loss" else 0
            detail = stream if typ == "all_to_all" else detail
            for key in ("fullest", (typ, detail) if detail or typ == LOAD_WEIGHTS else stream):
                kept = self._memory_rows.get(key)
                if kept is None or (kept[MEMORY] < rows[start + MEMORY] and key is not stream):
                    self._memory_rows[key] = rows[start : start + STRIDE]


_len, _get, _set, _extend = list.__len__, list.__getitem__, list.__setitem__, list.extend  # `super()` takes longer


class BufferedRows(list[Any]):
    """The rows of a log, of which the first ones are in the totals already; an index is that among all of them.

    What is written to a row that has left is dropped: it can only be a note that the operation ran beside others.

    Args:
        totals: those of the rows that have left.
        most_events: events buffered before they are flushed.
    """

    __slots__ = ("_limit", "_room", "num_left", "totals")

    def __init__(self, totals: RankTotals, most_events: int) -> None:
        super().__init__()
        self.totals = totals
        self.num_left = 0  # places of rows that have left
        self._limit = self._room = most_events * STRIDE

    def __len__(self) -> int:
        return self.num_left + _len(self)

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is slice:  # of those that are here
            return _get(self, index)
        return _get(self, index - self.num_left) if index >= self.num_left else None

    def __setitem__(self, index: Any, value: Any) -> None:
        if index >= self.num_left:
            _set(self, index - self.num_left, value)

    def extend(self, row: Any) -> None:
        """Add a row."""
        _extend(self, row)
        if _len(self) >= self._limit:
            prices = self[PRICE::STRIDE]
            held = next((place for place, price in enumerate(prices) if price is PENDING), len(prices))
            launched = self[LAUNCHED::STRIDE][min(held, len(prices) - 1)]
            self._take(held * STRIDE, launched)  # what comes was launched later, and starts later
            self._limit = max(self._room, 2 * _len(self))

    def _take(self, num_places: int, complete_until: float) -> None:
        """Add the first rows to the totals."""
        self.totals.take(self[:num_places], complete_until)
        del self[:num_places]
        self.num_left += num_places

    def finish(self) -> None:
        """Add what is left, at the end of the run."""
        self._take(_len(self), math.inf)


class SummaryLog(ReadOnlyLog):
    """A log without events: how many there were, and their totals.

    Args:
        rank: whose log it is.
        rows: its rows.
    """

    __slots__ = ("_rank", "_rows")

    def __init__(self, rank: int, rows: BufferedRows) -> None:
        self._rank = rank
        self._rows = rows

    @property
    def rank(self) -> int:
        """Whose log it is."""
        return self._rank

    @property
    def totals(self) -> RankTotals:
        """The totals of the events that are not in rows any more."""
        return self._rows.totals

    @property
    def rows_of_memory(self) -> list[Any]:
        """The rows that say what a device must hold."""
        return self.totals.rows_of_memory

    def __len__(self) -> int:
        return len(self._rows) // STRIDE

    def __getitem__(self, _: Any) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return f"<log of rank {self.rank}: {len(self)} events, not kept>"

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f'log="summary" keeps totals and none of the {len(self)} events of rank {self.rank}: there is nothing to '
            'read, draw, explain or save; simulate with log="full"',
            rank=self.rank,
        )


@contextmanager
def keeping_totals(models: Sequence[Model]) -> Iterator[None]:
    """Let models that have done nothing yet keep totals, which they share by type, and no events."""
    by_type, most_events = TypeSums(), max(EVENTS_OF_RUN // len(models), EVENTS_OF_RANK)
    logs = []
    for model in models:
        axes = None if model._is_uniform else AxisSums(axis_finder(model._rank, model._world_size, model._meshes))
        model._rows = rows = BufferedRows(RankTotals(by_type, axes), most_events)
        model._log = SummaryLog(model._rank, rows)  # type: ignore[assignment]  # a log, but not to read
        logs.append(rows)
    yield
    for rows in logs:
        rows.finish()


@dataclass(frozen=True, repr=False)
class EventlessRun(Run):
    """A run whose own events cannot be read, so that there is no picture of it."""

    @property
    def keeps_events(self) -> bool:
        """Whether the logs can be read."""
        return False

    def _picture_html(self) -> str:
        """Return no picture: it would need every event."""
        return ""

    def _timeline_html(self) -> str:
        """Return no timeline, for the same reason."""
        return ""


@dataclass(frozen=True, repr=False)
class SummaryRun(EventlessRun):
    """A run whose `logs` know their length and their totals; to read an event of them is an error."""

    @property
    def _totals(self) -> list[RankTotals]:
        """The totals of each rank."""
        return [log.totals for log in self.logs]  # type: ignore[attr-defined]  # they are `SummaryLog`s

    @property
    def _load_ends(self) -> Sequence[float]:
        """When the weights of each rank that does anything are there, s."""
        return [totals.load_end for totals in self._totals if totals.num_events]

    @cached_property
    def _without_loading(self) -> Run:
        """The same run with loads that take no time; itself where ranks load alike."""
        from minitrain.machine.given_durations import with_free_loading  # noqa: PLC0415  (few runs need it)
        from minitrain.run.event_loops import run_to_end  # noqa: PLC0415

        simulate = self.prepared.simulate
        if self.loads_alike or simulate is None:
            return self
        prepared = replace(self.prepared, predictor=with_free_loading(self.prepared.predictor))
        run: Run = run_to_end(lambda: simulate(prepared))
        return run

    @cached_property
    def step_time(self) -> float:
        """From the end of loading to the latest final clock of all ranks, s."""
        return self.last_clock - self.load_time if self.loads_alike else self._without_loading.step_time

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        from minitrain.run.analysis.breakdown import breakdown_of  # noqa: PLC0415

        if not self.loads_alike:
            return self._without_loading.breakdown
        return breakdown_of([totals.working.busy for totals in self._totals], self.load_time, self.last_clock)

    @cached_property
    def by_type(self) -> dict[str, TypeTotal]:
        """Number of events of each type on all ranks, and the time that they worked, s."""
        return self._totals[0].by_type.totals()

    @cached_property
    def communication_by_axis(self) -> dict[str, AxisTotal]:
        """What a rank communicates along each axis, on average; nothing where layers are alike, as nobody asks."""
        from minitrain.run.analysis.breakdown import mean_by_axis  # noqa: PLC0415

        sums = [totals.by_axis for totals in self._totals]
        return mean_by_axis([each.totals() for each in sums if each is not None])

    @cached_property
    def _passes(self) -> list[PassTime]:
        """When each rank passes microbatches through its layers."""
        if not self.loads_alike:
            return self._without_loading._passes
        return [passes for totals in self._totals if (passes := totals.passing.passes) is not None]


LEAST_STEPS = 6
"""Steps of the shorter run that is tried first; each next one has twice as many."""
PERIODS = (1, 2)
"""How many more steps the longer run has."""
_SAME = 1e-12
"""The largest difference of two clocks, relative to the length of the run, that is rounding."""

Simulate = Callable[[PreparedRun], Awaitable[Run]]


async def simulate_alike(prepared: PreparedRun, simulate: Simulate) -> Run | None:
    """Simulate a loop by two short ones; None where its steps are not declared alike, are few, or do not repeat.

    Args:
        prepared: the whole loop.
        simulate: simulates a shorter one.
    """
    declared, options = declared_by(prepared.function, prepared.options)
    parameters = prepared.parameters
    name = declared.steps if declared is not None and declared.alike else None
    if declared is None or not isinstance(name, str) or parameters.shares is not None:
        return None
    sizes = parameters.world_size, parameters.global_batch_size, parameters.num_layers
    meant = declared.of(prepared.name, options, *sizes)

    async def of_steps(count: int) -> Run | None:
        batch = parameters.global_batch_size // meant.steps * count
        fewer = replace(parameters, log="full", global_batch_size=batch)
        try:
            return await simulate(replace(prepared, parameters=fewer, options={**prepared.options, name: count}))
        except MinitrainError:  # so few are not possible, or the whole loop says what is wrong
            return None

    count = LEAST_STEPS
    while 4 * count <= meant.steps:
        for period in PERIODS:
            fewer = count + (meant.steps - count) % period
            shorter = await of_steps(fewer)
            longer = shorter and await of_steps(fewer + period)
            if shorter and longer and _repeats(shorter, longer):
                return _long_run(prepared, meant, shorter, longer, fewer, period)
        count *= 2
    return None


def _repeats(shorter: Run, longer: Run) -> bool:
    """Return whether the longer run is the shorter one with a block that repeats those before it, on all ranks."""
    logs, later = ([log._rows for log in run.class_logs] for run in (shorter, longer))  # type: ignore[attr-defined]
    ends, late_ends = ([model.time for model in run.class_models] for run in (shorter, longer))
    alike = len(logs) == len(later) and shorter.peak_memory_per_rank == longer.peak_memory_per_rank
    shift = max(late_ends) - max(ends)
    same = _SAME * max(late_ends)
    clocks = (abs(late - end - shift) <= same for end, late in zip(ends, late_ends, strict=alike))
    return alike and all(clocks) and all(map(_has_block, logs, later, repeat(shift), repeat(same)))


def _has_block(rows: Sequence[Any], later: Sequence[Any], shift: float, same: float) -> bool:
    """Return whether one rank's longer log is its shorter one with a block that repeats those before it.

    Args:
        rows: those of the shorter log.
        later: those of the longer one.
        shift: how long the block takes, s.
        same: the largest difference of clocks that is rounding, s.
    """
    one, other = _Columns(rows, same), _Columns(later, same)
    block = other.size - one.size
    if block <= 0:
        return block == 0 == one.size
    begin = next((place for place in range(one.size) if one.what[place] != other.what[place]), one.size)
    reach = max(2 * block, other.reach(begin + block))
    return (
        begin >= reach
        and one.equals(other, range(begin), 0, 0.0)
        and one.equals(other, range(begin, one.size), block, shift)
        and other.equals(other, range(begin - reach, begin), block, shift)
    )


class _Columns:
    """What the events of a log are, and when, as columns."""

    def __init__(self, rows: Sequence[Any], same: float) -> None:
        self.size, self._same = len(rows) // STRIDE, same
        self.what = list(zip(*(rows[column::STRIDE] for column in (TYP, LAYER, STREAM, PRICE, MEMORY)), strict=True))
        self._times, self._launched = rows[TIME::STRIDE], rows[LAUNCHED::STRIDE]
        self._notes = rows[NOTE::STRIDE]

    def reach(self, end: int) -> int:
        """Return after how many events the last result before an end is awaited, or given to another operation."""
        notes = [(place, note) for place, note in enumerate(self._notes[:end]) if note is not None]
        awaited = (note.awaited - place for place, note in notes if note.awaited is not None and note.awaited <= end)
        return max([*awaited, *(place - before for place, note in notes for before in note.after)], default=0)

    def equals(self, other: _Columns, places: range, further: int, shift: float) -> bool:
        """Return whether the other has the same events so many places further, all times later by the same."""
        return all(
            self.what[place] == other.what[place + further]
            and abs(other._times[place + further] - self._times[place] - shift) <= self._same
            and self._is_launched_alike(place, other, place + further, shift)
            for place in places
        )

    def _is_launched_alike(self, place: int, other: _Columns, later: int, shift: float) -> bool:
        one, two = self._launched[place], other._launched[later]
        return one is two is None or (None not in (one, two) and abs(two - one - shift) <= self._same)


def _long_run(
    prepared: PreparedRun, meant: LocalSteps, shorter: Run, longer: Run, num_steps: int, period: int
) -> LongRun:
    """Return the whole loop."""
    found = {each.name: getattr(longer, each.name) for each in fields(Run)}
    times, batch = (meant.steps - num_steps) // period, prepared.parameters.global_batch_size
    trained = longer.trained_model
    of_whole = {
        "global_batch_size": batch,
        "options": prepared.options,
        "prepared": prepared,
        "useful_flop": _further(shorter.useful_flop, longer.useful_flop, times),
        "trained_model": trained and replace(trained, **_counts(shorter.trained_model, trained, times)),
        "logs": [
            SummaryLog(rank, range(STRIDE * _further(len(log), len(late), times)))  # type: ignore[arg-type]
            for rank, (log, late) in enumerate(zip(shorter.logs, longer.logs, strict=True))
        ],
    }
    of_block = {"shorter": shorter, "longer": longer, "times": times, "meant": meant, "num_steps": num_steps}
    return LongRun(**{**found, **of_whole, **of_block}, period=period)


def _counts(shorter: Any, longer: Any, times: int) -> dict[str, Any]:
    names = "recomputed_flop", "routed_copies", "dropped_copies"
    return {name: _further(getattr(shorter, name), getattr(longer, name), times) for name in names}


def _further(shorter: Any, longer: Any, times: int) -> Any:
    """Return what a run has with a block so many times, where two have it not at all, and once."""
    if isinstance(shorter, Mapping):
        return {key: _further(value, longer[key], times) for key, value in shorter.items()}
    if isinstance(shorter, tuple):
        return type(shorter)(*(_further(one, other, times) for one, other in zip(shorter, longer, strict=True)))
    if isinstance(shorter, list):
        return [_further(one, other, times) for one, other in zip(shorter, longer, strict=True)]
    return shorter + times * (longer - shorter)


@dataclass(frozen=True, repr=False)
class LongRun(EventlessRun):
    """A loop of alike steps, of which some were simulated: figures without events.

    Args:
        shorter: the run of a few steps, and `longer` of some more, whose `models` this one has.
        longer: it has the block that repeats once more.
        times: how often the whole loop has that block beside the shorter run.
        meant: what the strategy means to compute.
        num_steps: steps of the shorter run.
        period: steps of the block.
    """

    shorter: Run = field(default=None, repr=False, compare=False)  # type: ignore[assignment]  # it is always given
    longer: Run = field(default=None, repr=False, compare=False)  # type: ignore[assignment]  # likewise
    times: int = field(default=0, repr=False, compare=False)
    meant: LocalSteps = field(default=None, repr=False, compare=False)  # type: ignore[assignment]  # likewise
    num_steps: int = field(default=0, repr=False, compare=False)
    period: int = field(default=1, repr=False, compare=False)

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""
        return int(_further(self.shorter.num_events, self.longer.num_events, self.times))

    @property
    def clocks(self) -> Sequence[float]:
        """When each rank has ended all that it did, s."""
        return [*map(_further, self.shorter.clocks, self.longer.clocks, repeat(self.times))]

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        ranks = map(_further, self.shorter.breakdown.ranks, self.longer.breakdown.ranks, repeat(self.times))
        return replace(self.longer.breakdown, step_time_s=self.step_time, ranks=list(ranks))

    @cached_property
    def round(self) -> Steps | None:
        """The steps of the loop; None where the strategy does not say when it begins each."""
        short, long = ([model._begun for model in run.class_models] for run in (self.shorter, self.longer))
        if not short[0]:
            return None
        ends, late_ends = ([model.time for model in run.class_models] for run in (self.shorter, self.longer))
        return steps_of_round([*map(self._begun, short, long)], _further(ends, late_ends, self.times))

    def _begun(self, short: Sequence[float], long: Sequence[float]) -> list[float]:
        """Return when a rank begins each step: those of the longer run, of its last block again, and what is left."""
        block = self.longer.last_clock - self.shorter.last_clock
        same, first, again = _SAME * self.longer.last_clock, self.num_steps, self.period
        while first and abs(long[first - 1 + again] - short[first - 1] - block) <= same:
            first -= 1
        between = range(again * self.times)
        middle = [long[first + place % again] + place // again * block for place in between]
        return [*long[:first], *middle, *(begun + self.times * block for begun in short[first:])]


def _of_both(name: str) -> property:
    """Return a figure that is a sum over events, or a clock after them."""
    return property(lambda run: _further(getattr(run.shorter, name), getattr(run.longer, name), run.times))


for _name in ("last_clock", "step_time", "by_type", "communication_by_axis", "_passes"):
    setattr(LongRun, _name, _of_both(_name))
for _name in ("is_folded", "class_models", "load_time", "loads_alike", "peak_watts"):
    setattr(LongRun, _name, property(attrgetter(f"longer.{_name}")))
