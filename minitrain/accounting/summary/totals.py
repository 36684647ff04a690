"""What the events of one rank come to, taken in portions from the beginning of its log."""

from __future__ import annotations

from typing import Any

from minitrain.analysis.busy_time import BusyTimeSum, Interval, PassTimeSum, intervals_of
from minitrain.analysis.totals_by_type import TypeSums
from minitrain.events import PASSES, STRIDE


class RankTotals:
    """The totals of one rank.

    Time at work is a sum over intervals in order of their start, but events stand in program order, and what was
    launched may start late. So intervals wait here until no earlier one can come.

    Args:
        by_type: the totals by type, which all ranks share.

    Attributes:
        num_events: events taken so far.
        working: time at work, of those intervals that nothing can precede.
        passing: passes through layers.
    """

    __slots__ = ("_late", "by_type", "num_events", "passing", "working")

    def __init__(self, by_type: TypeSums) -> None:
        self.by_type = by_type
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
        known = sorted(self._late + intervals_of(rows))
        self._late = [interval for interval in known if interval[0] >= complete_until]
        self.working.add(known[: len(known) - len(self._late)])
