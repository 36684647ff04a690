"""What takes part in operations beside the model: observers, which watch them, and executors, which do the work.

Ranks that have neither are plain models and ask nothing: `minitrain.engine.model.watched` makes another class of a kind
of model, whose operations tell both. An observer is told before an executor begins and after it has ended.

**An observer** (strict accounting, recordings, whatever a user adds) is told of every operation before it begins and
after it has ended, of what communications bring, of what enters and leaves stores, and of tensors that change their
size. It may raise an error before an operation begins, which then does not happen. It changes no event, price or clock.
Several observers are one, which tells each of them in turn. That a tensor was freed is told by what an observer has
attached to it, in its slot `_origin` or `_content` (see `minitrain.tensors.kinds`): the attachment dies with the
tensor.

**An executor** decides what happens beside checking laws, pricing, logging, moving the clock, and making tensors that
know layer, samples, shards and size. `simulate(..., execution=...)` takes one, and one serves all ranks of its run.

| executor | what an operation does | where |
|---|---|---|
| none | nothing: the run is symbolic, and its models have no hook that would cost time | `minitrain.engine.model` |
| `Executor` | nothing; it is there to be extended, for example by one that prints what each rank does | here |
| `ContentExecutor` | makes the content of its results from the content of its inputs | here |
| `ArraysExecutor` | that, in NumPy: the proof | `minitrain.proof.layers` |

**On real processes** each rank is a process with one model, its own. Two things take part, each by its protocol:

- The *transport* (`minitrain.engine.protocol`) completes communications, since there is nobody in the process
  to meet. One that follows a recorded program compares what the model submits with what was recorded for this rank, and
  settles it at once with the recorded result and clock: `call.settle_all([call], [result], start, last,
  largest_bytes)`, or `call.deliver(message, sent)`. So the model's clock, log and memory are the predicted ones.
- The *executor* does the work. `settle` and `receive` come with this rank's operation alone: it starts the collective
  or the receive, without waiting (`async_op=True`), and remembers the handle. `communicate` is around a send, which it
  starts likewise. `awaited` comes when the strategy awaits the operation: it blocks in `handle.wait()` and gives the
  result its content. A launched operation is awaited later, so that computing goes on beside it. Where one takes the
  result of another launched one (`minitrain.engine.communication`), that result has no content yet: wait for its handle
  first.

`tests/engine/test_executors.py` has such a pair, with a thread for each rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from minitrain.errors import LawError, UsageError
from minitrain.operations import UPDATE_ON_HOST
from minitrain.operations.collectives import describe
from minitrain.tensors import Tensor
from minitrain.tensors.fields import copy_to_device


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


class Executor:
    """What operations do in addition; its methods do nothing more, and are there to be extended.

    Operations are named as in `minitrain.engine.observers`: "forward", "all_reduce", "send", "recv", "offload" ...
    """

    def begin(self, model: Any) -> None:
        """Take a rank that was made; the model may get attributes of the executor's."""

    def compute(
        self,
        model: Any,  # noqa: ARG002  (for those who extend it, as all that follow)
        op: str,  # noqa: ARG002
        given: tuple[Any, ...],  # noqa: ARG002
        named: Mapping[str, Any],  # noqa: ARG002
        do: Callable[[], Any],
    ) -> Any:
        """Do what a rank does alone, and return what the strategy gets.

        Args:
            model: the rank.
            op: one of `minitrain.operations.computations.COMPUTATIONS`, which are methods of `Model`.
            given: positional arguments of the method of that name: of most (layer, tensors ...).
            named: arguments that go by name alone.
            do: does what the model does: laws, price, row of the log, clock. It returns the tensors that `compute` is
                to return, or raises an error before anything has changed. To be called once.
        """
        return do()

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:  # noqa: ARG002
        """Submit what a rank does with others or its host, and return the operation, which the strategy awaits.

        Args:
            model: the rank.
            op: a collective, "send", "recv", "offload" or "fetch".
            given: of a collective (value, layer, group, root or algorithm), of a send (destination, tensor, tag), of a
                receive (source, tag), of the others (tensor,).
            submit: makes the operation, adds its row to the log and hands it to the transport. To be called once.
        """
        return submit()

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Take the results of a collective, before any rank gets them.

        Args:
            operations: the part of each member in this process, in rank order: all members in a simulation. Each has
                its `model`, `op`, the `value` it brought, its group as `owner`, and `row`, its place in the log.
            results: each member's result: a tensor, a list of tensors (of a bucket, of an exchange), or None.
        """

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Take a message that a receive is given.

        Args:
            operation: the receive; its `owner.stream.peer` is the sender.
            value: what the sender sent.
            result: what this rank gets: a copy of it.
        """

    def awaited(self, operation: Any, result: Any) -> None:
        """Have the result of a communication ready, which the strategy gets when this returns; may block.

        It is called each time that a launched operation is awaited.
        """

    def finish(self, models: Sequence[Any]) -> None:
        """Take the ranks at the end of the run."""


class Computed(NamedTuple):
    """What a rank has computed, as far as the laws, the price and the log go.

    Args:
        model: the rank.
        op: the operation.
        given: as `Executor.compute` got it.
        named: likewise.
        made: the tensors that the operation returns: one, or a tuple; None of `set_final_weight`.
    """

    model: Any
    op: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    made: Any

    @property
    def layer(self) -> int:
        """The layer, where the operation is of one."""
        return self.given[0]  # type: ignore[no-any-return]  # of any operation

    @property
    def inp(self) -> Any:
        """The layer's input, where the operation is a pass."""
        return self.given[1]


class ContentExecutor(Executor, ABC):
    """An executor whose tensors carry contents in `_content`, for which `minitrain.tensors.kinds.Content` stands.

    What a rank computes is in its *arithmetic*, which has a method for each operation:
    `forward(done: Computed, x, weight) -> content`. It is given the contents of the tensors among the arguments, in
    their order, and returns the content of the result, or a tuple for several results. Sums (`+`), shards and
    combinations of tensors are made by their contents.
    """

    @abstractmethod
    def arithmetic_of(self, model: Any) -> Any:
        """Return what computes on a rank; called once for each."""

    def begin(self, model: Any) -> None:
        """Make the rank's arithmetic."""
        model._arithmetic = self.arithmetic_of(model)

    def contents(self, model: Any, op: str, values: Sequence[Any]) -> list[Any]:
        """Return what the tensors among some values carry; other values are for the laws to judge.

        Raises:
            LawError: a tensor carries nothing.
        """
        tensors = [value for value in values if isinstance(value, Tensor)]
        for tensor in tensors:
            if not hasattr(tensor, "_content"):
                raise LawError(
                    f"{op} on rank {model._rank}: {describe(tensor)} was made by hand, no operation of the model has "
                    "computed it; use what load_weights, forward, backward and the collectives return",
                    op=op,
                    rank=model._rank,
                    layer=tensor.layer,  # type: ignore[attr-defined]  # every tensor has a layer
                    value=tensor,
                )
        return [tensor._content for tensor in tensors]

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:
        """Submit it; of an update by the host, compute the contents too."""
        operation = submit()
        if op == UPDATE_ON_HOST:
            self.update_on_host(model, given[0])
        return operation

    def update_on_host(self, model: Any, given: Sequence[Any]) -> None:
        """Give weight and state on the host the contents that an update on the device would make."""
        grad, weight, state = map(copy_to_device, given)
        done = Computed(model, "update", (grad.layer, grad, weight, state), {}, (weight, state))
        contents = model._arithmetic.update(done, *(kept._content for kept in given))
        for kept, content in zip(given[1:], contents, strict=True):
            kept._content = content

    def compute(
        self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:
        """Compute the contents of the results.

        Raises:
            LawError: a tensor carries nothing.
            UsageError: the arithmetic has no such operation.
        """
        contents = self.contents(model, op, given)
        made = do()
        if made is None:
            return made
        arithmetic = getattr(model._arithmetic, op, None)
        if arithmetic is None:
            name = type(model._arithmetic).__name__
            raise UsageError(f"{op} on rank {model._rank}: {name} do not say what it computes", op=op)
        found = arithmetic(Computed(model, op, given, named, made), *contents)
        for tensor, content in zip(made, found, strict=True) if isinstance(made, tuple) else [(made, found)]:
            tensor._content = content
        return made
