"""Stores that also tell the ledger what they hold, so that it knows what is held outside of them."""

from __future__ import annotations

from typing import Any, TypeVar

from minitrain.journal import JournalledStore
from minitrain.storage import Store

V = TypeVar("V")


_keep = dict.setdefault
_replace = dict.__setitem__
_take = dict.pop


class FollowedStore(Store[V]):
    """A store of a strict run.

    As in `Store`, the forms are chosen for speed: what that does is written out here again, since a call would double
    its time.
    """

    __slots__ = ()

    def __setitem__(self, key: Any, value: V) -> None:
        account = self.account
        try:
            units = value._units  # type: ignore[attr-defined]  # a slot of tensors, as those below
        except AttributeError:
            units = account.size(value)
        size = len(self)
        before = _keep(self, key, value)
        if len(self) == size:  # the key was there
            self._leave(before)
            _replace(self, key, value)
        value._home = account  # type: ignore[attr-defined]
        if account.loans:
            account.change_hands(value, stored=True)
        account.units = total = account.units + units
        if total > account.peak_units:
            account.peak_units = total
        try:
            buffer = value._origin.buffer  # type: ignore[attr-defined]
        except AttributeError:  # not a genuine one
            return
        buffer.stored = stored = buffer.stored + 1
        if stored == 1:
            buffer.ledger.stored += buffer.units
            buffer.line.outside -= buffer.units

    def __delitem__(self, key: Any) -> None:
        self._leave(_take(self, key))

    def _leave(self, value: Any) -> None:
        """Take a tensor's size off the account, and note that it is not stored any more."""
        account = self.account
        value._home = None
        account.units -= value._units
        if account.loans:
            account.change_hands(value, stored=False)
        try:
            buffer = value._origin.buffer
        except AttributeError:
            return
        buffer.stored = stored = buffer.stored - 1
        if not stored:
            buffer.ledger.stored -= buffer.units
            buffer.line.outside += buffer.units


class JournalledFollowedStore(JournalledStore[V], FollowedStore[V]):
    """A store of a strict run that also keeps the journal."""

    __slots__ = ()
