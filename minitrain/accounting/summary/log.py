"""The log of a rank whose events are not kept: its length, and an error for whoever wants more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, overload

from minitrain.accounting.summary.totals import RankTotals
from minitrain.errors import UsageError
from minitrain.events import STRIDE, Event


class SummaryLog(Sequence[Event]):
    """How many events a rank had, and what they came to.

    Args:
        rank: whose log it is.
        rows: the rows that are not in the totals yet.
        totals: what the others come to.
    """

    __slots__ = ("rank", "rows", "totals")

    def __init__(self, rank: int, rows: list[Any], totals: RankTotals) -> None:
        self.rank = rank
        self.rows = rows
        self.totals = totals

    def __len__(self) -> int:
        return self.totals.num_events + len(self.rows) // STRIDE

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
