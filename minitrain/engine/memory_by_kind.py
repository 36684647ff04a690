"""What a rank's memory consists of when it holds most: weights, gradients, optimizer state, activations, logits.

Where layers differ, stores also add up what they hold of each kind, and the account remembers the kinds at its
high-water mark. What it holds beside tensors in stores is buffers: results and operands of communications in flight.

The code of `minitrain.engine.stores.Store` is written out here again with the additions, as this is the hot path of
transformers; runs of layers that are alike use that store, and pay nothing. tests/engine/test_stores.py checks that
both hold and count the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from minitrain.engine.stores import Account, Store, logits_of
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

V = TypeVar("V")

MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
"""The kinds of memory. Gradients of activations count as activations."""

_ACTIVATIONS, _LOGITS, _BUFFERS = (MEMORY_KINDS.index(kind) for kind in ("activations", "logits", "buffers"))
_KINDS: Mapping[type[Any], int] = {Weight: 0, WeightGrad: 1, OptState: 2, Activation: 3, ActivationGrad: 3}


class _KindOf(dict[type[Any], int]):
    """The kind of each class of tensor: that of the class that it extends."""

    def __missing__(self, cls: type[Any]) -> int:
        self[cls] = found = next((kind for base, kind in _KINDS.items() if issubclass(cls, base)), _BUFFERS)
        return found


_kind_of = _KindOf()


def kind_of(tensor: Any) -> str:
    """Return the kind of memory that a tensor takes."""
    return MEMORY_KINDS[_kind_of[tensor.__class__]]


_keep = dict.setdefault
_take = dict.pop
_replace = dict.__setitem__


class KindAccount(Account):
    """An account that knows what kinds it held at its high-water mark.

    Attributes:
        held: units in stores now, by kind.
        has_logits: whether any activation was ever marked.
        at_peak: the same when the total was highest since the last window was opened.
    """

    __slots__ = ("_past", "at_peak", "has_logits", "held")

    def __init__(self, measure: Callable[[Any], float]) -> None:
        super().__init__(measure)
        self.held = [0] * len(MEMORY_KINDS)
        self.at_peak = self.held.copy()
        self._past: list[list[int]] = []
        self.has_logits = False

    def peak_by_kind(self) -> dict[str, float]:
        """Return the elements of each kind when the total was highest."""
        peaks = [*self._past_peaks, self.peak_units]
        top = max(range(len(peaks)), key=peaks.__getitem__)
        held = [*self._past, self.at_peak][top]
        in_stores = sum(held) - held[_BUFFERS]
        units = [*held[:_BUFFERS], peaks[top] - in_stores]
        return {kind: size / UNITS_PER_ELEMENT for kind, size in zip(MEMORY_KINDS, units, strict=True)}

    def grow(self, units: int) -> None:
        """Add to the total and keep the high-water mark."""
        before = self.peak_units
        super().grow(units)
        if self.peak_units > before:
            self.at_peak = self.held.copy()

    def borrow(self, units: int) -> None:
        """Hold activations for a moment: what backward computes again."""
        self.held[_ACTIVATIONS] += units
        super().borrow(units)
        self.held[_ACTIVATIONS] -= units

    def resize(self, tensor: Any, units: int) -> int:
        """Give a tensor another size, wherever it counts now; see `Account.resize`."""
        if getattr(tensor, "_home", None) is self:
            self.held[_kind_of[tensor.__class__]] += units - self.units_of(tensor)
        return super().resize(tensor, units)

    def mark_logits(self, tensor: Any, units: int) -> None:
        """Count so many units of an activation as logits."""
        self.has_logits = True
        if getattr(tensor, "_home", None) is self:
            self.move_logits(units - logits_of(tensor))
        super().mark_logits(tensor, units)

    def move_logits(self, units: int) -> None:
        """Count so many more units of activations as logits."""
        self.held[_ACTIVATIONS] -= units
        self.held[_LOGITS] += units

    def open_window(self) -> int:
        """Keep peaks apart for the time before and after: see `Account.open_window`."""
        self._past.append(self.at_peak)
        self.at_peak = self.held.copy()
        return super().open_window()

    def backdate(self, window: int, units: int) -> None:
        """Add the size of something to all totals and peaks since its window was opened."""
        if self._open_windows == 1:
            added = [units if place >= window else 0 for place in range(len(self._past_peaks))]
            peaks = [*map(sum, zip(self._past_peaks, added, strict=True)), self.peak_units + units]
            self.at_peak = [*self._past, self.at_peak][max(range(len(peaks)), key=peaks.__getitem__)]
            self._past.clear()
        super().backdate(window, units)


class KindStore(Store[V]):
    """A store that adds up what it holds of each kind."""

    __slots__ = ()

    _account: KindAccount

    def __setitem__(self, key: Any, value: V) -> None:
        account = self._account
        try:
            units = value._units  # type: ignore[attr-defined]  # a slot of tensors, as below
        except AttributeError:
            units = account.size(value)
        size = len(self)
        before = _keep(self, key, value)
        if len(self) == size:  # the key was there
            self._leave(before)
            _replace(self, key, value)
        value._home = account  # type: ignore[attr-defined]
        if account.launched_tensors:
            account.recount_launched(value, stored=True)
        kind = _kind_of[value.__class__]
        account.held[kind] += units
        if kind == _ACTIVATIONS and account.has_logits and logits_of(value):
            account.move_logits(logits_of(value))
        account.units = total = account.units + units
        if total > account.peak_units:
            account.peak_units = total
            account.at_peak = account.held.copy()
            if total > account.limit_units:
                account.overflow()

    def _leave(self, value: Any) -> None:
        """Take a tensor's size off the account, as it is no longer stored."""
        account = self._account
        value._home = None
        units = value._units
        account.units -= units
        kind = _kind_of[value.__class__]
        account.held[kind] -= units
        if kind == _ACTIVATIONS and account.has_logits and logits_of(value):
            account.move_logits(-logits_of(value))
        if account.launched_tensors:
            account.recount_launched(value, stored=False)

    def __delitem__(self, key: Any) -> None:
        self._leave(_take(self, key))
