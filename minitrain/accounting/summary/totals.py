"""The totals of one rank's events, and the log that takes their place.

Totals are taken from portions of the rows, from the beginning of the log on. The log of such a rank knows its length
and the totals; to read an event of it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, overload

from minitrain.analysis.busy_time import BusyTimeSum, Interval, PassTimeSum, intervals_of
from minitrain.analysis.communication import AxisSums
from minitrain.analysis.totals_by_type import TypeSums
from minitrain.errors import UsageError
from minitrain.events import PASSES, STRIDE, Event, ReadOnlyLog


class RankTotals:
    """The totals of one rank.

    Time at work is a sum over intervals in order of their start, but events stand in program order, and what was
    launched may start late. So intervals wait here until no earlier one can come.

    Args:
        by_type: the totals by type, which all ranks share.
        by_axis: what the rank communicates along each axis; None where layers are alike, as it is not reported then.

    Attributes:
        num_events: events taken so far.
        working: time at work, of those intervals that nothing can precede.
        passing: passes through layers.
    """

    __slots__ = ("_late", "by_axis", "by_type", "num_events", "passing", "working")

    def __init__(self, by_type: TypeSums, by_axis: AxisSums | None = None) -> None:
        self.by_type = by_type
        self.by_axis = by_axis
        self.num_events = 0
        self.working = BusyTimeSum()
        self.passing = PassTimeSum(PASSES)
        self._late: list[Interval] = []

    def take(self, rows: list[Any], complete_until: float) -> None:
        """Take the next rows of the log.

        Args:
            rows: complete ones, which follow those taken before.
            complete_until: no event that is still to come starts earlier, s.
        """
        self.num_events += len(rows) // STRIDE
        self.by_type.add(rows)
        self.passing.add(rows)
        if self.by_axis is not None:
            self.by_axis.take_rows(rows, complete_until)
        known = sorted(self._late + intervals_of(rows))
        self._late = [interval for interval in known if interval[0] >= complete_until]
        self.working.add(known[: len(known) - len(self._late)])


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
