"""A rank that adds its events to totals and drops them, and the log that takes the place of its own.

Rows are buffered, and flushed to the totals when there are many. A row can be flushed when it is complete and no
operation refers to it by its index. Rows leave in program order, as sums take them in that order; so an operation that
stays in flight for long keeps the rows after it in the buffer. The log of such a rank knows its length and the totals;
to read an event of it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, overload

from minitrain.analysis.breakdown import (
    AxisSums,
    BusyTimeSum,
    Interval,
    PassTimeSum,
    TypeSums,
    axis_finder,
    intervals_of,
    load_end_of,
)
from minitrain.errors import UsageError
from minitrain.events import (
    LAUNCHED,
    LAYER,
    LOAD_WEIGHTS,
    MEMORY,
    ON_COMPUTE,
    PASSES,
    RECV,
    SAMPLES,
    STREAM,
    STRIDE,
    TYP,
    Event,
    ReadOnlyLog,
)
from minitrain.rank.model import Model
from minitrain.rank.operations import Operation

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


class SummaryLog(ReadOnlyLog):
    """A log without events: how many there were, and their totals.

    Args:
        rank: whose log it is.
        rows: the rows that are not in the totals yet.
        totals: those of the other rows.
    """

    __slots__ = ("_rank", "_rows", "_totals")

    def __init__(self, rank: int, rows: list[Any], totals: RankTotals) -> None:
        self._rank = rank
        self._rows = rows
        self._totals = totals

    @property
    def rank(self) -> int:
        """Whose log it is."""
        return self._rank

    @property
    def totals(self) -> RankTotals:
        """The totals of the events that are not in rows any more."""
        return self._totals

    @property
    def rows_of_memory(self) -> list[Any]:
        """The rows that say what a device must hold."""
        return self.totals.rows_of_memory

    def __len__(self) -> int:
        return self.totals.num_events + len(self._rows) // STRIDE

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


class BufferedRows(list[Any]):
    """The buffered rows of a log.

    Args:
        flush: takes rows away; called at a moment when no code is about to use the index of a row.
        limit: number of places in the list from which on it is called.
    """

    __slots__ = ("flush", "limit")

    def __init__(self, flush: Callable[[], None], limit: int) -> None:
        super().__init__()
        self.flush = flush
        self.limit = limit

    def extend(self, row: Any) -> None:
        """Add a row. A row of computing is complete; whoever adds one of a communication uses its index next."""
        super().extend(row)
        if len(self) >= self.limit and row[STREAM] is ON_COMPUTE:
            self.flush()


def _flush_nothing() -> None:
    """Flush nothing: the run is over."""


class SummaryOperation(Operation):
    """An operation that its model knows as long as it needs its row; the model moves its index when rows leave."""

    __slots__ = ()

    model: SummaryModel

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        model = self.model
        model.holding[self] = None
        if len(model._rows) >= model._rows.limit:
            model.flush()

    def __await__(self) -> Generator[Any, None, Any]:
        outcome = yield from super().__await__()
        self.model.holding.pop(self, None)  # a launched operation can be awaited again
        return outcome

    def pass_on(self) -> None:
        """End with the chain that it is a part of."""
        super().pass_on()
        self.model.holding.pop(self, None)


class SummaryModel(Model):
    """One rank of a run that keeps totals.

    Adds:
        _operation_kind: operations that tell the model as long as it must keep their row.

    Args:
        args: those of `Model`.
        by_type: the totals by type, which all ranks share.
        most_events: events buffered before they are flushed.
        parameters: those of `Model`.

    Attributes:
        holding: operations whose rows are needed, in program order: they wait, or were launched and not awaited.
    """

    _operation_kind = SummaryOperation
    _rows: BufferedRows

    def __init__(self, *args: Any, by_type: TypeSums, most_events: int, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.holding: dict[SummaryOperation, None] = {}
        by_axis = None if self._is_uniform else AxisSums(axis_finder(self._rank, self._world_size, self._meshes))
        self.totals = RankTotals(by_type, by_axis)
        self._room = most_events * STRIDE
        self._rows = BufferedRows(self.flush, self._room)
        self._log = SummaryLog(self._rank, self._rows, self.totals)  # type: ignore[assignment]  # a log, but not to read

    def flush(self) -> None:
        """Add the rows before the first one that an operation needs to the totals."""
        for operation in [
            operation
            for operation in self.holding
            if operation.is_abandoned and (operation.settled or operation.op == RECV)
        ]:
            del self.holding[operation]
        first = next(iter(self.holding), None)
        if first is None:
            self._take(len(self._rows), self.time)
        else:  # operations after it were launched later, and start later
            self._take(first.row, self._rows[first.row + LAUNCHED])
        self._rows.limit = max(self._room, 2 * len(self._rows))

    def finish(self) -> None:
        """Add what is left, at the end of the run."""
        self._take(len(self._rows), math.inf)
        self._rows.flush = _flush_nothing  # a method of this model would be a cycle and keep it alive

    def _take(self, num_places: int, complete_until: float) -> None:
        """Add the first rows to the totals."""
        self.totals.take(self._rows[:num_places], complete_until)
        del self._rows[:num_places]
        for operation in self.holding:
            operation.row -= num_places


def summary_models(world_size: int) -> Callable[..., SummaryModel]:
    """Return what makes the models of a run, which share the room for buffered events."""
    by_type, most_events = TypeSums(), max(EVENTS_OF_RUN // world_size, EVENTS_OF_RANK)

    def make(*args: Any, **parameters: Any) -> SummaryModel:
        return SummaryModel(*args, by_type=by_type, most_events=most_events, **parameters)

    return make
