"""The one hook for what watches the ranks of a run: strict accounting, recordings, and whatever a user adds.

An observer is told of every operation before it begins and after it has ended, of what communications bring, of what
enters and leaves stores, and of tensors that change their size. It may raise an error before an operation begins, which
then does not happen. It changes no event, price or clock.

Ranks that nobody watches are plain models and ask nothing: `minitrain.engine.watched` makes another class of a kind of
model, whose operations tell its observer. Several observers are one, which tells each of them in turn.

That a tensor was freed is told by what an observer has attached to it, in its slot `_origin` or `_content` (see
`minitrain.tensors.annotations`): the attachment dies with the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Observer:
    """What watches all ranks of a run; its methods do nothing, and are there to be overridden.

    What a rank does alone is named as the methods of `Model` are (`minitrain.operations.computations`), communications
    as events are ("all_reduce", "send", "recv", "offload" ...).
    """

    __slots__ = ()

    def begin(self, model: Any) -> None:
        """Take note of a rank that was made; it may get another memory meter (`model._meter`)."""

    def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:
        """Take note of an operation that begins, or raise what speaks against it.

        Args:
            model: the rank.
            op: the operation.
            given: positional arguments of the method of that name; of a collective (value, layer, group, root or
                algorithm), of a send (destination, tensor, tag), of a receive (source, tag).
        """

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:
        """Take note of an operation that has ended, or of a communication that was submitted.

        Args:
            model: the rank.
            op: the operation.
            given: as `before` got it.
            named: arguments that go by name alone.
            made: what it returns; of a communication, its `Operation`.
        """

    def launched(self, operation: Any) -> None:
        """Take note that a communication, just submitted, runs beside what follows."""

    def chained(self, operation: Any, taken: Sequence[Any]) -> None:
        """Take note of the result of a launched operation that is there, or raise what speaks against it.

        Args:
            operation: what was given the result before, in the place of which its `value` has the launched operation.
            taken: the tensors of the result.
        """

    def departed(self, operation: Any) -> None:
        """Take note that a message has left which had to wait before; its `value` is what it carries."""

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Take note of the results of a collective before any rank gets them, or raise what speaks against them.

        Args:
            operations: each member's part, in rank order, with its `model` and the `value` it brought.
            results: each member's result.
        """

    def received(self, operation: Any, value: Any, result: Any) -> None:
        """Take note of a message.

        Args:
            operation: the receive.
            value: what the sender sent.
            result: what this rank gets.
        """

    def awaited(self, operation: Any, result: Any) -> None:
        """Take note that the strategy gets the result of a communication, for the first time."""

    def stored(self, store: Any, key: Any, value: Any) -> None:
        """Take note of a tensor that has entered a store, which has a `rank` and a `label`."""

    def left(self, store: Any, key: Any, value: Any) -> None:
        """Take note of a tensor that has left a store."""

    def resized(self, model: Any, tensor: Any, units: int) -> None:
        """Take note of a tensor that stands for more or less from now on, in units of the account of memory."""

    def finish(self, models: Sequence[Any]) -> None:
        """Take note that the run has ended, or raise what speaks against it."""


def _telling_all(name: str) -> Callable[..., None]:
    """Return a method that calls those of this name of all observers."""

    def tell(self: _Several, *what: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*what)

    return tell


class _Several(Observer):
    """Observers that are told in turn.

    Args:
        observers: in this order.
    """

    __slots__ = ("observers",)

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers


for _name in vars(Observer):
    if not _name.startswith("_"):
        setattr(_Several, _name, _telling_all(_name))


def together(observers: Sequence[Observer]) -> Observer:
    """Return one observer that stands for several."""
    return observers[0] if len(observers) == 1 else _Several(observers)
