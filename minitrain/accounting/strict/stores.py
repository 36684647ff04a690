"""The stores of a strict run: they also tell the ledger what they hold, so that it knows what is held outside of them.

The code of `minitrain.rank.stores.Store` is written out here again with the additions, as this is the hot path. Where
both must agree, in the account and the values, tests/accounting/test_strict_laws.py compares them.
"""

from __future__ import annotations

from typing import Any, TypeVar

from minitrain.rank.stores import JournalledStore, Store

V = TypeVar("V")


_get = dict.get
_keep = dict.setdefault
_replace = dict.__setitem__
_take = dict.pop
_MISSING = object()


class FollowedStore(Store[V]):
    """A store of a strict run.

    What `Store` does, and `enter` and `leave` of a `Buffer`, are written out, since calls would double the time. The
    account's high-water mark is left out: a strict run reports that of the ledger.
    """

    __slots__ = ()

    def __setitem__(self, key: Any, value: V) -> None:
        account = self._account
        try:
            units = value._units  # type: ignore[attr-defined]  # a slot of tensors, as those below
        except AttributeError:
            units = account.size(value)
        before = _get(self, key, _MISSING)
        try:
            origin = value._origin  # type: ignore[attr-defined]
            if origin.usable_by is None:
                origin = origin.buffer
        except AttributeError:  # a tensor made before the run
            origin = None
        if origin is not None:
            origin.holders = stored = origin.holders + 1
            if stored == 1:
                origin.ledger.stored += origin.units
                origin.line.outside -= origin.units
        if before is _MISSING:
            _keep(self, key, value)
        else:  # a value that shares its buffer has entered above
            self._leave(before)
            _replace(self, key, value)
        value._home = account  # type: ignore[attr-defined]
        if account.launched_tensors:
            account.recount_launched(value, stored=True)
        account.units += units

    def _leave(self, value: Any) -> None:
        """Take a tensor's size off the account, and note that it is not stored any more."""
        account = self._account
        value._home = None
        account.units -= value._units
        if account.launched_tensors:
            account.recount_launched(value, stored=False)
        try:
            origin = value._origin
            if origin.usable_by is None:
                origin = origin.buffer
        except AttributeError:
            return
        if origin is not None:
            origin.holders = stored = origin.holders - 1
            if not stored:
                origin.ledger.stored -= origin.units
                origin.line.outside += origin.units

    def __delitem__(self, key: Any) -> None:
        self._leave(_take(self, key))

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Remove a key and return its value."""
        if default is not _MISSING and key not in self:
            return default
        value = _take(self, key)
        self._leave(value)
        return value

    def popitem(self) -> tuple[Any, V]:
        """Remove and return the pair that came last."""
        key, value = dict.popitem(self)
        self._leave(value)
        return key, value


class JournalledFollowedStore(JournalledStore[V], FollowedStore[V]):
    """A store of a strict run that also keeps the journal."""

    __slots__ = ()
