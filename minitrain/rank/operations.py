"""An operation on one of a rank's communication streams: when it starts and ends, and what awaiting it does.

A rank has one compute stream, whose clock is `model.time`, one communication stream a group, and one a peer and
direction for messages. An operation starts when its stream is free, its rank has launched it, and the other
participants are ready. Awaiting it moves the compute clock to its end, if that is later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minitrain.events import LAYER, NO_SAMPLES, NOTE, PRICE, RECV, SAMPLES, SEND, STRIDE, TIME, WAITED_FOR, Stream
from minitrain.hardware.price import Price
from minitrain.rank.launched_memory import InFlight, mark_overlap
from minitrain.tensors import Tensor, clone
from minitrain.transport.calls import Call
from minitrain.transport.waiting import wake_soon

T = TypeVar("T")

if TYPE_CHECKING:
    from minitrain.rank.communicating import Communicating
    from minitrain.transport.groups import Group


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

    def receive(self) -> None:
        """Time the receives that are next and whose message is here, and wake their tasks."""
        pending, woken = self.pending, []
        while pending and (pending[0].carried is not None or not pending[0].is_wanted):
            work = pending.popleft()
            if work.carried is not None:  # the others were given up
                work._receive(work.carried)
                if work.waiters is not None:
                    woken.append(work.waiters)
        wake_soon(woken)


class Work(Call):
    """One operation that a rank has submitted; `await` it for its result.

    Attributes:
        model: the rank's model.
        owner: the group or peer whose stream it runs on.
        row: its place in the rows of the rank's log.
        end: when it is finished, s, once it is settled.
        flight: what it holds in memory, if it was launched.
        carried: the clock that a received message brought, s.
    """

    __slots__ = ("carried", "end", "flight", "model", "owner", "row")

    def __init__(
        self, model: Communicating, op: str, value: Any, owner: Group | PeerStream, row: int, detail: Any
    ) -> None:
        self.model = model
        self.op = op
        self.rank = model.rank
        self.value = value
        self.clock = model.time
        self.detail = detail
        self.owner = owner
        self.row = row
        self.settled = False
        self.error = None
        self.waiters = None
        self.flight: InFlight | None = None
        self.carried: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody may still ask for the outcome: what was launched can be awaited at any time."""
        return self.flight is not None or super().is_wanted

    def _terms(self, works: Sequence[Call], results: Sequence[Any]) -> tuple[Price, frozenset[int] | None]:
        """Return the price of a collective and the samples of its results, None where they differ."""
        model, communicator = self.model, self.owner.communicator  # type: ignore[union-attr]  # the owner is a group
        price = model.runtime_predictor.collective
        if self.op == "all_to_all":
            size_bytes = max(model.wire_bytes(work.value) for work in works)
            return price(self.op, size_bytes, communicator.ranks), None
        value = results[0] if self.op in ("all_gather", "broadcast") else self.value
        size_bytes = model.wire_bytes(value) if communicator.whole else model.held_bytes(value)
        return price(self.op, size_bytes, communicator.ranks), samples_of(results[0])

    @staticmethod
    def settle_all(
        calls: Sequence[Any], results: Sequence[Any], clocks: Sequence[float], start: float, last: int
    ) -> None:
        """Run a collective as soon as all are there and the group's stream is free, and complete its events."""
        communicator = calls[0].owner.communicator
        price, common_samples = calls[0]._terms(calls, results)
        waited = start >= communicator.free
        begin = start if waited else communicator.free
        communicator.free = end = begin + price.seconds
        if calls[0].model.attentive:
            calls[0].model.after_collective(calls, results)
        units = calls[0].model.account.size(results[0]) if isinstance(results[0], Tensor) else None
        for work, result, clock in zip(calls, results, clocks, strict=True):
            if units is not None:
                result._units = units
            rows, row = work.model._rows, work.row
            rows[row + TIME] = begin
            rows[row + PRICE] = price
            rows[row + SAMPLES] = samples_of(result) if common_samples is None else common_samples
            if clock < start and waited:
                rows[row + WAITED_FOR] = last
            work.end = end
            work.outcome = result
            work.settled = True
            if work.flight is not None:
                work.flight.know_result(work)

    def depart(self, price: Price) -> None:
        """Take a send's stream: a send never waits for its receiver's clock."""
        owner: Any = self.owner
        self.clock = max(self.clock, owner.free)  # what the message carries, to the last float
        self._run(self.clock, None, price, samples_of(self.value))
        self.outcome = None

    def deliver(self, value: Any, sent: float) -> None:
        """Take a message; it is received once those before it on the stream are."""
        self.outcome = clone(value)
        self.outcome._units = self.model.account.units_of(value)
        if self.model.attentive:
            self.model.after_message(value, self.outcome)
        self.carried = sent
        self.owner.receive()  # type: ignore[union-attr]  # a receive's owner is its peer's stream

    def _receive(self, sent: float) -> None:
        """Time a receive whose message is here and whose stream is free."""
        model, outcome = self.model, self.outcome
        source: Any = self.owner.stream.peer
        late = sent > self.clock
        model._rows[self.row + LAYER] = outcome.layer
        price = model.runtime_predictor.p2p(RECV, model.wire_bytes(outcome), source, model.rank)
        self._run(sent if late else self.clock, source if late else None, price, samples_of(outcome))
        self.settled = True
        if self.flight is not None:
            self.flight.know_result(self)

    def _run(self, start: float, waited_for: int | None, price: Price, samples: frozenset[int]) -> None:
        """Take a peer's stream from `start`, or from when it is free, and complete the event."""
        owner: Any = self.owner
        if owner.free > start:
            start, waited_for = owner.free, None
        owner.free = self.end = start + price.seconds
        rows, row = self.model._rows, self.row
        rows[row + TIME] = start
        rows[row + PRICE] = price
        rows[row + SAMPLES] = samples
        rows[row + WAITED_FOR] = waited_for

    def describe(self) -> str:
        """Return operation, layer and partners in words."""
        layer = self.model._rows[self.row + LAYER]
        stream = self.owner.stream
        where = "" if layer is None else f" of layer {layer}"
        if stream.peer is None:
            return f"{self.op}{where}" + ("" if stream.group is None else f" in group {stream.group}")
        note = self.model._rows[self.row + NOTE]
        where += "" if note is None or note.tag is None else f" with tag {note.tag!r}"
        if self.op == RECV:
            return f"receive from rank {stream.peer}{where}"
        return f"send to rank {stream.peer}{where}, which has not received the one before"

    def __await__(self) -> Generator[Any, None, Any]:
        model = self.model
        if model.launching:
            yield self  # `Communicating.launch` takes it from here
        if not self.settled:
            try:
                yield self.park(model.dist.watch.loop)
            except BaseException:
                self._give_up()
                raise
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.end > model.time:
            model.time = self.end
        if self.flight is not None or len(model._rows) != self.row + STRIDE:
            self._arrive()
        return self._hand_over() if model.attentive and self.flight is None else self.outcome

    def _give_up(self) -> None:
        """Let those behind a receive go on that its task has given up; a message that is here already is lost."""
        if self.op == RECV and self.flight is None and self.error is None:
            if self.settled:
                self.model.dist.lose(self)
            else:
                self.owner.receive()  # type: ignore[union-attr]  # as in `deliver`

    def _hand_over(self) -> Any:
        """Return the result of an operation that nobody else awaits, and keep no tensor alive."""
        outcome, self.outcome = self.outcome, None
        if self.op != SEND:  # a message may lie unreceived still
            self.value = None
        return outcome

    def _arrive(self) -> None:
        """Note the first await of an operation that ran beside others."""
        if self.flight is not None:
            if self.flight.awaited:
                return
            self.flight.end(self)
        mark_overlap(self).awaited = len(self.model._rows) // STRIDE


class Launched(Generic[T]):
    """An operation that runs beside others, as the strategy holds it: `await` it for its result, any number of times.

    Attributes:
        work: the operation.
    """

    __slots__ = ("work",)

    def __init__(self, work: Work) -> None:
        self.work = work

    def __await__(self) -> Generator[Any, None, T]:
        return self.work.__await__()


def samples_of(value: Any) -> frozenset[int]:
    """Return the samples of a tensor, or of all tensors of a bucket."""
    if isinstance(value, list):
        return NO_SAMPLES.union(*(samples_of(item) for item in value))
    samples: frozenset[int] = getattr(value, "samples", NO_SAMPLES)
    return samples
