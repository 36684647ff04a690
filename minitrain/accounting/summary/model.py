"""A rank that adds its events to totals and drops them.

Rows are buffered, and flushed to the totals when there are many. A row can be flushed when it is complete and no
operation refers to it by its index. Rows leave in program order, as sums take them in that order; so an operation that
stays in flight for long keeps the rows after it in the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from minitrain.accounting.summary.totals import RankTotals, SummaryLog
from minitrain.analysis.communication import AxisSums, axis_finder
from minitrain.analysis.totals_by_type import TypeSums
from minitrain.events import LAUNCHED, ON_COMPUTE, RECV, STREAM, STRIDE
from minitrain.rank.model import Model
from minitrain.rank.operations import Operation

EVENTS_OF_RUN, EVENTS_OF_RANK = 2**18, 64  # buffered: about so many of all ranks, at least so many of each


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
