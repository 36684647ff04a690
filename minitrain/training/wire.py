"""The executor of a rank that is a process, and its transport: torch computes, torch.distributed communicates.

The transport settles each communication at once, by what the program says that all members bring. The executor starts
it, and gives the result its numbers when it is awaited.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

from minitrain.engine.observers import ContentExecutor
from minitrain.engine.protocol import ProcessGroup, ranks_along
from minitrain.errors import UsageError
from minitrain.operations import FETCH, OFFLOAD, STRIDE, WRITE
from minitrain.operations.collectives import COLLECTIVES, Collective, by_tensor, perform, tensors_of
from minitrain.proof.partial_gradients import PartialGrad
from minitrain.tensors import ActivationGrad, OptState, Sharded, Weight, WeightGrad, placed
from minitrain.tensors.compressed import CompressedGrad
from minitrain.tensors.index_sets import WHOLE_SEQUENCE
from minitrain.tensors.placed import COPIES
from minitrain.training.contents import (
    Copies,
    Flat,
    KeysValues,
    Logits,
    Messages,
    Rows,
    key_of,
    merge_statistics,
    part_of,
    pieces_of,
    put_together,
)
from minitrain.training.devices import CPU, Cpu, Moment, Place, Written, held_by_kind
from minitrain.training.layers import Arithmetic, num_states, regions_of
from minitrain.training.program import Lane, RankProgram, copies_tag

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

ABSENT = -1
"""The count of copies of an origin that a rank has not."""

Finish = Callable[[], Any]
"""Returns the content of a result, once its communication has ended."""


class PendingNumbers:
    """A communication under way: its numbers come when it is waited for.

    Args:
        place: of the rank, which has the clock.
        began: when it was submitted: before torch was told, or others could end before it.
        works: of torch.distributed.
        finish: gives the contents to the results.
        alive: what must not be freed before the end.

    Attributes:
        ended: when it ended, as far as it is known.
    """

    __slots__ = ("alive", "began", "ended", "finish", "place", "works")

    def __init__(
        self, place: Place, began: Moment, works: Sequence[Any], finish: Callable[[], None], alive: Any = None
    ) -> None:
        self.place, self.began = place, began
        self.works, self.finish, self.alive = works, finish, alive
        self.ended: Moment | None = None

    def note_end(self) -> None:
        """Let the end be noted when it comes, and not when it is waited for; some works of gloo cannot tell."""
        with suppress(RuntimeError):
            for work in self.works:
                work.get_future().then(self._note)

    def _note(self, _: Any) -> None:
        self.ended = self.place.now()  # on a GPU, in the stream of the communication

    @property
    def has_ended(self) -> bool:
        """Whether nobody needs to wait."""
        return all(work.is_completed() for work in self.works)

    def wait(self) -> Moment:
        """Wait for the end, or let what is queued behind it wait; return when it was."""
        for work in self.works:
            work.wait()
        self.finish()
        self.works, self.alive = (), None
        return self.place.now() if self.ended is None else self.ended


class RecordedGroup(ProcessGroup):
    """What this rank knows of a group.

    Args:
        transport: the rank's.
        ranks, is_world: as of every group.
    """

    def __init__(self, transport: ProcessTransport, ranks: tuple[int, ...], *, is_world: bool) -> None:
        super().__init__(ranks, is_world=is_world)
        self.transport = transport

    def join(self, index: int, call: Any) -> None:
        """Settle a member's collective by what the program says that all bring."""
        program = self.transport.program
        known = program.expect(call.row // STRIDE, call.op, self.ranks, None, call.detail, call.value)
        brought = [call.value if place == index else value for place, value in enumerate(known.brought)]
        result = perform(call.op, brought, self.ranks, call.detail, whole=self.is_world)[index]
        call.settle_all([call], [result], call.clock, call.rank, 0)


class ProcessTransport:
    """What a model meets in the place of the other ranks: the recorded program.

    Every call must be the recorded one, and is settled at once.

    Args:
        program: what the rank does.
        world_size: number of ranks.
    """

    def __init__(self, program: RankProgram, world_size: int) -> None:
        self.program, self.world_size = program, world_size
        self.world = RecordedGroup(self, tuple(range(world_size)), is_world=True)
        self.groups = {self.world.ranks: self.world}

    def communicator(self, ranks: Iterable[int]) -> RecordedGroup:
        """Return the group of some ranks."""
        members = tuple(sorted(set(ranks)))
        if members not in self.groups:
            self.groups[members] = RecordedGroup(self, members, is_world=False)
        return self.groups[members]

    def communicator_along(self, lowest: int, axes: tuple[tuple[int, int], ...]) -> RecordedGroup:
        """Return the group of the ranks along some axes of a mesh."""
        return self.communicator(ranks_along(lowest, axes))

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
        """Return what a task must yield to wait for its turn; every communication is settled when it is submitted."""
        if call.waiters is None:
            call.waiters = asyncio.get_running_loop().create_future()
        return next(iter(call.waiters))  # the future itself, once it has noted that a task is to wait

    def wake(self, waiters: Sequence[Any]) -> None:
        """Let a task go on that waits, if one does already."""
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class ProcessExecutor(ContentExecutor):
    """Computes by torch, and communicates by torch.distributed; it blocks where results are awaited.

    Args:
        program: what the rank does.
        arithmetic: what it computes.
        groups: those of torch.distributed, by their members.
        place: where it computes; a CPU by default.
        lanes: groups for messages, of a backend whose messages have no tags.

    Attributes:
        spans: begin and end of each operation of the step, by its row of the log.
        count: says how many bytes are held, in a step whose memory is measured.
        most_held: the most that it has said.
        at_peak: bytes of each kind in the stores then.
        is_busy: whether the rank computes, or waits for others, and is not in code of the strategy's own.
    """

    def __init__(
        self,
        program: RankProgram,
        arithmetic: Arithmetic,
        groups: Mapping[tuple[int, ...], Any],
        place: Place | None = None,
        lanes: Mapping[Lane, Any] | None = None,
    ) -> None:
        self._program, self._arithmetic, self._torch_groups = program, arithmetic, groups
        self._place, self._lanes = place or Cpu(), lanes
        self._now = self._place.now
        self._last_load = program.last_load
        self._pending: dict[int, PendingNumbers] = {}
        self._owed: dict[int, tuple[Any, Any]] = {}  # what launched operations make, and they, by the tensor's id
        self._sent: list[PendingNumbers] = []
        self._copies_of: dict[int, Sequence[Any]] = {}  # on their way to the host, by the identity of what they make
        self._writer: ThreadPoolExecutor | None = None
        self._exchanges: dict[tuple[int, ...], CopiesUnderWay] = {}  # the last of each group
        self.spans: dict[int, tuple[Moment, Moment]] = {}
        self.is_busy = False
        self.count: Callable[[], int] | None = None
        self.most_held = 0
        self.at_peak: dict[str, int] = {}

    def arithmetic_of(self, model: Any) -> Arithmetic:  # noqa: ARG002  (it is of one rank)
        """Return what the rank computes."""
        return self._arithmetic

    def compute(
        self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:
        """Compute, and note how long it takes."""
        self.is_busy = True
        row = len(model._rows) // STRIDE
        if row > self._last_load:
            self._arithmetic.carried = {}  # what the step begins with is the strategy's now, to be freed by it
        began = self._now()
        made = super().compute(model, op, given, named, do)
        self.spans[row] = began, self._now()
        self._note_memory(model, made)
        self.is_busy = False
        return made

    def _note_memory(self, model: Any, made: Any) -> None:
        if self.count is not None and (held := self.count()) > self.most_held:
            self.most_held, self.at_peak = held, held_by_kind(model, made, self._place.device)

    def communicate(self, model: Any, op: str, given: tuple[Any, ...], submit: Callable[[], Any]) -> Any:
        """Send a message, which waits for nobody; move to the host or back; write beside, to a file that is removed."""
        began = self._now()
        operation = super().communicate(model, op, given, submit)
        row = operation.row // STRIDE
        if op == "send":
            dest, _, tag = given
            values = self._contents_of(operation.value)[0].packed()
            self._sent = [sent for sent in self._sent if not sent.has_ended]
            self._keep(dist.isend(values, dest, **self._way(model._rank, dest, tag)), values)
            self.spans[row] = began, self._now()
        elif op == WRITE:
            self._writer = self._writer or ThreadPoolExecutor(1)
            work = Written(self._writer, given[0]._content, self._copies_of.get(id(given[0]), ()))
            pending = self._pending[row] = PendingNumbers(self._place, began, [work], _nothing)
            if self._place.device == CPU:
                pending.note_end()
        elif op in (OFFLOAD, FETCH):
            content, works, end = self._place.copied(given[0]._content, to_host=op == OFFLOAD)
            operation.outcome._content = content
            if isinstance(given[0], OptState) and key_of(given[0]) in self._arithmetic.states:
                self._arithmetic.states[key_of(given[0])] = content  # the original is freed when the strategy drops it
            self._copies_of[id(operation.outcome)] = works
            self.spans[row] = began, end
            if works:
                pending = self._pending[row] = PendingNumbers(self._place, began, works, _nothing)
                pending.ended = end
        return operation

    def update_on_host(self, model: Any, given: Sequence[Any]) -> None:
        """Update once the copies are there."""
        began = self._now()
        for work in [work for kept in given for work in self._copies_of.get(id(kept), ())]:
            work.wait()
        super().update_on_host(model, given)
        self.spans[len(model._rows) // STRIDE - 1] = began, self._now()

    def _way(self, source: int, dest: int, tag: Any) -> dict[str, Any]:
        """Return how a message goes: under its tag, or in a group of its own that keeps the order."""
        if self._lanes is None:
            return {"tag": number_of(tag)}
        return {"group": self._lanes[self._program.lane(source, dest, tag)]}

    def settle(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Start this rank's part in a collective."""
        (operation,), (result,) = operations, results
        ranks = operation.owner.ranks
        if len(ranks) == 1:
            _take_over(operation.value, result)
            return
        row, value = operation.row // STRIDE, operation.value
        self._contents_of(value)
        began = self._now()
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
            of_each = by_tensor((*brought, value))
            ends = started.begin_all([each[-1] for each in of_each], [each[:-1] for each in of_each])

        def finish() -> None:
            for made, end in zip(tensors_of(result), ends, strict=True):
                if made is not None:
                    made._content = end()

        self._await_later(operation, PendingNumbers(self._place, began, started.works, finish, value), result)

    def _exchange_copies(self, started: Started, value: Any, brought: Sequence[Any]) -> Finish:
        """Start to exchange copies of tokens."""
        ranks, mine = tuple(started.ranks), started.ranks[started.index]
        tag = copies_tag(ranks)
        way = {rank: (self._way(mine, rank, tag), self._way(rank, mine, tag)) for rank in ranks if rank != mine}
        under_way = CopiesUnderWay(started, value, brought, way, self._exchanges.get(ranks))
        self._exchanges[ranks] = under_way
        for work, values in under_way.sent:
            self._keep(work, values)
        return under_way.end

    def _keep(self, work: Any, values: torch.Tensor) -> None:
        """Keep a message until it has left."""
        self._sent.append(PendingNumbers(self._place, None, [work], _nothing, values))

    def receive(self, operation: Any, value: Any, result: Any) -> None:
        """Start to receive a message."""
        tag = self._program.communications[operation.row // STRIDE].tag
        room, content_of = room_for(value, self._arithmetic)
        began, source = self._now(), operation.owner.stream.peer
        work = dist.irecv(room, source, **self._way(source, operation.rank, tag))

        def finish() -> None:
            result._content = content_of(room)

        self._await_later(operation, PendingNumbers(self._place, began, [work], finish, room), result)

    def _await_later(self, operation: Any, pending: PendingNumbers, result: Any) -> None:
        if operation.model.launching:
            pending.note_end()
            self._owed |= {id(tensor): (tensor, operation) for tensor in tensors_of(result)}
        self._pending[operation.row // STRIDE] = pending

    def _contents_of(self, value: Any) -> list[Any]:
        """Return what tensors carry; of a chain, the results of launched operations are waited for."""
        for tensor in tensors_of(value):
            if tensor is not None and not hasattr(tensor, "_content") and id(tensor) in self._owed:
                self.awaited(self._owed[id(tensor)][1], tensor)
        return [tensor._content for tensor in tensors_of(value) if tensor is not None]

    def awaited(self, operation: Any, result: Any) -> None:
        """Wait for the numbers of a communication."""
        row = operation.row // STRIDE
        pending = self._pending.pop(row, None)
        if pending is not None:
            for tensor in [key for key, (_, owing) in self._owed.items() if owing is operation]:
                del self._owed[tensor]  # which would keep it for the rest of the step
            self.is_busy = True
            self.spans[row] = pending.began, pending.wait()
            self._note_memory(operation.model, result)
            self.is_busy = False

    def end_step(self, model: Any) -> array[float]:
        """Require that a step was the recorded one; return begin and end of its operations, s, in program order.

        Raises:
            StrategyError: it was another one.
        """
        self._program.require_same(model._rows)
        self.is_busy = True
        for sent in self._sent:
            sent.wait()
        self._place.end()
        self.is_busy = False
        self._sent.clear()
        self._owed.clear()
        self._exchanges.clear()
        spans, seconds, last, found = self.spans, self._place.seconds, (0.0, 0.0), array("d")
        for row in range(len(model._rows) // STRIDE):
            ends = spans.get(row)  # alone in a group, there is nothing to do
            last = (last[1], last[1]) if ends is None else (seconds(ends[0]), seconds(ends[1]))
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
        root: the rank from which, or to which, all goes, of a collective that has one.

    Attributes:
        works: those of torch.distributed so far.
    """

    def __init__(
        self, arithmetic: Arithmetic, record: Collective, group: Any, ranks: Sequence[int], index: int, root: int | None
    ) -> None:
        as_for_all = bool(record.to_root) and not is_known(record.name)
        self.arithmetic, self.name = arithmetic, record.to_root if as_for_all else record.name
        self.group, self.ranks, self.index, self.root = group, ranks, index, root
        self.works: list[Any] = []

    def begin_all(self, values: Sequence[Any], brought: Sequence[Sequence[Any]]) -> list[Finish]:
        """Start, and return what gives each tensor of a bucket its content; one transfer for all where they are alike.

        Args:
            values: what this rank brings.
            brought: what all members bring, by tensor.
        """
        ends = self._together(values, brought) if len(values) > 1 else None
        return ends or [self.begin(value, column) for value, column in zip(values, brought, strict=True)]

    def _together(self, values: Sequence[Any], brought: Sequence[Sequence[Any]]) -> list[Finish] | None:
        """Start one transfer for a bucket of whole gradients, or of their equal shards; None if it is none."""
        if self.name not in ("all_reduce", "reduce_scatter", "all_gather"):
            return None
        contents, num = [value._content for value in values], len(self.ranks)
        is_plain = all(map(_is_plain, contents, brought)) and any(content.size for content in contents)
        if not is_plain or len({content.values.dtype for content in contents}) > 1:
            return None
        flat = [content.settled().values for content in contents]
        if self.name == "all_reduce":
            total = torch.cat(flat)
            self.works.append(dist.all_reduce(total, group=self.group, async_op=True))
            made: list[Finish] = []
            for content, piece in zip(contents, total.split([each.numel() for each in flat]), strict=True):
                content.values = piece
                made.append(partial(_same, content))
            return made
        if any(content.size % num or len(content.regions) > 1 for content in contents):
            return None
        sizes = [content.size // num for content in contents]
        cuts = [pieces_of([self.index], num, content.regions) for content in contents]
        if self.name == "reduce_scatter":
            rows = torch.cat([each.view(num, -1) for each in flat], 1)  # a row for each member
            mine = rows.new_empty(sum(sizes))
            self.works.append(_reduce_scatter(mine, rows.view(-1), group=self.group, async_op=True))
            shards = zip(mine.split(sizes), cuts, contents, strict=True)
            return [partial(Flat, piece, cut, content.regions) for piece, cut, content in shards]
        if any(
            (list(each.shards), each.num_shards) != ([place], num)
            for column in brought
            for place, each in enumerate(column)
        ):
            return None
        own = torch.cat(flat)
        found = own.new_empty(num * own.numel())
        self.works.append(_all_gather(found, own, group=self.group, async_op=True))
        columns = zip(found.view(num, -1).split(sizes, 1), contents, strict=True)
        return [lambda piece=piece, of=of: Flat.whole(piece.reshape(-1), of.regions) for piece, of in columns]  # type: ignore[misc]

    def begin(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Start, and return what gives the result its content once all works have ended."""
        if value is not None and isinstance(value._content, Flat):
            value._content.settled()
        return getattr(self, f"_{self.name}")(value, brought)  # type: ignore[no-any-return]  # of all methods

    def _all_reduce(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Sum in place; of gradients of several parts, what all of them hold."""
        content = value._content
        if isinstance(content, Logits):
            found = [torch.empty_like(content.statistics) for _ in self.ranks]
            self.works.append(dist.all_gather(found, content.statistics, group=self.group, async_op=True))
            return lambda: replace(content, statistics=reduce(merge_statistics, found))
        if isinstance(content, Flat) and len({part_of(each) for each in brought}) > 1:
            return self._sum_of_common(value)
        inner: Any = content.inner if isinstance(content, PartialGrad) else content
        total = inner.packed()
        if total.numel():  # there is nothing in the gradient of what is frozen
            self.works.append(dist.all_reduce(total, group=self.group, async_op=True))
        if isinstance(content, Flat):
            content.values = total
            return lambda: content
        return lambda: _summed(content, inner.unpacked(total), brought)

    def _reduce(self, value: Any, _: Sequence[Any]) -> Finish:
        """Sum at the root, in place; what others have is used up."""
        content = value._content
        if not isinstance(content, Flat):
            raise UsageError("real processes reduce gradients of weights to a root, and nothing else; use all_reduce")
        if content.values.numel():
            self.works.append(dist.reduce(content.values, self.root, group=self.group, async_op=True))
        return lambda: content

    def _sum_of_common(self, value: Any) -> Finish:
        """Sum what all parts of a layer hold."""
        content = value._content
        net: Any = self.arithmetic.net
        here = net.held_by_all(value.layer, part_of(value))
        common = content.values[here]
        if common.numel():
            self.works.append(dist.all_reduce(common, group=self.group, async_op=True))

        def end() -> Flat:
            content.values[here] = common
            return content  # type: ignore[no-any-return]  # as above

        return end

    def _reduce_scatter(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Sum, and get one of as many shards as there are members."""
        content, num = value._content, len(self.ranks)
        if not isinstance(content, Flat):
            return self._scatter_sequence(content, brought)
        cuts = [pieces_of([place], num, content.regions) for place in range(num)]
        pieces = [content.at(cut).contiguous() for cut in cuts]
        mine = Flat(torch.empty_like(pieces[self.index]), cuts[self.index], content.regions)
        if not content.size:
            return lambda: mine
        if content.size % num:
            self.works.append(dist.reduce_scatter(mine.values, pieces, group=self.group, async_op=True))
        else:
            self.works.append(_reduce_scatter(mine.values, content.values, group=self.group, async_op=True))
        return lambda: mine

    def _scatter_sequence(self, content: Any, brought: Sequence[Any]) -> Finish:
        """Sum, and get one piece along the sequence; of keys and values, that of the result's own shards."""
        if isinstance(content, KeysValues):
            results = perform("reduce_scatter", list(brought), self.ranks, None, whole=False)
            cut: list[Any] = [content.at(self.arithmetic.net.positions(result.sequence)) for result in results]
        else:
            inner = content.inner if isinstance(content, PartialGrad) else content
            cut = [inner.shard(place, len(self.ranks)) for place in range(len(self.ranks))]
        pieces, own = [piece.packed() for piece in cut], cut[self.index]
        mine = torch.empty_like(pieces[self.index])
        self.works.append(dist.reduce_scatter(mine, pieces, group=self.group, async_op=True))
        return lambda: _summed(content, own.unpacked(mine), brought)

    def _all_gather(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Put shards together; those of unequal sizes are padded, which gloo needs."""
        content = value._content
        if not isinstance(content, Flat):
            return self._gather_sequence(content, brought)
        pieces = [pieces_of(each.shards, each.num_shards, content.regions) for each in brought]
        sizes = [sum(last - first for first, last in found) for found in pieces]
        values = content.values.contiguous()
        in_order = [pieces_of([place], len(pieces), content.regions) for place in range(len(pieces))]
        is_one = values.dim() == len(content.regions) == 1
        if is_one and pieces == in_order and len(set(sizes)) == 1 and content.size:
            whole = values.new_empty(content.size)
            self.works.append(_all_gather(whole, values, group=self.group, async_op=True))
            return lambda: Flat.whole(whole, content.regions)
        most, shape = max(sizes), values.shape[:-1]
        if not most:
            return lambda: content
        padded = torch.nn.functional.pad(values, (0, most - values.shape[-1]))
        found = [values.new_empty(*shape, most) for _ in sizes]
        self.works.append(dist.all_gather(found, padded, group=self.group, async_op=True))
        return lambda: put_together(
            Flat(each[..., :size], piece, content.regions)
            for each, size, piece in zip(found, sizes, pieces, strict=True)
        )

    def _gather_sequence(self, content: Any, brought: Sequence[Any]) -> Finish:
        """Put pieces along the sequence together."""
        rooms = [room_for(each, self.arithmetic) for each in brought]
        mine = content.packed()
        self.works.append(dist.all_gather([room for room, _ in rooms], mine, group=self.group, async_op=True))

        def end() -> Any:
            found = [content_of(room) for room, content_of in rooms]
            return reduce(type(found[0]).combine, found)

        return end

    def _broadcast(self, value: Any, brought: Sequence[Any]) -> Finish:
        """Get what the root has."""
        sent = brought[self.ranks.index(self.root)]
        room, content_of = room_for(sent, self.arithmetic)
        if value is not None:
            room = value._content.packed()
        self.works.append(dist.broadcast(room, self.root, group=self.group, async_op=True))
        return lambda: content_of(room)

    def exchange(self, value: Sequence[Any], brought: Sequence[Sequence[Any]]) -> list[Finish]:
        """Give a tensor to each member and get one from each."""
        mine = [room_for(column[self.index], self.arithmetic) for column in brought]
        given = [each._content.packed().reshape(-1) for each in value]
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


def is_known(name: str) -> bool:
    """Return whether a collective has a method of its own."""
    return hasattr(Started, f"_{name}")


class CopiesUnderWay:
    """Copies of tokens that are sent to the members of a group which they are for; those of the others come.

    How many there are is told first. Exchanges of a group are received in the order in which they were sent.

    Args:
        started: the collective.
        value: what this rank brings.
        brought: what all bring.
        way: how messages go to each other member, and come from it.
        before: the exchange before this one.

    Attributes:
        sent: messages, and what must be kept until they have left.
    """

    def __init__(
        self,
        started: Started,
        value: Any,
        brought: Sequence[Any],
        way: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
        before: CopiesUnderWay | None,
    ) -> None:
        net: Any = started.arithmetic.net
        self._started, self._way, self._before = started, way, before
        self._nothing = torch.empty(0, net.problem.model.hidden_size, dtype=net.dtypes.compute, device=net.device)
        results = perform("all_to_all", list(brought), started.ranks, None, whole=False)
        counts, self._rows = [], list[torch.Tensor]()
        for result in results:
            given = [value._content.rows.get(origin, {}).get(expert) for origin, expert in _places(net, value, result)]
            counts += [ABSENT if each is None else len(each) for each in given]
            self._rows.append(torch.cat([self._nothing, *(each for each in given if each is not None)]))
        mine = results[started.index]
        self._coming = [list(_places(net, each, mine)) for each in brought]
        self._sizes = list(map(len, self._coming))
        sizes = self._sizes, [len(list(_places(net, value, result))) for result in results]
        self._counted = torch.empty(sum(self._sizes), dtype=torch.int64)
        told = torch.tensor(counts, dtype=torch.int64)
        self._telling = dist.all_to_all_single(self._counted, told, *sizes, group=started.group, async_op=True)
        started.works.append(self._telling)
        self._found, self._receiving = list[tuple[Any, torch.Tensor]](), list[Any]()
        self.sent = [
            (dist.isend(values, rank, **way[rank][0]), values)
            for rank, values in zip(started.ranks, self._rows, strict=True)
            if rank in way and values.numel()
        ]

    def receive(self) -> None:
        """Start to receive, once it is known how many come."""
        if self._found:
            return
        if self._before is not None:
            self._before.receive()
        self._before = None
        self._telling.wait()
        for place, numbers in enumerate(self._counted.split(self._sizes)):
            coming, rank = zip(self._coming[place], numbers.tolist(), strict=True), self._started.ranks[place]
            here = [(*where, count) for where, count in coming if count != ABSENT]
            values = self._rows[place]
            if rank in self._way:
                values = self._nothing.new_empty(sum(count for *_, count in here), self._nothing.shape[1])
                if values.numel():
                    self._receiving.append(dist.irecv(values, rank, **self._way[rank][1]))
            self._found.append((here, values))
        self._rows.clear()

    def end(self) -> Copies:
        """Return what has come."""
        self.receive()
        for work in self._receiving:
            work.wait()
        made: Copies = reduce(Copies.add, [_copies_of(*each) for each in self._found])
        self._found = [((), self._nothing)]  # it is received, and nothing is kept
        return made


def _places(net: Any, sender: Any, result: Any) -> Any:
    """Return for which origins and experts one member may send copies to another, as both know."""
    both = sorted(sender.samples & result.samples)
    shards = sorted(sender.sequence.shards & result.sequence.shards)
    pieces = sorted(sender.sequence.pieces & result.sequence.pieces)
    of_both = sorted(set.intersection(*(net.experts_of(each.parts, each.num_parts) for each in (sender, result))))
    return product(product(both, shards, pieces), of_both)


def _copies_of(here: Sequence[tuple[Any, int, int]], values: torch.Tensor) -> Copies:
    """Return copies from the counts by origin and expert, and their rows."""
    found: dict[Any, dict[int, Any]] = {}
    pieces = values.split([count for *_, count in here]) if here else ()
    for (origin, expert, _), piece in zip(here, pieces, strict=True):
        found.setdefault(origin, {})[expert] = piece
    return Copies(found)


def _summed(content: Any, total: Any, brought: Sequence[Any]) -> Any:
    """Return a content with the numbers of a sum over ranks: a gradient goes through the rank's own border then."""
    if not isinstance(content, PartialGrad):
        return total
    parts = frozenset().union(*(each.parts for each in brought))
    return replace(content, inner=total, parts=parts).finished()


def room_for(symbol: Any, arithmetic: Arithmetic) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """Return room for what a tensor of another rank carries, and what makes its content of that."""
    net: Any = arithmetic.net
    if isinstance(symbol, CompressedGrad):
        shapes, share = arithmetic.shapes[symbol.layer], len(symbol.shards) / symbol.num_shards
        num_bytes = symbol.how.message_bytes(shapes, share, net.dtypes.gradients.itemsize)
        return torch.empty(num_bytes, dtype=torch.uint8, device=net.device), lambda values: Messages([values])
    if isinstance(symbol, Sharded):
        regions = regions_of(net, symbol, trained=not isinstance(symbol, Weight))
        pieces = pieces_of(symbol.shards, symbol.num_shards, regions)
        held = sum(last - first for first, last in pieces)
        shape: tuple[int, ...] = (num_states(net), held) if isinstance(symbol, OptState) else (held,)
        is_grad, dtypes = isinstance(symbol, WeightGrad), net.dtypes
        dtype = dtypes.gradients if is_grad else dtypes.master if isinstance(symbol, OptState) else dtypes.compute
        return torch.empty(shape, dtype=dtype, device=net.device), lambda values: Flat(values, pieces, regions)
    positions = net.positions(getattr(symbol, "sequence", WHOLE_SEQUENCE))
    if isinstance(symbol, placed.KeysValues | placed.KeysValuesGrad):
        heads, of_key, of_value = net.heads_of_memory(symbol.num_parts)
        like = KeysValues(torch.empty(of_key), torch.empty(of_value), positions)
        shape = len(symbol.samples), heads, len(positions), of_key + of_value
        room = torch.empty(shape, dtype=net.dtypes.compute, device=net.device)
        return room, like.unpacked
    layer = symbol.layer + isinstance(symbol, ActivationGrad)
    shape = net.shape(layer, len(symbol.samples), positions)
    return torch.empty(shape, dtype=net.dtypes.compute, device=net.device), lambda values: Rows(values, positions)


def _is_plain(content: Any, brought: Sequence[Any]) -> bool:
    """Return whether a tensor is flat, and of the same part of a layer for all."""
    return isinstance(content, Flat) and content.values.dim() == 1 and len(set(map(part_of, brought))) == 1


def _same(content: Any) -> Any:
    """Return a content."""
    return content


def _nothing() -> None:
    """Do nothing."""


def number_of(tag: Any) -> int:
    """Return the number that torch.distributed knows a tag by: 0 for no tag."""
    return 0 if tag is None else crc32(repr(tag).encode()) & 0x3FFFFFFF or 1


def _take_over(value: Any, result: Any) -> None:
    """Give the result of a collective of one what it has brought."""
    for made, item in zip(tensors_of(result), tensors_of(value), strict=True):
        if made is not None and made is not item:
            made._content = item._content
