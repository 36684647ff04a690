"""Memory by kind: stores that enter every change in a journal, for those who want curves of each store."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

from minitrain.rank.stores import Account, Store

V = TypeVar("V")


class JournalledStore(Store[V]):
    """A store that enters every change in its account's journal, for memory curves by kind.

    Args:
        account: the rank's account.
        name: which of the five stores it is.
        log: the rank's log.
    """

    __slots__ = ("log", "name")

    def __init__(self, account: Account, name: str, log: Sized) -> None:
        super().__init__(account)
        self.name = name
        self.log = log

    def _enter(self, before: int, change: int) -> None:
        """Enter how the store changed; any other change of the total is of what launched operations count."""
        journal = self.account.journal
        if journal is not None:
            place = len(self.log)
            journal.append((place, self.name, change))
            if self.account.units - before != change:
                journal.append((place, "in_flight", self.account.units - before - change))

    def __setitem__(self, key: Any, value: V) -> None:
        before = self.account.units
        replaced = self.account.units_of(self[key]) if key in self else 0
        super().__setitem__(key, value)
        self._enter(before, self.account.units_of(value) - replaced)

    def __delitem__(self, key: Any) -> None:
        value, before = self[key], self.account.units
        super().__delitem__(key)
        self._enter(before, -self.account.units_of(value))

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value."""
        held, before = key in self, self.account.units
        value = super().pop(key, *default)
        if held:
            self._enter(before, -self.account.units_of(value))
        return value

    def popitem(self) -> tuple[Any, V]:
        """Remove and return the pair that came last."""
        before = self.account.units
        key, value = super().popitem()
        self._enter(before, -self.account.units_of(value))
        return key, value
