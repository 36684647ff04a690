"""Memory by kind: stores that enter every change in a journal, for those who want curves of each store."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

from minitrain.storage import Account, Store

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

    def _enter(self, before: int) -> None:
        """Enter what has changed since the total was `before`."""
        if self.account.journal is not None:
            self.account.journal.append((len(self.log), self.name, self.account.units - before))

    def __setitem__(self, key: Any, value: V) -> None:
        before = self.account.units
        super().__setitem__(key, value)
        self._enter(before)

    def __delitem__(self, key: Any) -> None:
        before = self.account.units
        super().__delitem__(key)
        self._enter(before)

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value."""
        before = self.account.units
        value = super().pop(key, *default)
        self._enter(before)
        return value

    def popitem(self) -> tuple[Any, V]:
        """Remove and return the pair that came last."""
        before = self.account.units
        pair = super().popitem()
        self._enter(before)
        return pair
