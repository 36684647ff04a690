"""An operation on one of a rank's communication streams: when it starts and ends, and what awaiting it does.

A rank has one compute stream, whose clock is `model.time`, one communication stream a group, and one a peer and
direction for messages. An operation starts when its stream is free, its rank has launched it, and the other
participants are ready. Awaiting it moves the compute clock to its end, if that is later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from minitrain.calls import Call
from minitrain.events import LAYER, NOTE, PRICE, RECV, SAMPLES, STRIDE, TIME, WAITED_FOR, Note, Stream
from minitrain.predictor import Price
from minitrain.tensors import clone
from minitrain.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from minitrain.groups import Group
    from minitrain.model import Model

NO_SAMPLES: frozenset[int] = frozenset()


class PeerStream:
    """The stream of a rank's messages to or from one peer.

    Attributes:
        stream: what events say of it.
        free: when it has done all it was given, s.
        pending: receives that were launched and have no time yet, in program order.
    """

    __slots__ = ("free", "pending", "stream")

    def __init__(self, kind: str, peer: int) -> None:
        self.stream = Stream(kind, None, peer)
        self.free = 0.0
        self.pending: deque[Work] = deque()


class Work(Call):
    """One operation that a rank has submitted; `await` it for its result.

    Attributes:
        model: the rank's model.
        owner: the group or peer whose stream it runs on.
        row: its place in the rows of the rank's log.
        end: when it is finished, s, once it is settled.
        units: memory that it holds in flight, in units of the rank's account.
    """

    __slots__ = ("awaited", "carried", "end", "launched_at", "model", "owner", "row", "units", "window")

    def __init__(self, model: Model, op: str, value: Any, owner: Group | PeerStream, row: int, detail: Any) -> None:
        super().__init__(op, model.rank, value, model.time, detail)
        self.model = model
        self.owner = owner
        self.row = row
        self.end = 0.0
        self.units = 0
        self.window: Any = None
        self.awaited = False
        self.carried: tuple[float, int] | None = None
        self.launched_at: str | None = None

    def terms(self, calls: list[Call], results: list[Any]) -> tuple[Price, frozenset[int] | None]:
        """Return the price of a collective and the samples of its results, None where they differ."""
        predictor = self.model.runtime_predictor
        ranks = self.owner.communicator.ranks  # type: ignore[union-attr]  # a collective's owner is its group
        if self.op == "all_to_all":
            size_bytes = max(self.model.wire_bytes(call.value) for call in calls)
            return predictor.collective(self.op, size_bytes, ranks), None
        value = results[0] if self.op == "broadcast" else self.value
        return predictor.collective(self.op, self.model.wire_bytes(value), ranks), samples_of(results[0])

    def settle(self, result: Any, start: float, waited_for: int | None, terms: Any) -> None:
        """Start a collective as soon as all are there and the group's stream is free."""
        price, samples = terms
        self.result = result
        self._run(start, waited_for, price, samples_of(result) if samples is None else samples)

    def deliver(self, value: Any, sent: float, source: int) -> None:
        """Take a message; it is received once those before it on the stream are."""
        self.result = clone(value)
        self.carried = (sent, source)
        woken: list[Waiter] = []
        pending = self.owner.pending  # type: ignore[union-attr]  # a receive's owner is its peer's stream
        while pending and pending[0].carried is not None:
            work = pending.popleft()
            work._receive()
            woken.extend(work.waiters())
        wake_soon(woken)

    def depart(self, price: Price) -> None:
        """Take a send's stream: a send never waits for its receiver's clock."""
        self._run(self.clock, None, price, samples_of(self.value))
        self.clock = self.end - price.seconds
        self.settled = False  # it may still have to wait for room

    def _receive(self) -> None:
        """Time a receive whose message is here and whose stream is free."""
        sent, source = self.carried or (0.0, 0)
        late = sent > self.clock
        self.model.log.rows[self.row + LAYER] = self.result.layer
        price = self.model.runtime_predictor.p2p("recv", self.model.wire_bytes(self.result), source, self.rank)
        self._run(sent if late else self.clock, source if late else None, price, samples_of(self.result))

    def _run(self, start: float, waited_for: int | None, price: Price, samples: frozenset[int]) -> None:
        """Take the stream from `start`, or from when it is free, and complete the event."""
        owner = self.owner
        if owner.free > start:
            start, waited_for = owner.free, None
        owner.free = self.end = start + price.seconds
        rows, row = self.model.log.rows, self.row
        rows[row + TIME] = start
        rows[row + PRICE] = price
        rows[row + SAMPLES] = samples
        rows[row + WAITED_FOR] = waited_for
        self.settled = True
        if self.window is not None:
            self.model.close_window(self)

    def describe(self) -> str:
        """Return operation, layer and partners in words."""
        layer = self.model.log.rows[self.row + LAYER]
        stream = self.owner.stream
        where = "" if layer is None else f" of layer {layer}"
        if stream.peer is None:
            return f"{self.op}{where}" + ("" if stream.group is None else f" in group {stream.group}")
        tag = self.model.log.rows[self.row + NOTE]
        where += "" if tag is None or tag.tag is None else f" with tag {tag.tag!r}"
        if self.op == RECV:
            return f"receive from rank {stream.peer}{where}"
        return f"send to rank {stream.peer}{where}, which has not received the one before"

    def __await__(self) -> Generator[Any, None, Any]:
        model = self.model
        if model.launching:
            yield self  # `Model.launch` takes it from here
        if not self.settled:
            yield from self.wait()
        elif self.error is not None:
            raise self.error.with_traceback(None)
        if self.end > model.time:
            model.time = self.end
        if not self.awaited:
            self._arrive()
        return self.result

    def _arrive(self) -> None:
        """Note the first await, and give back the memory held in flight."""
        self.awaited = True
        rows = self.model.log.rows
        note = rows[self.row + NOTE]
        overlaps = note is not None and note.overlaps
        if overlaps or len(rows) != self.row + STRIDE:
            self.mark_overlap().awaited = len(rows) // STRIDE
        if overlaps:
            self.model.arrived(self)

    def mark_overlap(self) -> Note:
        """Return the event's note, which says that the operation may run beside others."""
        rows = self.model.log.rows
        note: Note = rows[self.row + NOTE] or Note()
        rows[self.row + NOTE] = note
        note.overlaps = True
        return note


def samples_of(value: Any) -> frozenset[int]:
    """Return the samples of a tensor, or of all tensors of a bucket."""
    if isinstance(value, list):
        return NO_SAMPLES.union(*(samples_of(item) for item in value))
    samples: frozenset[int] = getattr(value, "samples", NO_SAMPLES)
    return samples
