"""A number for each of several machines: the prices, clocks and durations of one run that is priced on all of them.

A `PerMachine` adds and compares as the float that it is on each machine. A comparison that comes out alike on all
machines is a plain bool. Where machines differ, or where one number is needed (`float`, text, a hash), the code would
do different things on different machines. That is noted in the present `MachineWatch`, and a `MachinesDifferError` is
raised. `minitrain.vector` then splits the machines, or takes them one by one. The note counts even where a strategy
catches the error.

A number that is the same on all machines is a plain float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar, final

import numpy as np
import numpy.typing as npt

from minitrain.errors import MinitrainError
from minitrain.source_lines import ENGINE, OWNERS, caller, present_place

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")

_COMPARISON = "a comparison of numbers that differ between machines"


class MachinesDifferError(MinitrainError):
    """What is run for several machines at once would do different things on them."""


@final
class MachineWatch:
    """What one execution for several machines has found out about these.

    Args:
        num_machines: how many there are.
        most_bytes: what their clocks may take; where that is not enough, the machines are halved.

    Attributes:
        parts: the machines by what they would do, where that differs: a label for each, (num_machines,).
        place: where they part ways, or where one number was asked for; None as long as neither has happened.
    """

    __slots__ = ("_num_machines", "_room", "parts", "place")

    def __init__(self, num_machines: int, most_bytes: float = math.inf) -> None:
        self.parts: Ints | None = None
        self.place: str | None = None
        self._num_machines = num_machines
        self._room = most_bytes / (8 * num_machines)

    def count(self) -> None:
        """Count a clock.

        Raises:
            MachinesDifferError: there is no room for more.
        """
        self._room -= 1
        if self._room < 0 and self.parts is None and self._num_machines > 1:
            self.parts = np.arange(self._num_machines) * 2 // self._num_machines
            raise MachinesDifferError("the clocks of so many machines take too much memory at once")


WATCH: ContextVar[MachineWatch | None] = ContextVar("minitrain_machines", default=None)
"""What watches the execution that the running task belongs to."""


def part_ways(labels: Any, what: str) -> NoReturn:
    """Note that machines would do different things, and raise.

    Args:
        labels: what tells apart what they would do, one a machine.
        what: what is done, for messages.

    Raises:
        MachinesDifferError: always.
    """
    watch, place = WATCH.get(), f"{what} ({present_place()})"
    if watch is not None and watch.parts is None:
        watch.parts = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
        watch.place = place
    raise MachinesDifferError(f"machines that are priced together would part ways: {place}")


@final
class PerMachine:
    """A number for each machine.

    The last sum and the last maximum are remembered: ranks that do the same at the same time share one clock.

    Args:
        values: (num_machines,); nobody changes them.
    """

    __slots__ = ("_added", "_compared", "_latest", "_sum", "values")

    __array_ufunc__ = None  # numpy leaves operations with arrays to this class, which has none

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._added: Any = None
        self._sum: Any = None
        self._compared: Any = None
        self._latest: Any = None

    @property  # type: ignore[misc]  # as a mock of a float does it
    def __class__(self) -> type:
        """What `isinstance` shows a strategy: a clock is a float on every machine."""
        return float

    def __add__(self, other: Any) -> PerMachine:
        if other is self._added:
            return self._sum  # type: ignore[no-any-return]  # a PerMachine
        found = PerMachine(self.values + values_of(other))
        self._added, self._sum = other, found
        watch = WATCH.get()
        if watch is not None:
            watch.count()
        return found

    __radd__ = __add__

    def __sub__(self, other: Any) -> PerMachine:
        return PerMachine(self.values - values_of(other))

    def __rsub__(self, other: Any) -> PerMachine:
        return PerMachine(values_of(other) - self.values)

    def __mul__(self, other: Any) -> PerMachine:
        return PerMachine(self.values * values_of(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> PerMachine:
        return PerMachine(self.values / values_of(other))

    def __rtruediv__(self, other: Any) -> PerMachine:
        return PerMachine(values_of(other) / self.values)

    def __neg__(self) -> PerMachine:
        return PerMachine(-self.values)

    def latest(self, other: Any) -> Any:
        """Return the larger of this and another number on each machine, and this one itself if it is nowhere less."""
        if other is self:
            return self
        if other is not self._compared:
            found = np.maximum(self.values, values_of(other))
            self._latest = self if np.array_equal(found, self.values) else PerMachine(found)
            self._compared = other
        return self._latest

    def __lt__(self, other: Any) -> bool:
        return other is not self and _agreed(self.values < values_of(other), _COMPARISON)

    def __le__(self, other: Any) -> bool:
        return other is self or _agreed(self.values <= values_of(other), _COMPARISON)

    def __gt__(self, other: Any) -> bool:
        return other is not self and _agreed(self.values > values_of(other), _COMPARISON)

    def __ge__(self, other: Any) -> bool:
        return other is self or _agreed(self.values >= values_of(other), _COMPARISON)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if not isinstance(other, int | float | np.number):
            return False
        return _agreed(self.values == values_of(other), _COMPARISON)

    def __hash__(self) -> int:
        return object.__hash__(self) if _is_asked_by_engine() else hash(self._one("hash"))

    def __bool__(self) -> bool:
        return _agreed(self.values != 0, "whether a number is zero")

    def __float__(self) -> float:
        return self._one("float")

    def __int__(self) -> int:
        return int(self._one("int"))

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._one("round"), digits)

    def __trunc__(self) -> int:
        return math.trunc(self._one("trunc"))

    def __floor__(self) -> int:
        return math.floor(self._one("floor"))

    def __ceil__(self) -> int:
        return math.ceil(self._one("ceil"))

    def __format__(self, spec: str) -> str:
        return format(self._one("the text"), spec)

    def __str__(self) -> str:
        return str(self._one("the text"))

    def __repr__(self) -> str:
        return f"PerMachine({self.values!r})" if WATCH.get() is None else repr(self._one("the text"))

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        part_ways(range(len(self.values)), "an array of a number that differs between machines")

    def __reduce__(self) -> tuple[Any, ...]:
        return (float, (self._one("a copy"),)) if WATCH.get() is not None else (PerMachine, (self.values,))

    def _one(self, what: str) -> float:
        """Return the number where it is the same on all machines.

        Raises:
            MachinesDifferError: it is not.
        """
        first = float(self.values[0])
        if (self.values != first).any():
            part_ways(self.values, f"{what} of a number that differs between machines")
        return first


def values_of(number: Any) -> Any:
    """Return the numbers of the machines, or the one number that all of them have.

    Raises:
        TypeError: it is no number.
    """
    if type(number) is PerMachine:
        return number.values
    if isinstance(number, int | float | np.number):
        return number
    raise TypeError(f"a number is needed, got {number!r:.80}")


def per_machine(values: Floats) -> Any:
    """Return a number for each machine, or the one float that all of them have."""
    first = values[0]
    return float(first) if (values == first).all() else PerMachine(values)


def latest(numbers: Sequence[Any]) -> Any:
    """Return the largest of some numbers on each machine."""
    found, *rest = {id(number): number for number in numbers}.values()
    for number in rest:
        found = later(found, number)
    return found


def later(first: Any, second: Any) -> Any:
    """Return the larger of two numbers on each machine; the first itself if it is nowhere less."""
    if type(first) is PerMachine:
        return first.latest(second)
    if type(second) is PerMachine:
        return second.latest(first)
    return second if second > first else first


def least(first: Any, second: Any) -> Any:
    """Return the smaller of two numbers on each machine."""
    found = np.minimum(values_of(first), values_of(second))
    return per_machine(found) if np.ndim(found) else float(found)


def same_on_all(function: Callable[[list[float]], T], numbers: Sequence[Any]) -> T:
    """Return what a function makes of some numbers, which must be the same on all machines.

    Args:
        function: of the numbers of one machine; what it returns can be hashed.
        numbers: floats, or some of them a number for each machine.

    Raises:
        MachinesDifferError: it is not.
    """
    sizes = [len(number.values) for number in numbers if type(number) is PerMachine]
    if not sizes:
        return function(list(numbers))
    columns = np.stack([np.broadcast_to(values_of(number), sizes[0]) for number in numbers], axis=1)
    distinct, places = np.unique(columns, axis=0, return_inverse=True)
    made = [function(row) for row in distinct.tolist()]
    known = {value: label for label, value in enumerate(dict.fromkeys(made))}
    if len(known) > 1:
        part_ways(np.array([known[value] for value in made])[places.reshape(-1)], "a decision by prices")
    return made[0]


def _agreed(answers: Any, what: str) -> bool:
    """Return what a comparison comes to, which must be the same on all machines."""
    first = bool(answers[0])
    if (answers != first).any():
        part_ways(answers, what)
    return first


def _is_asked_by_engine() -> bool:
    """Return whether the function that called the caller is none of a strategy's."""
    return OWNERS[caller(2).f_code.co_filename] == ENGINE
