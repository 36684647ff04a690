"""The log of a rank that adds its events to totals and drops them.

Rows are buffered, and flushed to the totals when there are many. A row can be flushed when it is complete: when its
operation is settled. Rows leave in program order, as sums take them in that order; so an operation that waits for long
keeps the rows after it in the buffer. The log knows its length and the totals; to read an event of it is an error.

A run whose events were not kept: the figures of a whole one, read from totals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, overload

from minitrain.engine.model import Model
from minitrain.errors import UsageError
from minitrain.machine.price import PENDING
from minitrain.operations import (
    LAUNCHED,
    LAYER,
    LOAD_WEIGHTS,
    MEMORY,
    PASSES,
    PRICE,
    SAMPLES,
    STREAM,
    STRIDE,
    TYP,
    Event,
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
from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.run.analysis.breakdown import AxisTotal, Breakdown, PassTime, TypeTotal

EVENTS_OF_RUN, EVENTS_OF_RANK = 2**18, 64  # buffered: about so many of all ranks, at least so many of each


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

    __slots__ = (
        "_late",
        "_loads",
        "_memory_rows",
        "by_axis",
        "by_type",
        "load_end",
        "num_events",
        "passing",
        "working",
    )

    def __init__(self, by_type: TypeSums, by_axis: AxisSums | None = None) -> None:
        self.by_type = by_type
        self.by_axis = by_axis
        self.num_events = 0
        self.load_end = 0.0
        self._loads = True
        self.working = BusyTimeSum()
        self.passing = PassTimeSum(PASSES)
        self._late: list[Interval] = []
        self._memory_rows: dict[Any, list[Any]] = {}

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
            self._take_loads(rows)
        known = sorted(self._late + intervals_of(rows))
        self._late = [interval for interval in known if interval[0] >= complete_until]
        self.working.add(known[: len(known) - len(self._late)])

    def _take_loads(self, rows: list[Any]) -> None:
        """Begin to count time at work when the loads before the first other operation end."""
        self.load_end = load_end_of(rows) or self.load_end
        self.working = BusyTimeSum(self.load_end)
        self._loads = all(typ == LOAD_WEIGHTS for typ in rows[TYP::STRIDE])

    @property
    def rows_of_memory(self) -> list[Any]:
        """The rows that say what a device must hold, see `minitrain.run.device_memory`."""
        return [value for row in self._memory_rows.values() for value in row]

    def _keep_of_memory(self, rows: list[Any]) -> None:
        """Keep the first row that notes most: of all, and of losses with as many samples; and a row of each stream."""
        for start in range(0, len(rows), STRIDE):
            typ, stream = rows[start + TYP], rows[start + STREAM]
            detail = rows[start + LAYER] if typ == LOAD_WEIGHTS else len(rows[start + SAMPLES]) if typ == "loss" else 0
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
            self._flush()

    def _flush(self) -> None:
        """Add the rows before the first one that waits to the totals."""
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

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        self._refuse()

    def __iter__(self) -> Iterator[Event]:
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
class SummaryRun(Run):
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

    @property
    def keeps_events(self) -> bool:
        """Whether the logs can be read: they hold totals."""
        return False

    def _picture_html(self) -> str:
        """Return no picture: it would need every event."""
        return ""

    def _timeline_html(self) -> str:
        """Return no timeline, for the same reason."""
        return ""
