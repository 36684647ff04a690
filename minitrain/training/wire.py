"""The executor of a rank that is a process, and its transport: torch computes, torch.distributed communicates.

The transport settles each communication at once, by what the program says that all members bring. The executor starts
it, and gives the result its numbers when it is awaited.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, final
from zlib import crc32

import torch
import torch.distributed as dist

from minitrain.engine.executors import ContentExecutor
from minitrain.errors import UsageError
from minitrain.operations import COMM, STRIDE, Stream
from minitrain.operations.collectives import COLLECTIVES, Collective, perform
from minitrain.tensors import Activation, ActivationGrad, OptState, Sharded, Tensor
from minitrain.tensors.placed import COPIES
from minitrain.training.contents import Flat, Rows, bounds, pieces_of, put_together
from minitrain.training.divided import DividedArithmetic, DividedCollective
from minitrain.training.layers import Arithmetic
from minitrain.training.program import RankProgram

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Finish = Callable[[], Any]
"""Returns the content of a result, once its communication has ended."""


class PendingNumbers:
    """A communication under way: its numbers come when it is waited for.

    Args:
        began_s: when it was submitted, s: before torch was told, or others could end before it.
        works: of torch.distributed.
        finish: gives the contents to the results.
        alive: what must not be freed before the end.

    Attributes:
        ended_s: when it ended, s, as far as it is known.
    """

    __slots__ = ("alive", "began_s", "ended_s", "finish", "works")

    def __init__(self, began_s: float, works: Sequence[Any], finish: Callable[[], None], alive: Any = None) -> None:
        self.began_s = began_s
        self.works, self.finish, self.alive = works, finish, alive
        self.ended_s: float | None = None

    def note_end(self) -> None:
        """Let the end be noted when it comes, and not when it is waited for; some works of gloo cannot tell."""
        with suppress(RuntimeError):
            for work in self.works:
                work.get_future().then(self._note)

    def _note(self, _: Any) -> None:
        self.ended_s = perf_counter()

    @property
    def has_ended(self) -> bool:
        """Whether nobody needs to wait."""
        return all(work.is_completed() for work in self.works)

    def wait(self) -> float:
        """Wait for the end, and return when it was, s."""
        for work in self.works:
            work.wait()
        self.finish()
        self.works, self.alive = (), None
        return perf_counter() if self.ended_s is None else self.ended_s


class ProcessGroup:
    """What this rank knows of a group.

    Attributes:
        ranks: the members in ascending order.
        busy_until: of no use here; whoever prices collectives writes it.
    """

    def __init__(self, transport: ProcessTransport, ranks: tuple[int, ...], *, is_world: bool) -> None:
        self.transport = transport
        self.ranks = ranks
        self.size = len(ranks)
        self.is_world = is_world
        self.stream = Stream(COMM, None if is_world else ranks)
        self.busy_until = 0.0

    def index_of(self, rank: int) -> int:
        """Return a member's place in the group."""
        if rank not in self.ranks:
            raise UsageError(f"rank {rank} is not in the group {self.ranks}", rank=rank, group=self.ranks)
        return self.ranks.index(rank)

    def join(self, index: int, call: Any) -> None:
        """Settle a member's collective by what the program says that all bring."""
        program = self.transport.program
        known = program.expect(call.row // STRIDE, call.op, self.ranks, None, call.detail, call.value)
        brought = [call.value if place == index else value for place, value in enumerate(known.brought)]
        result = perform(call.op, brought, self.ranks, call.detail, whole=self.is_world)[index]
        call.settle_all([call], [result], [call.clock], call.clock, call.rank, 0)


@final
class ProcessTransport:
    """What a model meets in the place of the other ranks: the recorded program.

    Every call must be the recorded one, and is settled at once.

    Args:
        program: what the rank does.
        world_size: number of ranks.
    """

    def __init__(self, program: RankProgram, world_size: int) -> None:
        self.program, self.world_size = program, world_size
        self.world = ProcessGroup(self, tuple(range(world_size)), is_world=True)
        self._groups = {self.world.ranks: self.world}
        self.whole_batches: dict[int, dict[int, frozenset[int]]] = {}
        self.remembered: dict[int, Any] = {}

    def communicator(self, ranks: Iterable[int]) -> ProcessGroup:
        """Return the group of some ranks."""
        members = tuple(sorted(set(ranks)))
        if members not in self._groups:
            self._groups[members] = ProcessGroup(self, members, is_world=False)
        return self._groups[members]

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> ProcessGroup:
        """Return the group of the ranks along some axes of a mesh."""
        ranks = [lowest]
        for stride, size in axes:
            ranks = [rank + place * stride for rank in ranks for place in range(size)]
        return self.communicator(ranks)

    def channel(self, source: int, dest: int, tag: Any = None) -> tuple[int, int, Any]:
        """Return what names the messages from one rank to another under one tag."""
        return source, dest, tag

    def put(self, channel: tuple[int, int, Any], call: Any) -> None:
        """Accept a message."""
        _, dest, tag = channel
        self.program.expect(call.row // STRIDE, call.op, (dest,), tag, None, call.value)
        call.settled = True

    def get(self, channel: tuple[int, int, Any], call: Any) -> None:
        """Deliver the symbol of a message."""
        source, _, tag = channel
        known = self.program.expect(call.row // STRIDE, call.op, (source,), tag, None, None)
        call.deliver(known.brought[0], 0.0)

    def mark_unreceived(self, call: Any) -> None:
        """Take no note: the simulation has found such messages."""

    def suspend(self, call: Any) -> Any:
        """Refuse to wait otherwise: every communication is settled when it is submitted."""
        raise AssertionError(f"{call.describe()} was not settled")

    def wake(self, waiters: Sequence[Any]) -> None:
        """Wake nobody: nobody waits."""


@final
class ProcessExecutor(ContentExecutor):
    """Computes by torch, and communicates by torch.distributed; it blocks where results are awaited.

    Args:
        program: what the rank does.
        arithmetic: what it computes.
        groups: those of torch.distributed, by their members.

    Attributes:
        spans: begin and end of each operation of the step, s, by its row of the log.
        count: says how many bytes are held, in a step whose memory is measured.
        most_held: the most that it has said.
        is_busy: whether the rank computes, or waits for others, and is not in code of the strategy's own.
    """

    def __init__(
        self,
        program: RankProgram,
        arithmetic: Arithmetic | DividedArithmetic,
        groups: Mapping[tuple[int, ...], Any],
    ) -> None:
        self._program, self._arithmetic, self._torch_groups = program, arithmetic, groups
        self._pending: dict[int, PendingNumbers] = {}
        self._owed: dict[int, tuple[Any, Any]] = {}  # what launched operations make, and they, by the tensor's id
        self._sent: list[PendingNumbers] = []
        self._exchanges: dict[tuple[int, ...], int] = {}  # of copies of tokens, by the members
        self.spans: dict[int, tuple[float, float]] = {}
        self.is_busy = False
        self.count: Callable[[], int] | None = None
        self.most_held = 0

    def arithmetic_of(self, model: Any) -> Arithmetic | DividedArithmetic:  # noqa: ARG002  (it is of one rank)
        """Return what the rank computes."""
        return self._arithmetic

    def compute(
        self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:
        """Compute, and note how long it takes."""
        self.is_busy = True
        row = len(model._rows) // STRIDE
        began = perf_counter()
        made = super().compute(model, op, given, named, do)
        self.spans[row] = began, perf_counter()
        self._note_memory()
        self.is_busy = False
        return made

    def _note_memory(self) -> None:
        if self.count is not None:
            self.most_held = max(self.most_held, self.count())

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:  # noqa: ARG002  (it is of one rank)
        """Send a message: it leaves when it can, and a send waits for nobody. Move what goes to the host or back."""
        began = perf_counter()
        operation = submit()
        row = operation.row // STRIDE
        if op == "send":
            dest, _, tag = given
            (content,) = self._contents_of(operation.value)
            values = packed(content, self._arithmetic)
            work = dist.isend(values, dest, tag=number_of(tag))
            self._sent = [sent for sent in self._sent if not sent.has_ended]
            self._sent.append(PendingNumbers(began, [work], lambda: None, values))
            self.spans[row] = began, perf_counter()
        elif op in ("offload", "fetch"):
            place = "cpu" if op == "offload" else self._arithmetic.net.device
            operation.outcome._content = given[0]._content.moved(place)
            self.spans[row] = began, perf_counter()
        return operation

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Start this rank's part in a collective."""
        (operation,), (result,) = operations, results
        ranks = operation.owner.ranks
        if len(ranks) == 1:
            _take_over(operation.value, result)
            return
        row, value = operation.row // STRIDE, operation.value
        self._contents_of(value)
        began = perf_counter()
        brought = self._program.communications[row].brought
        record = COLLECTIVES[operation.op]
        started = Started(
            self._arithmetic, record, self._torch_groups[ranks], ranks, operation.owner.index, operation.detail
        )
        if value.__class__ in COPIES:
            ends = [self._exchange_copies(started, value, brought)]
        elif record.gives == "exchange":
            ends = started.exchange(value, brought)
        else:
            columns = zip(*brought, strict=True) if isinstance(value, list) else [brought]
            ends = [started.begin(item, column) for item, column in zip(_listed(value), columns, strict=True)]

        def finish() -> None:
            for made, end in zip(_listed(result), ends, strict=True):
                if made is not None:
                    made._content = end()

        self._await_later(operation, PendingNumbers(began, started.works, finish, value), result)

    def _exchange_copies(self, started: Started, value: Any, brought: Sequence[Any]) -> Finish:
        """Start to exchange copies of tokens; messages of several exchanges of a group have tags of their own."""
        assert started.divided is not None  # nothing else makes copies
        ranks = tuple(started.ranks)
        self._exchanges[ranks] = count = self._exchanges.get(ranks, 0) + 1
        tag = number_of(("copies", ranks, count))
        return started.divided.exchange_copies(value, brought, tag, self._keep)

    def _keep(self, work: Any, values: torch.Tensor) -> None:
        """Keep a message until it has left."""
        self._sent.append(PendingNumbers(0.0, [work], lambda: None, values))

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Start to receive a message."""
        tag = self._program.communications[operation.row // STRIDE].tag
        room, content_of = room_for(value, self._arithmetic)
        began = perf_counter()
        work = dist.irecv(room, operation.owner.stream.peer, tag=number_of(tag))

        def finish() -> None:
            result._content = content_of(room)

        self._await_later(operation, PendingNumbers(began, [work], finish, room), result)

    def _await_later(self, operation: Any, pending: PendingNumbers, result: Any) -> None:
        if operation.model.launching:
            pending.note_end()
            self._owed |= {id(tensor): (tensor, operation) for tensor in _listed(result)}
        self._pending[operation.row // STRIDE] = pending

    def _contents_of(self, value: Any) -> list[Any]:
        """Return what tensors carry; of a chain, the results of launched operations are waited for."""
        for tensor in _listed(value):
            if tensor is not None and not hasattr(tensor, "_content") and id(tensor) in self._owed:
                self.awaited(self._owed[id(tensor)][1], tensor)
        return [tensor._content for tensor in _listed(value) if tensor is not None]

    def awaited(self, operation: Any, result: Any) -> None:  # noqa: ARG002  (it is known to `finish`)
        """Wait for the numbers of a communication."""
        row = operation.row // STRIDE
        pending = self._pending.pop(row, None)
        if pending is not None:
            self.is_busy = True
            self.spans[row] = pending.began_s, pending.wait()
            self._note_memory()
            self.is_busy = False

    def end_step(self, model: Any) -> array[float]:
        """Require that a step was the recorded one; return begin and end of its operations, s, in program order.

        Raises:
            StrategyError: it was another one.
        """
        self._program.require_same(model._rows)
        for sent in self._sent:
            sent.wait()
        self._sent.clear()
        self._owed.clear()
        spans, last, found = self.spans, (0.0, 0.0), array("d")
        for row in range(len(model._rows) // STRIDE):
            last = spans.get(row, (last[1], last[1]))  # alone in a group, there is nothing to do
            found.extend(last)
        self.spans = {}
        return found


class Started:
    """A collective under way on this rank, tensor by tensor.

    Args:
        arithmetic: what the rank computes.
        record: which collective.
        group: that of torch.distributed.
        ranks: its members.
        index: the place of this rank among them.
        root: of a broadcast.

    Attributes:
        works: those of torch.distributed so far.
    """

    def __init__(
        self,
        arithmetic: Arithmetic | DividedArithmetic,
        record: Collective,
        group: Any,
        ranks: Sequence[int],
        index: int,
        root: int | None,
    ) -> None:
        self.arithmetic, self.name = arithmetic, record.name
        self.group, self.ranks, self.index, self.root = group, ranks, index, root
        self.works: list[Any] = []
        self.divided = (
            DividedCollective(arithmetic, group, ranks, index, self.works)
            if isinstance(arithmetic, DividedArithmetic)
            else None
        )

    def begin(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Start, and return what gives the result its content once all works have ended."""
        divided = self.divided
        if divided is not None and value is not None and divided.takes(self.name, value):
            return getattr(divided, self.name)(value, brought)  # type: ignore[no-any-return]  # of all methods
        return getattr(self, f"_{self.name}")(value, brought)  # type: ignore[no-any-return]

    def _all_reduce(self, value: Any, _: Sequence[Any]) -> Finish:
        """Sum in place."""
        content = value._content
        values = content.values = content.values.contiguous()
        self.works.append(dist.all_reduce(values, group=self.group, async_op=True))
        return lambda: content

    def _reduce_scatter(self, value: Any, _: Sequence[Any]) -> Finish:
        """Sum, and get one of as many shards as there are members."""
        content, num = value._content, len(self.ranks)
        cuts = [bounds(place, num, content.size) for place in range(num)]
        start, end = cuts[self.index]
        mine = Flat(content.values.new_empty(end - start), [(start, end)], content.size)
        if content.size % num:
            pieces = [content.values[first:last].contiguous() for first, last in cuts]
            self.works.append(dist.reduce_scatter(mine.values, pieces, group=self.group, async_op=True))
        else:
            self.works.append(_reduce_scatter(mine.values, content.values, group=self.group, async_op=True))
        return lambda: mine

    def _all_gather(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Put shards together; those of unequal sizes are padded, which gloo needs."""
        content = value._content
        pieces = [pieces_of(each.shards, each.num_shards, content.size) for each in brought]
        sizes = [sum(last - first for first, last in found) for found in pieces]
        values = content.values.contiguous()
        is_in_order = values.dim() == 1 and [piece for found in pieces for piece in found] == [
            bounds(place, len(pieces), content.size) for place in range(len(pieces))
        ]
        if is_in_order and len(set(sizes)) == 1:
            whole = values.new_empty(content.size)
            self.works.append(_all_gather(whole, values, group=self.group, async_op=True))
            return lambda: Flat.whole(whole)
        most, shape = max(sizes), values.shape[:-1]
        padded = torch.nn.functional.pad(values, (0, most - values.shape[-1]))
        found = [values.new_empty(*shape, most) for _ in sizes]
        self.works.append(dist.all_gather(found, padded, group=self.group, async_op=True))
        return lambda: put_together(
            Flat(each[..., :size], piece, content.size) for each, size, piece in zip(found, sizes, pieces, strict=True)
        )

    def _broadcast(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Get what the root has."""
        sent = brought[self.ranks.index(self.root)]
        room, content_of = room_for(sent, self.arithmetic)
        if value is not None:
            room = packed(value._content, self.arithmetic)
        self.works.append(dist.broadcast(room, self.root, group=self.group, async_op=True))
        return lambda: content_of(room)

    def exchange(self, value: Sequence[Any], brought: Sequence[Sequence[Any]]) -> list[Finish]:
        """Give a tensor to each member and get one from each."""
        mine = [room_for(column[self.index], self.arithmetic) for column in brought]
        given = [packed(each._content, self.arithmetic).reshape(-1) for each in value]
        sizes = [room.numel() for room, _ in mine], [values.numel() for values in given]
        sent = torch.cat(given)
        got = sent.new_empty(sum(sizes[0]))
        self.works.append(dist.all_to_all_single(got, sent, *sizes, group=self.group, async_op=True))
        return [
            partial(content_of, values.view(room.shape))
            for (room, content_of), values in zip(mine, got.split(sizes[0]), strict=True)
        ]

    def _barrier(self, *_: Any) -> Finish:
        """Wait for all."""
        self.works.append(dist.barrier(self.group, async_op=True))
        return lambda: None


def packed(content: Any, arithmetic: Arithmetic | DividedArithmetic) -> torch.Tensor:
    """Return what a content is on its way."""
    if isinstance(arithmetic, DividedArithmetic):
        return arithmetic.packed(content)
    return content.values.contiguous()  # type: ignore[no-any-return]  # of rows and of shards


def room_for(
    symbol: Tensor, arithmetic: Arithmetic | DividedArithmetic
) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """Return room for what a tensor of another rank carries, and what makes its content of that."""
    if isinstance(arithmetic, DividedArithmetic):
        return arithmetic.room_for(symbol)
    net = arithmetic.net
    if isinstance(symbol, Activation | ActivationGrad):
        layer = symbol.layer + isinstance(symbol, ActivationGrad)
        return torch.empty(net.shape(layer, len(symbol.samples)), dtype=net.dtype, device=net.device), Rows
    assert isinstance(symbol, Sharded)
    size = net.size(symbol.layer)
    pieces = pieces_of(symbol.shards, symbol.num_shards, size)
    held = sum(last - first for first, last in pieces)
    shape = (net.optimizer.num_moments, held) if isinstance(symbol, OptState) else (held,)
    return torch.empty(shape, dtype=net.dtype, device=net.device), lambda values: Flat(values, pieces, size)


def number_of(tag: Any) -> int:
    """Return the number that torch.distributed knows a tag by: 0 for no tag."""
    return 0 if tag is None else crc32(repr(tag).encode()) & 0x3FFFFFFF or 1


def _take_over(value: Any, result: Any) -> None:
    """Give the result of a collective of one what it has brought."""
    for made, item in zip(_listed(result), _listed(value), strict=True):
        if made is not None and made is not item:
            made._content = item._content


def _listed(value: Any) -> list[Any]:
    """Return the tensors of a bucket, or one alone."""
    return value if isinstance(value, list) else [value]
