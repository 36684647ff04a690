"""The memory that an operation holds from its launch to its await.

What it was given counts unless a store holds it already, and so does its result. Reductions work in place, as on a
device: their result is part of what they were given. A result whose size is not known at the launch (a message that
was not sent yet) is counted back to the launch as soon as it is, so that the log never depends on who was first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minitrain.events import MEMORY, NOTE, STRIDE, Note

if TYPE_CHECKING:
    from minitrain.rank.operations import Work

_RESULT_IS_NEW = frozenset({"all_gather", "all_to_all", "broadcast", "recv"})


class InFlight:
    """What one launched operation holds.

    Args:
        work: the operation, just submitted.
    """

    __slots__ = ("awaited", "lent", "units", "window")

    def __init__(self, work: Work) -> None:
        account = work.model.account
        self.awaited = False
        self.window: int | None = None
        self.lent: list[Any] = []
        self.units = 0
        for value in _items(work.value):
            if getattr(value, "_home", None) is account:
                self.lent.append(value)
                account.used_by_launches[id(value)] = 0
            elif value is not None:
                self.units += account.units_of(value)
        account.grow(self.units)
        _enter(work, self.units)
        mark_overlap(work)
        alone = work.settled and work.outcome is work.value  # a lone rank gets what it gave
        if work.op in _RESULT_IS_NEW and work.detail != work.rank and not alone:
            self.window = account.open_window()
            if work.settled and work.error is None:
                self.know_result(work)

    def know_result(self, work: Work) -> None:
        """Count the result from the launch on, now that it is known."""
        if self.window is None:
            return
        account = work.model.account
        units = sum(map(account.units_of, _items(work.outcome)))
        rows = work.model.log.rows
        for row in range(work.row + STRIDE, len(rows), STRIDE):
            rows[row + MEMORY] += units
        account.backdate(self.window, units)  # which may find too much, and look among the rows for when
        self.units += units
        self.window = None
        _enter(work, units)

    def end(self, work: Work) -> None:
        """Give everything back: whoever awaited the operation has the result now."""
        self.awaited = True
        account = work.model.account
        for value in self.lent:
            self.units += account.used_by_launches.pop(id(value), 0)
        account.units -= self.units
        _enter(work, -self.units, len(work.model.log))
        del work.model.in_flight[id(work)]


def _enter(work: Work, units: int, place: int | None = None) -> None:
    """Enter a change in the account's journal, at the operation's launch unless another place is given."""
    journal = work.model.account.journal
    if journal is not None and units:
        journal.append((work.row // STRIDE + 1 if place is None else place, "in_flight", units))


def _items(value: Any) -> list[Any]:
    """Return the tensors of a bucket, or the one tensor."""
    return value if isinstance(value, list) else [value]


def mark_overlap(work: Work) -> Note:
    """Return the note of an operation's event, which says that it may run beside others."""
    rows = work.model.log.rows
    note: Note = rows[work.row + NOTE] or Note()
    rows[work.row + NOTE] = note
    note.overlaps = True
    return note
