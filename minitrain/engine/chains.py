"""Chains of launched operations: one is given the result of another that nobody has awaited yet.

    shard = model.launch(model.reduce_scatter(grad, layer, group=inner))
    total = model.launch(model.all_reduce(shard, layer, group=outer))
    grad = await model.launch(model.all_gather(total, layer, group=inner))

As on the streams of a device, the rank goes on at once. The later operation takes its place in the order of its stream
when it is submitted. It begins when its stream is free and the earlier one has ended. Where the earlier result is not
there yet, the operation is held, and so is all that follows it on its stream.

What a chain holds in memory counts until its last operation is awaited. That ends those before it, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from minitrain.engine.operations import Interface, Launched, Operation, Unused
from minitrain.operations import NOTE, STREAM, STRIDE, Note, Stream

CarryOut = Callable[[Operation], None]


class Chain:
    """What an operation waits for before it is carried out.

    Args:
        inputs: the launched operations whose results it was given.
        own: the tensors that it was given beside them, and the results of those that were awaited already.

    Attributes:
        results: those that are there, by the operation that has made them, until this one is carried out.
        behind: the operation before it on its stream, while that one is held.
    """

    __slots__ = ("behind", "inputs", "own", "results")

    def __init__(self, inputs: list[Operation], own: list[Any]) -> None:
        self.inputs = inputs
        self.own = own
        self.results: dict[Operation, Any] = {}
        self.behind: Operation | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all results are there."""
        return all(made in self.results for made in self.inputs)

    @property
    def taken(self) -> list[Any]:
        """The tensors of the results that are there."""
        return [tensor for result in self.results.values() for tensor in _listed(result)]

    def take(self, operation: Operation, made: Operation, result: Any) -> None:
        """Take a result for the operation: from now on nobody else may alter it."""
        self.results[made] = result
        if operation.model._observer is not None:
            operation.model._observer.chained(operation, _listed(result))

    def cause(self) -> Operation | None:
        """Return the operation of its rank for which it waits in the end; None if it waits for none."""
        found: Operation | None = None
        further = self._waits_for()
        while further is not None:
            found, further = further, None if further.chain is None else further.chain._waits_for()
        return found

    def _waits_for(self) -> Operation | None:
        """Return an operation for which it waits at once."""
        return next((made for made in self.inputs if not made.settled), self.behind)

    def finish(self) -> None:
        """End the operations that come before in the chain, the earliest first, as the last one is awaited."""
        before: list[Operation] = []
        chains = [self]
        while chains:
            chain = chains.pop()
            before += chain.inputs
            chains += [made.chain for made in chain.inputs if made.chain is not None]
            chain.inputs, chain.own = [], []  # from now on it keeps no tensor alive
        for made in reversed(before):
            made.pass_on()


class Chains:
    """The operations of one rank that are held, by their stream (messages by their interface) and in program order."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Stream | Interface, deque[tuple[Operation, CarryOut]]] = {}

    def hold(self, operation: Operation, carry_out: CarryOut) -> bool:
        """Link an operation to those whose results it was given, and hold it if it must wait.

        Args:
            operation: just submitted.
            carry_out: what is called with it once it must wait no longer.

        Returns:
            Whether it is held. If not, it has all results and is to be carried out.
        """
        stream = getattr(operation.owner, "interface", None) or operation.model._rows[operation.row + STREAM]
        queue = self._held.get(stream)
        given = operation.value if isinstance(operation.value, list) else [operation.value]
        if queue is None and not any(isinstance(value, Launched) for value in given):
            return False
        chain = operation.chain = _link(operation, given)
        if queue is None and chain.is_ready:
            _give_results(operation, chain)
            return False
        if queue is None:
            queue = self._held[stream] = deque()
        chain.behind = queue[-1][0] if queue else None
        queue.append((operation, carry_out))
        operation.model._transport.hold(operation)
        return True

    def go_on(self) -> None:
        """Carry out what must wait no longer, in the order of its stream."""
        for stream, queue in list(self._held.items()):
            while queue and queue[0][0].chain.is_ready:
                operation, carry_out = queue.popleft()
                operation.model._transport.release(operation)
                _give_results(operation, operation.chain)
                carry_out(operation)
                if queue:
                    queue[0][0].chain.behind = None
            if not queue:
                del self._held[stream]


def _link(operation: Operation, given: list[Any]) -> Chain:
    """Return what an operation waits for, and note in the log and on its inputs that it does."""
    chain = operation.chain = Chain([], [])
    launched = [value._operation for value in given if isinstance(value, Launched)]
    for made in dict.fromkeys(launched):
        memory = made.launched_memory
        assert memory is not None
        if memory.awaited:
            result = made.result_again()
            chain.own += _listed(result)
            chain.take(operation, made, result)
        else:
            chain.inputs.append(made)
            memory.followers.append(operation)
            if made.settled:
                chain.take(operation, made, made.outcome)
    chain.own += [value for value in given if not isinstance(value, Launched)]
    if chain.inputs:
        rows = operation.model._rows
        note: Note = rows[operation.row + NOTE] or Note()
        rows[operation.row + NOTE] = note
        note.after = (*note.after, *(made.row // STRIDE for made in chain.inputs))
    return chain


def _give_results(operation: Operation, chain: Chain) -> None:
    """Give an operation the results that it was launched with, and let it be ready when the last of them is."""
    model: Any = operation.model  # one that communicates
    value = operation.value
    results, chain.results = chain.results, {}
    if isinstance(value, list):
        operation.value = [_result(item, results) for item in value]
    else:
        operation.value = _result(value, results)
    if results:
        operation.value = model._checked(operation.op, operation.value)
    ends = [made.end for made in results]
    operation.clock, _ = operation.latest([operation.clock, *ends], [operation.rank] * (len(ends) + 1))


def _result(item: Any, results: Mapping[Operation, Any]) -> Any:
    """Return what stands for an item of what an operation was given."""
    if not isinstance(item, Launched):
        return item
    return None if isinstance(item, Unused) else results[item._operation]


def _listed(result: Any) -> list[Any]:
    """Return the tensors of a bucket, or the one tensor."""
    return result if isinstance(result, list) else [result]
