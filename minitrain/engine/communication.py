"""What a rank does with others: collectives, messages, and launching them to run beside its computing.

An operation is submitted at once: its row in the log is reserved, and the transport matches it with the operations of
the other ranks. It is completed when all of them are there (see `minitrain.engine.operations`). Awaiting it moves the
clock of the rank to its end.

Chains of launched operations: one is given the result of another that nobody has awaited yet.

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
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from functools import partial
from inspect import getcoroutinelocals
from types import CoroutineType
from typing import Any, TypeVar

from minitrain.engine.host_memory import HostMemory
from minitrain.engine.operations import Interface, Launched, LaunchedMemory, Operation, PeerStream, Unused
from minitrain.engine.protocol import Group, Mesh, ProcessGroup, require_axes
from minitrain.engine.strategy_model import StrategyModel
from minitrain.errors import StrategyError, TensorTypeError, UsageError
from minitrain.machine.price import Price
from minitrain.operations import LAYER, NOTE, OFFLOAD, ON_HOST, RECV, SEND, STREAM, STRIDE, Note, Stream
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS, tensors_of
from minitrain.tensors import FIELDS, Tensor
from minitrain.tensors.placed import COPIES

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
        return [tensor for result in self.results.values() for tensor in tensors_of(result)]

    def take(self, operation: Operation, made: Operation, result: Any) -> None:
        """Take a result for the operation: from now on nobody else may alter it."""
        self.results[made] = result
        if operation.model._observer is not None:
            operation.model._observer.chained(operation, tensors_of(result))

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
            chain.own += tensors_of(result)
            chain.take(operation, made, result)
        else:
            chain.inputs.append(made)
            memory.followers += (operation,)
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


T = TypeVar("T")

Groupish = Group | Iterable[int] | None

TENSORS = frozenset(FIELDS)


class Communication(HostMemory):
    """The operations on a rank's communication streams."""

    _operation_kind = Operation

    def mesh(self, **axes: int) -> Mesh:
        """Lay the ranks out on named axes, the last one fastest: with `mesh(pp=4, dp=2)`, rank = 2 pp + dp.

        Raises:
            UsageError: the product of the axes is not world_size.
        """
        require_axes(axes, self._world_size)
        self._note_mesh(axes)
        return Mesh(self._rank, axes, lambda *axes: self._view(self._transport.communicator_along(*axes)))

    def _note_mesh(self, axes: dict[str, int]) -> None:
        """Keep the axes of a mesh, by which figures say what a group was for."""
        if axes not in self._meshes:
            self._meshes.append(axes)

    def group(self, ranks: Iterable[int]) -> Group:
        """Return the group of some ranks, this one among them.

        Raises:
            UsageError: a rank is not of this world, or this rank is not among them.
        """
        return self._view(self._transport.communicator(ranks))

    def _view(self, communicator: ProcessGroup) -> Group:
        """Return this rank's view of what a group shares."""
        found = self._groups.get(communicator)
        if found is None:
            found = self._groups[communicator] = Group(communicator, self._rank)
        return found

    async def send(self, dest: int, v: Any, *, tag: Hashable = None) -> None:
        """Send a tensor to another rank.

        Args:
            dest: who gets it.
            v: the tensor.
            tag: only a receive with the same tag gets it; tagged messages are never held back.

        Raises:
            UsageError: `dest` is not another rank.
            TensorTypeError: `v` is not a tensor.
        """
        await self._send(dest, v, tag)

    async def receive(self, source: int, *, tag: Hashable = None) -> Any:
        """Return the oldest tensor that another rank sent (under this tag) and that was not received yet.

        Args:
            source: who sends it.
            tag: the tag it was sent with.

        Raises:
            UsageError: `source` is not another rank.
        """
        return await self._receive(source, tag)

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit one communication of this model to run beside what follows: `work = model.launch(model.send(...))`.

        `offload`, `fetch` and `write` are launched in the same way.

        The operation is submitted before this returns, at the present clock; `await work` gives its result and moves
        the compute clock to its end. Its tensors count as memory of this rank until then. (A task made around an
        operation, in contrast, begins whenever the event loop comes to it.)

        A collective or a send may be given `work` in the place of its result: see `minitrain.engine.communication`.

        Raises:
            StrategyError: `operation` is not a fresh communication of this model.
        """
        self._require_operation(operation)
        self.launching = True
        try:
            submitted: Operation = operation.send(None)
        finally:
            self.launching = False
        operation.close()
        submitted.launched_memory = LaunchedMemory(submitted)
        self._in_flight[submitted] = None
        return Launched(submitted)

    def _require_operation(self, operation: Any) -> None:
        """Require a coroutine that one of this model's communications has just returned."""
        fresh = isinstance(operation, CoroutineType) and operation.cr_await is None
        if fresh and operation.__qualname__ in _OPERATIONS and getcoroutinelocals(operation).get("self") is self:
            return
        if isinstance(operation, CoroutineType):
            operation.close()
        raise StrategyError(
            f"launch on rank {self._rank} takes one communication of the same model that nobody awaits yet, such as "
            f"model.launch(model.all_gather(weight, layer)); got {operation!r:.80}",
            rank=self._rank,
        )

    def _of_root(
        self, op: str, v: Any, layer: int | None, group: Groupish, root: int
    ) -> tuple[Any, int | None, Group, int]:
        """Return what this rank gives to a collective with a root, as `_collective` takes it.

        Raises:
            TensorTypeError: it must bring a tensor and has none.
            UsageError: the root is not in the group.
        """
        member = self._member(group)
        members = member.ranks if self._world_size > 1 else (0, self._rank)  # in a world of one, any number
        if root not in members:
            end = "destination" if COLLECTIVES[op].to_root else "source"
            raise UsageError(f"the {end} of a {op} must be in the group {member.ranks}, got {root!r}")
        value: Any = v
        if COLLECTIVES[op].gives == "copy" and root != self._rank and member.size > 1:
            value = Unused(v._operation) if isinstance(v, Launched) else None
        if value is None and (root == self._rank or COLLECTIVES[op].to_root):
            raise TensorTypeError(f"{op} on rank {self._rank} needs a tensor, got None", rank=self._rank)
        return value, layer, member, root

    def _listed(self, v: Any) -> Any:
        """Return the tensors of an exchange as a list; copies of tokens as they are."""
        if v.__class__ in COPIES or isinstance(v, Launched):  # whose result is looked at once it is there
            return v
        if isinstance(v, Tensor):
            message = (
                f"all_to_all on rank {self._rank} needs a list of one tensor for each rank, or copies of tokens for "
                f"experts, got {type(v).__name__}"
            )
            raise TensorTypeError(message, rank=self._rank, value=v)
        return list(v)

    def _member(self, group: Groupish) -> Group:
        """Return this rank's own view of a group."""
        if group is None:
            return self._world
        if isinstance(group, Group):
            return group if group.rank == self._rank else self.group(group.ranks)
        return self.group(group)

    def _communicable(self, op: str, v: Any) -> Any:
        """Return a tensor, a bucket of tensors as a list, or None where the operation may have no value.

        A launched operation stands for its result.
        """
        if v is None and COLLECTIVES[op].gives not in ("nothing", "copy"):
            raise TensorTypeError(f"{op} on rank {self._rank} needs a tensor, got None", rank=self._rank)
        value = list(v) if isinstance(v, tuple) else v
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Launched):
                self._require_result(op, item._operation)
                self._chains = self._chains or Chains()
            elif item is None and value is not None:
                raise TensorTypeError(f"{op} on rank {self._rank} needs tensors, got {value!r:.80}", rank=self._rank)
            else:
                self.wire_bytes(item)  # raises for anything that is not a tensor
        return value

    def _require_result(self, op: str, launched: Operation) -> None:
        """Require that a launched operation, which another one is given, is of this rank and has a result to give."""
        if launched.model is not self:
            message = (
                f"{op} on rank {self._rank} got the launched {launched.op} of rank {launched.rank}; give it results of "
                "this rank's own operations, and send tensors to other ranks"
            )
            raise TensorTypeError(message, rank=self._rank, op=op)
        if launched.op in (SEND, "barrier", OFFLOAD, *ON_HOST):
            message = (
                f"{op} on rank {self._rank} needs a tensor, got the launched {launched.op}, which gives none; await it"
            )
            raise TensorTypeError(message, rank=self._rank, op=op)

    def _checked(self, op: str, value: Any) -> Any:
        """Return the result of a launched operation as another one takes it."""
        given = self._listed(value) if op in COLLECTIVES and COLLECTIVES[op].gives == "exchange" else value
        return given if given.__class__ in TENSORS else self._communicable(op, given)

    def _go_on_soon(self) -> None:
        """Carry out operations that have been held, in the next iteration of the event loop."""
        if self._chains is not None:
            self._transport.carry_out_soon(self._chains.go_on)

    def _collective(self, op: str, v: Any, layer: int | None, group: Groupish, detail: Any = None) -> Operation:
        """Submit a collective."""
        member = self._world if group is None else self._member(group)
        value = v if v.__class__ in TENSORS else self._communicable(op, v)
        operation = self._operation_kind(self, op, value, member, layer, detail, None)
        if self._chains is not None and self._chains.hold(operation, self._join):
            return operation
        communicator = member.communicator
        if communicator.size == 1:  # as `_join` does, without a call: every collective comes here
            operation.settle_alone(operation.value)
        else:
            communicator.join(member.index, operation)
        return operation

    def _join(self, operation: Any) -> None:
        """Let a collective meet those of the other ranks."""
        member = operation.owner
        if member.communicator.size == 1:
            operation.settle_alone(operation.value)
        else:
            member.communicator.join(member.index, operation)

    def _peer(self, kind: str, peer: int) -> PeerStream:
        """Return the stream of messages to or from a peer."""
        found = self._peers.get((kind, peer))
        if found is None:
            found = self._peers[kind, peer] = PeerStream(kind, peer)
        return found

    def _send(self, dest: int, v: Any, tag: Hashable) -> Operation:
        """Submit a message; its interface carries it next, whatever its receiver does."""
        channel = self._transport.channel(self._rank, dest, tag)
        price = layer = None
        if isinstance(v, Launched):
            self._communicable(SEND, v)
        else:
            price, layer = self._price_of_message(v, dest), v.layer
        owner = self._peer(SEND, dest)
        operation = self._operation_kind(self, SEND, v, owner, layer, None, tag)
        before = self._carried_before(operation, owner, price, dest)
        if self._chains is None or not self._chains.hold(
            operation, partial(self._depart, price=price, tag=tag, before=before)
        ):
            self._depart(operation, price, tag, channel, before)
        return operation

    def _carried_before(self, operation: Operation, owner: PeerStream, price: Price | None, dest: int) -> Any:
        """Return the launched send to another peer, still in flight, that the interface carries before this one."""
        interface = owner.interface
        if interface is None:
            tier = price or self._runtime_predictor.p2p(SEND, 0, self._rank, dest)
            interface = owner.interface = self._interfaces.setdefault(tier.tier_size, Interface())
        before = interface.last
        interface.last = operation if self.launching else None
        if before is None or before.owner is owner:
            return None
        note: Note = self._rows[operation.row + NOTE] or Note()
        self._rows[operation.row + NOTE] = note
        note.after = (before.row // STRIDE,)
        return before

    def _price_of_message(self, v: Any, dest: int) -> Price:
        """Return the price of sending a tensor."""
        return self._runtime_predictor.p2p(SEND, self.message_bytes(v), self._rank, dest)

    def _depart(
        self, operation: Operation, price: Price | None, tag: Hashable, channel: Any = None, before: Any = None
    ) -> None:
        """Send a message; one that was held has no channel yet, nor a price if it waited for what it carries."""
        dest: Any = operation.owner.stream.peer
        if price is None:
            price = self._price_of_message(operation.value, dest)
            self._rows[operation.row + LAYER] = operation.value.layer
        operation.depart(price, before)
        found = self._transport.channel(self._rank, dest, tag) if channel is None else channel
        self._transport.put(found, operation)
        if channel is None and self._observer is not None:
            self._observer.departed(operation)
        if operation.settled and operation.waiters is not None:  # it was held while its task waited
            self._transport.wake([operation.waiters])

    def _receive(self, source: int, tag: Hashable) -> Operation:
        """Submit a receive."""
        channel = self._transport.channel(source, self._rank, tag)
        owner = self._peer(RECV, source)
        operation = self._operation_kind(self, RECV, None, owner, None, None, tag)
        owner.pending.append(operation)
        owner.is_waited_for |= not self.launching
        self._transport.get(channel, operation)
        return operation


_OPERATIONS = frozenset(getattr(StrategyModel, op).__qualname__ for op in COLLECTIVES) | {
    getattr(Communication, record.submits.removeprefix("_")).__qualname__ for record in TRANSFERS.values()
}
