"""What a rank holds in memory: its stores, and the account of what they hold together.

`Model.memory()` is the sum of `memory()` over all stored tensors. The account keeps that total up to date whenever an
entry comes or goes. So an event costs O(1), and the true high-water mark is known also between events. The total is an
integer number of units, of 2**-40 element each, so that rounding errors cannot add up. A launched operation holds
memory too; a tensor that both a store and a launched operation use is counted once.

- `Store` and `Account` serve runs whose layers are alike.
- `JournalledStore` also writes down every change, for curves of memory by kind.
- `KindStore`, where layers differ, also adds up what it holds of each kind (weights, gradients, optimizer state,
  activations, logits). `KindAccount` remembers the kinds at its high-water mark; what it holds beside tensors in stores
  is buffers. Other runs pay nothing. tests/engine/test_stores.py checks that both hold and count the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from inspect import iscoroutine
from itertools import islice
from typing import Any, NoReturn, TypeVar

from minitrain.errors import TensorTypeError, made_a_tensor
from minitrain.operations import UNITS_PER_ELEMENT
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad

_MISSING = object()
_MOST_LISTED = 8
V = TypeVar("V")


class Journal:
    """Every change of what a rank holds, in program order, with the tensor that it is of.

    A tensor that is held no more and comes again has another number: its memory may be elsewhere then.

    Args:
        log: the rank's log.

    Attributes:
        changes: (length of the log then, store, signed units, number of the tensor, its layer).
    """

    __slots__ = ("_held", "_log", "_number", "changes")

    def __init__(self, log: Sized) -> None:
        self._log = log
        self.changes: list[tuple[int, str, int, int, int | None]] = []
        self._held: dict[int, list[int]] = {}  # number and units of each tensor that is held, by identity
        self._number = 0

    def enter(self, kind: str, units: int, tensor: Any, place: int | None = None) -> None:
        """Write down that some of a tensor entered, or left.

        Args:
            kind: the store, or "in_flight".
            units: how much, negative for what left.
            tensor: the tensor.
            place: the length of the log to date it to; that of now by default.
        """
        if not units and kind == "in_flight":
            return
        held = self._held.get(id(tensor))
        if held is None:
            self._number += 1
            held = self._held[id(tensor)] = [self._number, 0]
        held[1] += units
        if not held[1]:
            del self._held[id(tensor)]
        place = len(self._log) if place is None else place
        self.changes.append((place, kind, units, held[0], getattr(tensor, "layer", None)))


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """The running total of one rank's memory.

    Args:
        measure: returns the elements that a tensor holds.
        limit_units: the device's capacity in units.
        on_overflow: called once, when the total first exceeds the limit.

    Attributes:
        units: the total now.
        peak_units: the highest total since the last window was opened, or since the start if no window is open.
        launched_tensors: the tensors that were in a store when an operation that uses them was launched, by identity.
            The value is the number of units that count for the operation: 0 while a store holds the tensor, since it
            counts there; its size otherwise.
        journal: every change, or None if nobody asked for it.
    """

    measure: Callable[[Any], float]
    limit_units: float = float("inf")
    on_overflow: Callable[[], None] | None = None
    journal: Journal | None = None
    launched_tensors: dict[int, int] = field(default_factory=dict)
    units: int = 0
    peak_units: int = 0
    _past_peaks: list[int] = field(default_factory=list)
    _open_windows: int = 0

    def size(self, tensor: Any) -> int:
        """Measure a tensor, let it know its size, and return it in units.

        Raises:
            TensorTypeError: it is no tensor.
        """
        try:
            tensor._units = units = int(self.measure(tensor) * UNITS_PER_ELEMENT)
        except AttributeError:
            found = type(tensor).__name__ + ("" if iscoroutine(tensor) else f" ({tensor!r:.80})")
            message = f"only tensors can be held in a store, got {found}{made_a_tensor(tensor)}"
            raise TensorTypeError(message, value=tensor) from None
        return units

    def units_of(self, tensor: Any) -> int:
        """Return the size of a tensor in units: what it had when it was made or first stored."""
        try:
            return tensor._units  # type: ignore[no-any-return]
        except AttributeError:
            return self.size(tensor)

    def grow(self, units: int) -> None:
        """Add to the total and keep the high-water mark."""
        self.units = total = self.units + units
        if total > self.peak_units:
            self.peak_units = total
            if total > self.limit_units:
                self.overflow()

    def borrow(self, units: int) -> None:
        """Hold something for a moment."""
        self.grow(units)
        self.units -= units

    def mark_logits(self, tensor: Any, units: int) -> None:
        """Note how many units of what an activation stands for are logits."""
        tensor._passage.logits = units

    def resize(self, tensor: Any, units: int) -> int:
        """Give a tensor another size, wherever it counts now.

        Returns:
            By how many units the total changed.
        """
        before, change = self.units, units - self.units_of(tensor)
        tensor._units = units
        if getattr(tensor, "_home", None) is self:
            self.grow(change)
        elif self.launched_tensors.get(id(tensor)):
            self.launched_tensors[id(tensor)] = units
            self.grow(change)
        return self.units - before

    def recount_launched(self, value: Any, *, stored: bool) -> None:
        """Count a tensor that a launched operation may use for that operation only while no store holds it."""
        counted, wanted = self.launched_tensors[id(value)], 0 if stored else value._units
        self.units += wanted - counted
        self.launched_tensors[id(value)] = wanted
        if self.journal is not None and wanted != counted:
            self.journal.enter("in_flight", wanted - counted, value)

    def high_water(self) -> int:
        """Return the highest total ever."""
        return max(self.peak_units, *self._past_peaks) if self._past_peaks else self.peak_units

    def open_window(self) -> int:
        """Begin to hold something whose size is not known yet.

        Returns:
            The window, which is what `backdate` needs once the size is known. Until then, peaks are kept apart for the
            time before and after.
        """
        self._past_peaks.append(self.peak_units)
        self.peak_units = self.units
        self._open_windows += 1
        return len(self._past_peaks)

    def backdate(self, window: int, units: int) -> None:
        """Add the size of something, now that it is known, to all totals and peaks since its window was opened."""
        for place in range(window, len(self._past_peaks)):
            self._past_peaks[place] += units
        self.units += units
        self.peak_units += units
        self._open_windows -= 1
        highest = self.high_water()
        if not self._open_windows:
            self.peak_units = highest
            self._past_peaks.clear()
        if highest > self.limit_units:
            self.overflow()

    def beside_stores(self) -> dict[str, int]:
        """Return the units that count beside stores and operations in flight, by what they are: none here."""
        return {}

    def overflow(self) -> None:
        """Report the first excess, once."""
        self.limit_units = float("inf")
        if self.on_overflow is not None:
            self.on_overflow()


def logits_of(tensor: Any) -> int:
    """Return how many units of what a tensor stands for are logits: of the head's input, once the head has passed."""
    passage = getattr(tensor, "_passage", None)
    return 0 if passage is None else passage.logits


_keep = dict.setdefault
_take = dict.pop
_replace = dict.__setitem__


class Store(dict[Any, V]):
    """A dict of tensors that keeps its rank's account.

    Storing and freeing are what a simulation does most often, so a tensor keeps its size and its account in slots.
    """

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def __setitem__(self, key: Any, value: V) -> None:
        account = self._account
        try:
            units = value._units  # type: ignore[attr-defined]  # the result of an operation knows its size
        except AttributeError:
            units = account.size(value)
        if key in self:
            self._leave(self[key])
            _replace(self, key, value)
        else:
            _keep(self, key, value)  # does the same as `_replace` here, and is called in less time
        value._home = account  # type: ignore[attr-defined]
        if account.launched_tensors and id(value) in account.launched_tensors:
            account.recount_launched(value, stored=True)
        account.units = total = account.units + units
        if total > account.peak_units:
            account.peak_units = total
            if total > account.limit_units:
                account.overflow()

    def __delitem__(self, key: Any) -> None:
        try:
            value = _take(self, key)
        except KeyError:
            self.__missing__(key)
        self._leave(value)

    def __missing__(self, key: Any) -> NoReturn:
        """Say what there is in the place of what was looked for."""
        listed, error = ", ".join(map(repr, islice(self, _MOST_LISTED))), KeyError(key)
        error.add_note(f"the store has {listed or 'nothing'}{', ...' if len(self) > _MOST_LISTED else ''}")
        raise error

    def _leave(self, value: Any) -> None:
        """Take a tensor's size off the account, as it is no longer stored."""
        account = self._account
        value._home = None
        account.units -= value._units
        if account.launched_tensors and id(value) in account.launched_tensors:
            account.recount_launched(value, stored=False)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Remove a key and return its value."""
        if default is not _MISSING and key not in self:
            return default
        try:
            value = _take(self, key)
        except KeyError:
            self.__missing__(key)
        self._leave(value)
        return value

    def popitem(self) -> tuple[Any, V]:
        """Remove and return the pair that came last."""
        key, value = dict.popitem(self)
        self._leave(value)
        return key, value

    def clear(self) -> None:
        """Remove everything."""
        for key in list(self):
            del self[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, storing `default` first if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Mapping[Any, V] | Iterable[tuple[Any, V]], **values: V) -> None:  # type: ignore[override]
        """Store every pair of the others."""
        for key, value in dict(*others, **values).items():
            self[key] = value

    def __ior__(self, other: Any) -> Store[V]:  # type: ignore[override,misc]
        self.update(other)
        return self

    def copy(self) -> dict[Any, V]:
        """Return a plain dict, which holds no memory of its own."""
        return dict(self)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and deep-copy as a plain dict."""
        return dict, (dict(self),)


class JournalledStore(Store[V]):
    """A store that also writes every change to its account's journal.

    Args:
        account: the rank's account.
        name: which of the five stores it is.
    """

    __slots__ = ("name",)

    def __init__(self, account: Account, name: str) -> None:
        super().__init__(account)
        self.name = name

    def _enter(self, value: Any, sign: int) -> None:
        """Write down that a tensor has entered (1) or left (-1), and how much of what it stands for is logits."""
        journal, logits = self._account.journal, logits_of(value)
        if journal is not None:
            if logits:
                journal.enter("logits", sign * logits, value)
            journal.enter(self.name, sign * (self._account.units_of(value) - logits), value)

    def __setitem__(self, key: Any, value: V) -> None:
        if key in self:
            self._enter(self[key], -1)
        super().__setitem__(key, value)
        self._enter(value, 1)

    def __delitem__(self, key: Any) -> None:
        value = self[key]
        self._enter(value, -1)
        super().__delitem__(key)

    def pop(self, key: Any, *default: Any) -> Any:
        """Remove a key and return its value."""
        if key in self:
            self._enter(self[key], -1)
        return super().pop(key, *default)

    def popitem(self) -> tuple[Any, V]:
        """Remove and return the pair that came last."""
        key, value = super().popitem()
        self._enter(value, -1)
        return key, value


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

    def count(self, value: Any, units: int) -> None:
        """Count a tensor that is stored now by its kind, or one that is stored no longer: `units` are negative then."""
        kind = _kind_of[value.__class__]
        self.held[kind] += units
        if kind == _ACTIVATIONS and self.has_logits:
            self.move_logits(logits_of(value) if units > 0 else -logits_of(value))

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
        account: Any = self._account
        peak = account.peak_units
        Store.__setitem__(self, key, value)  # in less time than `super` takes
        account.count(value, value._units)  # type: ignore[attr-defined]  # a slot of tensors
        if account.peak_units > peak:
            account.at_peak = account.held.copy()

    def _leave(self, value: Any) -> None:
        """Take a tensor's size off the account, as it is no longer stored."""
        self._account.count(value, -value._units)
        Store._leave(self, value)
