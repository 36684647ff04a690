"""Models whose operations have hooks: for an observer, who is told of all that they do, and for an executor.

See `minitrain.engine.observers` and `minitrain.engine.observers`. `watched` makes a class of a kind of model, by one
table of operations. A question in each operation, whether somebody watches, would cost every run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partial, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from minitrain.engine.observers import Observer
from minitrain.engine.operations import Launched, Operation
from minitrain.engine.stores import Store
from minitrain.operations.collectives import TRANSFERS
from minitrain.operations.computations import COMPUTATIONS

if TYPE_CHECKING:
    from minitrain.engine.model import Model
    from minitrain.engine.observers import Executor

M = TypeVar("M", bound="Model")
T = TypeVar("T")

_NOT_NAMED: Mapping[str, Any] = MappingProxyType({})


@cache
def _watched_store(kind: type[Store[Any]]) -> type[Any]:
    """Return a kind of store that tells an observer what enters and leaves it.

    Its methods call those of the kind directly, since `super()` takes as long as storing a tensor.
    """
    put, delete, pop, popitem = kind.__setitem__, kind.__delitem__, kind.pop, kind.popitem

    class WatchedStore(kind):  # type: ignore[valid-type,misc]  # any kind
        """A store that tells what enters and leaves it.

        Attributes:
            observer: who is told.
            rank: whose it is.
            label: which of the five stores it is.
        """

        __slots__ = ("label", "observer", "rank")

        def __setitem__(self, key: Any, value: Any) -> None:
            if key in self:
                before = self[key]
                put(self, key, value)
                self.observer.left(self, key, before)
            else:
                put(self, key, value)
            self.observer.stored(self, key, value)

        def __delitem__(self, key: Any) -> None:
            value = self[key]
            delete(self, key)
            self.observer.left(self, key, value)

        def pop(self, key: Any, *default: Any) -> Any:
            """Remove a key and return its value."""
            held = key in self
            value = pop(self, key, *default)
            if held:
                self.observer.left(self, key, value)
            return value

        def popitem(self) -> tuple[Any, Any]:
            """Remove and return the pair that came last."""
            key, value = popitem(self)
            self.observer.left(self, key, value)
            return key, value

    return WatchedStore


class _Watched:
    """What a rank with hooks does with others, and how its stores are made; see `watched`."""

    follows_tensors = True
    _observer: Observer | None
    _executor: Executor | None = None

    def __init__(self, *args: Any, observer: Observer | None = None, **named: Any) -> None:
        nobody = None if self._executor else Observer()  # where a strategy makes a model like its own
        self._observer = observer or nobody
        super().__init__(*args, **named)
        if self._observer is not None:
            self._observer.begin(self)
        if self._executor is not None:
            self._executor.begin(self)

    def after_collective(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Tell the results of a collective, before any rank gets them; called on the lowest member.

        Args:
            operations: each member's part, in rank order, with its `model` and the `value` it brought.
            results: each member's result.
        """
        if self._observer is not None:
            self._observer.settled(operations, results)
        if self._executor is not None:
            self._executor.settle(operations, results)

    def after_message(self, operation: Any, value: Any, result: Any) -> None:
        """Tell a received tensor.

        Args:
            operation: the receive.
            value: what the sender sent.
            result: what this rank gets.
        """
        if self._observer is not None:
            self._observer.received(operation, value, result)
        if self._executor is not None:
            self._executor.receive(operation, value, result)

    def _make_store(self, kind: type[Store[Any]], name: str, *args: Any) -> Store[Any]:
        """Make a store that tells what enters and leaves it."""
        if self._observer is None:
            return kind(*args)
        store = _watched_store(kind)(*args)
        store.observer, store.rank, store.label = self._observer, self._rank, name  # type: ignore[attr-defined]  # of a model
        return store  # type: ignore[no-any-return]

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows; see `Model.launch`."""
        launched: Launched[T] = super().launch(operation)  # type: ignore[misc]
        if self._observer is not None:
            self._observer.launched(launched._operation)
        return launched

    def _resize(self, tensor: Any, units: int) -> None:
        """Give a tensor another size."""
        super()._resize(tensor, units)  # type: ignore[misc]
        if self._observer is not None:
            self._observer.resized(self, tensor, units)

    def _communicated(self, op: str, given: tuple[Any, ...], submit: Callable[[], Operation]) -> Operation:
        """Submit a communication, and tell the observer before and after."""
        observer, executor = self._observer, self._executor
        if observer is not None:
            observer.before(self, op, given)
        operation: Operation = submit() if executor is None else executor.communicate(self, op, given, submit)
        if observer is not None:
            observer.after(self, op, given, _NOT_NAMED, operation)
        return operation


def watched(kind: type[M], executor: Executor | None = None) -> Callable[..., M]:
    """Return what makes models of a kind that tell an observer, given as `observer=`, of all that they do.

    Args:
        kind: the class of model.
        executor: what their operations do in addition.
    """
    hooked = _hooked(kind)
    return hooked if executor is None else type(kind.__name__, (hooked,), {"_executor": executor, "__slots__": ()})


@cache
def _hooked(kind: type[M]) -> type[M]:
    """Return a kind of model with hooks."""
    told = {name: _telling(name, getattr(kind, name)) for name in COMPUTATIONS}
    submits = {
        record.submits: _telling_submission(op, getattr(kind, record.submits)) for op, record in TRANSFERS.items()
    }
    return type(
        kind.__name__,
        (_Watched, kind),
        {**told, **submits, "_collective": _telling_collective(kind), "__slots__": ("_observer",)},
    )


def _telling_submission(op: str, submit: Callable[..., Operation]) -> Callable[..., Operation]:
    """Return a method that submits a message, or a move to or from the host."""

    def submission(self: Any, *given: Any) -> Operation:
        return self._communicated(op, given, partial(submit, self, *given))  # type: ignore[no-any-return]  # of a model

    return submission


def _telling_collective(kind: Any) -> Callable[..., Operation]:
    """Return a method that submits a collective."""
    submit = kind._collective

    def collective(self: Any, op: str, *given: Any) -> Operation:
        return self._communicated(op, given, partial(submit, self, op, *given))  # type: ignore[no-any-return]  # as above

    return collective


def _telling(op: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that computes, and tells the observer before and after."""
    signature = inspect.signature(compute)
    places = frozenset(
        name for name, known in signature.parameters.items() if known.kind is known.POSITIONAL_OR_KEYWORD
    )

    @wraps(compute)
    def operation(self: Any, *given: Any, **named: Any) -> Any:
        if named and not places.isdisjoint(named):
            given, named = _in_order(signature, self, given, named)
        observer, executor = self._observer, self._executor
        if observer is not None:
            observer.before(self, op, given)
        if executor is None:
            made = compute(self, *given, **named)
        else:
            made = executor.compute(self, op, given, named, partial(compute, self, *given, **named))
        if observer is not None:
            observer.after(self, op, given, named, made)
        return made

    return operation


def _in_order(
    signature: inspect.Signature, model: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with those that have a place in it; wrong ones as they are, for the operation to refuse."""
    try:
        bound = signature.bind(model, *given, **named)
    except TypeError:
        return given, named
    bound.apply_defaults()
    return bound.args[1:], bound.kwargs
