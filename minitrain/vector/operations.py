"""Communications whose clocks are arrays of one number a machine.

The engine asks which of two clocks is later, and machines may differ in the answer. Each such place is overridden here:
before the engine's own code compares, the clocks are replaced by the later ones, machine by machine, so that all
machines agree. Which rank was waited for differs between machines, and is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from minitrain.events import LAUNCHED, STRIDE
from minitrain.folding.class_operation import ClassOperation
from minitrain.hardware.per_machine import later, latest
from minitrain.hardware.price import Price
from minitrain.rank.operations import Operation


def _on_each_machine(settle: Callable[..., None]) -> Callable[..., None]:
    """Return a `settle_all` that begins a collective when all are there and the group's stream is free."""

    def settle_all(
        calls: Sequence[Any], results: Sequence[Any], clocks: Sequence[Any], start: Any, last: int, largest_bytes: int
    ) -> None:
        begin = later(start, calls[0].owner.communicator.busy_until)
        settle(calls, results, [begin] * len(clocks), begin, last, largest_bytes)

    return settle_all


class VectorOperation(Operation):
    """One communication that a rank has submitted, on all machines."""

    __slots__ = ()
    settle_all = staticmethod(_on_each_machine(Operation.settle_all))

    @staticmethod
    def latest(clocks: Sequence[Any], ranks: Sequence[int]) -> tuple[Any, int]:
        """Return when the last member of a group was ready on each machine; which one it was is not needed."""
        return latest(clocks), ranks[0]

    def depart(self, price: Price) -> None:
        """Run a send as soon as its stream is free."""
        owner: Any = self.owner
        self.clock = later(self.clock, owner.busy_until)
        super().depart(price)

    def _receive(self, sent: Any) -> None:
        """Run a receive from when its message is here."""
        self.clock = later(self.clock, sent)
        super()._receive(self.clock)

    def _run(self, start: Any, waited_for: int | None, price: Price, samples: frozenset[int]) -> None:
        """Run on the peer's stream from `start` on, or from when the stream is free."""
        owner: Any = self.owner
        super()._run(later(start, owner.busy_until), waited_for, price, samples)

    def __await__(self) -> Generator[Any, None, Any]:
        # As `Operation.__await__`, but for the clock: a call for it there would cost every run.
        model = self.model
        if model.launching:
            yield self  # `Communication.launch` takes it from here
        if not self.settled:
            try:
                yield model._transport.suspend(self)
            except BaseException:
                self._give_up()
                raise
        if self.error is not None:
            raise self.error.with_traceback(None)
        if model.time is model._rows[self.row + LAUNCHED]:  # nothing ends before it was launched
            model.time = self.end
        else:
            model.time = later(model.time, self.end)
        if self.launched_memory is not None or len(model._rows) != self.row + STRIDE:
            self._arrive()
        return self.outcome


class VectorClassOperation(VectorOperation):
    """The part of a class of folded ranks in a collective with members of several classes, on all machines."""

    __slots__ = ("own_value",)
    own_value: Any
    given = ClassOperation.given
    settle_all = staticmethod(_on_each_machine(ClassOperation.settle_all))
