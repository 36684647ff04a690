"""A communication that a rank has submitted: when it starts and ends, what awaiting it does, what it holds till then.

A rank has one compute stream, whose clock is `model.time`, one communication stream a group, and one a peer and
direction for messages. An operation starts when its stream is free, its rank has launched it, and the other
participants are ready. Awaiting it moves the compute clock to its end, if that is later.

Three things stand for one communication: `Call` is what the transport sees of it, `Operation` adds stream, price and
row of the log, and `Launched` is what a strategy holds of an operation that it has launched.

A launched operation holds memory until its first await (`LaunchedMemory`): what it was given, unless a store counts it
already, and its result. Reductions work in place, as on a device: their result is part of what they were given. The
size of a result may not be known at the launch (a message that was not sent yet). Once it is known, it is counted from
the launch on, so that the log never depends on which rank came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from minitrain.engine.placed_passes import keep_scattered
from minitrain.engine.protocol import Call, Transport
from minitrain.errors import StrategyError
from minitrain.machine.price import FREE, PENDING, Price
from minitrain.operations import (
    FETCH,
    LAYER,
    MEMORY,
    NO_SAMPLES,
    NOTE,
    ON_HOST,
    PRICE,
    RECV,
    SAMPLES,
    SEND,
    STRIDE,
    TIME,
    WAITED_FOR,
    Note,
    Stream,
)
from minitrain.operations.collectives import COLLECTIVES, TRANSFERS, results_that_are, tensors_of
from minitrain.tensors import Tensor, WeightGrad, clone
from minitrain.tensors.placed import ActivationShard, sums_what_all_hold

if TYPE_CHECKING:
    from minitrain.engine.state import RankState

T = TypeVar("T")


class Interface:
    """What carries a rank's messages into one tier of the network, one after the other, whoever they are for.

    Attributes:
        last: the launched send that was submitted last, until somebody has awaited it.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Operation | None = None


class PeerStream:
    """The stream of a rank's messages to or from one peer, or of its moves to or from its host.

    Attributes:
        stream: what events say of it.
        interface: of messages to a peer, what carries them.
        busy_until: when it has finished all it was given, s.
        pending: receives that were launched and have no time yet, in program order.
        is_waited_for: whether a receive of it was not launched, so that nothing could run beside it.
    """

    __slots__ = ("busy_until", "interface", "is_waited_for", "pending", "stream")

    def __init__(self, kind: str, peer: int | None) -> None:
        self.stream = Stream(kind, None, peer)
        self.interface: Interface | None = None
        self.busy_until = 0.0
        self.pending: deque[Operation] = deque()
        self.is_waited_for = False

    def receive(self, transport: Transport) -> None:
        """Run the receives that are next and whose message is here, and wake their tasks."""
        pending = self.pending
        while pending and (pending[0].carried is not None or pending[0].is_abandoned):
            operation = pending.popleft()
            if operation.carried is not None:  # the tasks of the others were cancelled
                operation._receive(operation.carried)
                if operation.waiters is not None:
                    transport.wake([operation.waiters])


class Operation(Call):
    """One communication that a rank has submitted; `await` it for its result.

    Attributes:
        model: the rank's model.
        owner: the group or peer whose stream it runs on.
        row: its place in the rows of the rank's log.
        end: when it is finished, s, once it is settled.
        launched_memory: what it holds in memory, if it was launched, else None.
        chain: what it waits for, if it was given what others make or comes behind such a one, else None.
        carried: the sender's clock that a received message brought, s; None until the message is here.
    """

    __slots__ = ("carried", "chain", "end", "launched_memory", "model", "owner", "row")

    def __init__(self, model: RankState, op: str, value: Any, owner: Any, layer: Any, detail: Any, tag: Any) -> None:
        self.model = model
        self.op = op
        self.rank = model._rank
        self.value = value
        self.clock = time = model._time
        self.detail = detail
        self.owner = owner
        self.settled = False
        self.error = None
        self.waiters = None
        self.launched_memory: LaunchedMemory | None = None
        self.chain: Any = None
        self.carried: float | None = None
        rows = model._rows
        self.row = len(rows)
        note = None if tag is None and not model.launching else Note(tag, model.launching)
        rows.extend((op, layer, time, PENDING, model._account.units, NO_SAMPLES, owner.stream, None, time, note))

    @property
    def is_abandoned(self) -> bool:
        """Whether the outcome is wanted no longer; a launched operation can be awaited at any time."""
        return self.launched_memory is None and super().is_abandoned

    @property
    def given(self) -> Any:
        """What the rank gave, whose memory counts; a kind of model may let the transport have something else."""
        return self.value

    @property
    def gets_new(self) -> bool:
        """Whether the result has memory of its own: the root of a broadcast, and ranks beside another one, get none."""
        record: Any = COLLECTIVES.get(self.op) or TRANSFERS[self.op]
        if self.op not in COLLECTIVES or not record.has_root:
            return record.result_is_new  # type: ignore[no-any-return]  # of both kinds of records
        return record.result_is_new and bool(record.to_root) is (self.detail == self.rank)

    def sent_bytes(self) -> int:
        """Return the bytes that the value puts on the wire."""
        return self.model.wire_bytes(self.value)

    def _price(self, result: Any, largest_bytes: int) -> Price:
        """Return the price of this collective: that of the network, which the predictors of all members share."""
        model, communicator = self.model, self.owner.communicator
        record = COLLECTIVES[self.op]
        if record.priced_by == "largest":
            size_bytes = largest_bytes
        elif sums_what_all_hold(result, self.value):
            size_bytes = model._runtime_predictor.workload.common_bytes(result)
        else:
            value = result if record.priced_by == "result" else self.value
            size_bytes = model.wire_bytes(value) if communicator.is_world else model.held_bytes(value)
        if not size_bytes and _has_gradients(self.value):
            return FREE  # nobody sends the gradient of what is frozen
        if record.algorithms and self.detail is not None:
            return model._runtime_predictor.collective(self.op, size_bytes, communicator.ranks, self.detail)
        return model._runtime_predictor.collective(self.op, size_bytes, communicator.ranks)

    @staticmethod
    def settle_all(calls: Sequence[Any], results: Sequence[Any], start: float, last: int, largest_bytes: int) -> None:
        """Run a collective as soon as all are there and the group's stream is free, and complete its events.

        Price and times are computed once for all calls, as they are the same for all of them; so are the samples of
        the results but for all_to_all.
        """
        communicator = calls[0].owner.communicator
        record = COLLECTIVES[calls[0].op]
        found = next(iter(results_that_are(results)), None) if record.to_root else results[0]
        price = calls[0]._price(found, largest_bytes)
        common_samples = None if record.gives == "exchange" else samples_of(found)
        waited = start >= communicator.busy_until
        begin = start if waited else communicator.busy_until
        communicator.busy_until = end = begin + price.seconds
        if record.scatters and isinstance(results[0], ActivationShard):
            for operation in calls:
                keep_scattered(operation.model, operation.value)
        if calls[0].model.follows_tensors:
            calls[0].model.after_collective(calls, results)
        # Members of an all_to_all may get tensors of different sizes: one part of the experts, more tokens than others.
        are_alike = common_samples is not None and isinstance(found, Tensor)
        units = calls[0].model._account.size(found) if are_alike else None
        for operation, result in zip(calls, results, strict=True):
            if units is not None and result is not None:
                result._units = units
            rows, row = operation.model._rows, operation.row
            rows[row + TIME] = begin
            rows[row + PRICE] = price
            rows[row + SAMPLES] = samples_of(result) if common_samples is None else common_samples
            if operation.clock < start and waited:
                rows[row + WAITED_FOR] = last
            operation.end = end
            operation.outcome = result
            operation.settled = True
            if operation.launched_memory is not None:
                operation.launched_memory.know_result(operation)

    def settle_alone(self, result: Any) -> None:
        """Run a collective for which this rank need not wait for another one."""
        largest_bytes = self.sent_bytes() if COLLECTIVES[self.op].priced_by == "largest" else 0
        self.settle_all([self], [result], self.clock, self.rank, largest_bytes)
        if self.waiters is not None:  # it was held while its task waited
            self.model._transport.wake([self.waiters])

    def depart(self, price: Price, before: Operation | None = None) -> None:
        """Run a send as soon as its interface is free: it never waits for its receiver's clock.

        Args:
            price: its price.
            before: the launched send to another peer that its interface carries first, if any.
        """
        owner: Any = self.owner
        free = owner.busy_until if before is None else max(owner.busy_until, before.end)
        self.clock = max(self.clock, free)  # the clock that the message carries
        self._run(self.clock, None, price, samples_of(self.value))
        self.outcome = None

    def deliver(self, value: Any, sent: float) -> None:
        """Take a message; it is received once all receives before it on the stream are."""
        self.outcome = clone(value)
        self.outcome._units = self.model._account.units_of(value)
        if self.model.follows_tensors:
            self.model.after_message(self, value, self.outcome)  # type: ignore[attr-defined]  # of one with hooks
        self.carried = sent
        self.owner.receive(self.model._transport)

    def _receive(self, sent: float) -> None:
        """Run a receive whose message is here, once its stream is free."""
        model, outcome = self.model, self.outcome
        source: Any = self.owner.stream.peer
        late = sent > self.clock
        model._rows[self.row + LAYER] = outcome.layer
        price = model._runtime_predictor.p2p(RECV, model.message_bytes(outcome), source, model._rank)
        self._run(sent if late else self.clock, source if late else None, price, samples_of(outcome))
        self.settled = True
        if self.launched_memory is not None:
            self.launched_memory.know_result(self)

    def _run(self, start: float, waited_for: int | None, price: Price, samples: frozenset[int]) -> None:
        """Run on the peer's stream from `start` on, or from when the stream is free, and complete the event."""
        owner: Any = self.owner
        if owner.busy_until > start:
            start, waited_for = owner.busy_until, None
        owner.busy_until = self.end = start + price.seconds
        rows, row = self.model._rows, self.row
        rows[row + TIME] = start
        rows[row + PRICE] = price
        rows[row + SAMPLES] = samples
        rows[row + WAITED_FOR] = waited_for

    def describe(self) -> str:
        """Return operation, layer and partners in words, and what it waits for on its own rank."""
        cause = None if self.chain is None else self.chain.cause()
        return self._described() + ("" if cause is None else f", behind the launched {cause.describe()}")

    def _described(self) -> str:
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
            yield self  # to `Communication.launch`, which runs the coroutine up to here
        if not self.settled:
            try:
                yield model._transport.suspend(self)
            except BaseException:
                self._give_up()
                raise
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.end > model._time:
            model._time = self.end
        if self.chain is not None:
            self.chain.finish()
        if self.launched_memory is not None or len(model._rows) != self.row + STRIDE:
            self._arrive()
        return self._hand_over() if model.follows_tensors else self.outcome

    def _give_up(self) -> None:
        """Clean up after a receive whose task was cancelled: later ones may go on, its own message is unreceived."""
        if self.op == RECV and self.launched_memory is None and self.error is None:
            if self.settled:
                self.model._transport.mark_unreceived(self)
            else:
                self.owner.receive(self.model._transport)

    def _hand_over(self) -> Any:
        """Return the result and tell the rank's observer; from now on the operation keeps no tensor alive.

        A launched operation may be awaited again: it knows its result as long as the strategy keeps that.
        """
        memory, outcome, observer = self.launched_memory, self.outcome, self.model._observer
        if self.model._executor is not None:
            self.model._executor.awaited(self, outcome)
        if memory is not None:
            if observer is None:
                return outcome
            if memory.handed_over is not None:  # another task was quicker
                return memory.handed_over.again(self)
            memory.hand_over(outcome)
        self.outcome = None
        if self.op != SEND:  # the message may not have been received yet
            self.value = None
        if observer is not None:
            observer.awaited(self, outcome)
        return outcome

    def result_again(self) -> Any:
        """Return the result of a launched operation that was awaited."""
        memory: Any = self.launched_memory
        return self.outcome if memory.handed_over is None else memory.handed_over.again(self)

    def pass_on(self) -> None:
        """End a launched operation whose result was given to another one, which is awaited now."""
        if self.launched_memory is not None and not self.launched_memory.awaited:
            self._arrive()
            if self.model.follows_tensors:
                self._hand_over()

    def _arrive(self) -> None:
        """Note in the log that the operation ran beside others, when it is awaited first."""
        memory, rows = self.launched_memory, self.model._rows
        if memory is not None:
            if memory.awaited:
                return
            memory.end(self)
        note = rows[self.row + NOTE] = rows[self.row + NOTE] or Note()
        note.overlaps, note.awaited = True, len(rows) // STRIDE


class Launched(Generic[T]):
    """An operation that runs beside others, as the strategy holds it: `await` it for its result, any number of times.

    The operation has the result as soon as that is known, and nothing public leads to it: a result may be used from the
    end of its operation on.
    """

    __slots__ = ("_operation",)

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __await__(self) -> Generator[Any, None, T]:
        return self._operation.__await__()


class Unused(Launched[None]):
    """A launched operation that must end before another one begins, which takes nothing of its result."""

    __slots__ = ()


def samples_of(value: Any) -> frozenset[int]:
    """Return the samples of a tensor, or of all tensors of a bucket."""
    if isinstance(value, list):
        return reduce(_with, map(samples_of, value), NO_SAMPLES)
    samples: frozenset[int] = getattr(value, "samples", NO_SAMPLES)
    return samples


def _with(known: frozenset[int], more: frozenset[int]) -> frozenset[int]:
    """Return the union of two sets, mostly the same one; `|` also unites the sets of folded ranks."""
    return more if known is NO_SAMPLES or known is more else known | more


def _has_gradients(value: Any) -> bool:
    """Return whether a tensor or a bucket is gradients of weights."""
    return value != [] and all(isinstance(each, WeightGrad) for each in tensors_of(value))


class LaunchedMemory:
    """What one launched operation holds in memory.

    Args:
        operation: the operation, just submitted.

    Attributes:
        awaited: whether the operation was awaited already.
        followers: operations that were given the result before anybody awaited it.
        window: the account's window at the launch while the size of the result is not known, else None.
        stored_tensors: what it was given and a store holds; the operation counts them only while no store does.
        units: what it counts itself.
        handed_over: the result, once a strategy got it whose tensors are followed.
        own: what of it was never in a store, with its units, for the journal.
    """

    __slots__ = ("_account", "awaited", "followers", "handed_over", "own", "stored_tensors", "units", "window")

    def __init__(self, operation: Operation) -> None:
        model: Any = operation.model
        self._account: Any = (model.host if operation.op in ON_HOST else model)._account  # of where that lies
        account = self._account
        self.awaited = False
        self.followers: tuple[Any, ...] = ()
        self.handed_over: HandedOver | None = None
        self.window: int | None = None
        self.stored_tensors: tuple[Any, ...] = ()
        self.units = 0
        self.own: tuple[tuple[Any, int], ...] = ()
        own = operation.given
        given = () if operation.op in (FETCH, RECV) else tensors_of(own)  # a fetch is given what lies on the host
        for value in given if operation.chain is None else operation.chain.own:
            if getattr(value, "_home", None) is account:
                self.stored_tensors += (value,)
                self._account.launched_tensors[id(value)] = 0
            elif value is not None:
                self.units += account.units_of(value)
                self._own(operation, value)
        if self.units:
            account.grow(self.units)
        if not operation.gets_new:
            return
        if not operation.settled or operation.outcome is not own:  # a lone rank gets what it gave
            self.window = account.open_window()
            if operation.settled and operation.error is None:
                self.know_result(operation)

    def know_result(self, operation: Operation) -> None:
        """Count the result from the launch on, now that it is known, and let operations go on that were given it."""
        if self.followers:
            for follower in self.followers:
                follower.chain.take(follower, operation, operation.outcome)
            operation.model._go_on_soon()  # type: ignore[attr-defined]  # of `Communication`
        if self.window is None:
            return
        account, outcome = operation.model._account, operation.outcome
        is_new = outcome is not operation.given  # as a lone rank's, which gets what it gave
        new = [value for value in tensors_of(outcome) if value is not None] if is_new else []
        units = sum(map(account.units_of, new))
        rows = operation.model._rows
        for row in range(operation.row + STRIDE + MEMORY, len(rows), STRIDE):
            rows[row] += units
        account.backdate(self.window, units)  # which may report out of memory, and then reads the rows
        self.units += units
        self.window = None
        for value in new if account.journal is not None else ():
            self._own(operation, value)

    def _own(self, operation: Operation, value: Any) -> None:
        """Enter a tensor that no store held in the journal, at the operation's launch."""
        journal = operation.model._account.journal
        if journal is not None and value is not None:
            self.own += ((value, value._units),)
            journal.enter("in_flight", value._units, value, operation.row // STRIDE + 1)

    def end(self, operation: Operation) -> None:
        """Count nothing any more: whoever awaited the operation has the result now."""
        self.awaited = True
        account, left = self._account, self.own
        for value in self.stored_tensors:
            units = account.launched_tensors.pop(id(value), 0)
            self.units += units
            left += ((value, units),)
        account.units -= self.units
        if account.journal is not None:
            for value, units in left:
                account.journal.enter("in_flight", -units, value)
        self.own = ()
        del operation.model._in_flight[operation]
        owner: Any = operation.owner
        if operation.op == SEND and owner.interface.last is operation:
            owner.interface.last = None
        for follower in self.followers:
            if follower.launched_memory is not None and operation in follower.chain.inputs:
                follower.launched_memory.adopt(follower, operation.outcome)
        self.followers = ()

    def adopt(self, operation: Operation, result: Any) -> None:
        """Hold the result of another operation, which this one was given and somebody has awaited now."""
        account = operation.model._account
        for value in tensors_of(result):
            if value is not None and id(value) not in account.launched_tensors:
                units = 0 if getattr(value, "_home", None) is account else account.units_of(value)
                self.stored_tensors += (value,)
                account.launched_tensors[id(value)] = units
                account.grow(units)
                if account.journal is not None and units:
                    account.journal.enter("in_flight", units, value)

    def hand_over(self, result: Any) -> None:
        """Keep no tensor alive any more; the result is remembered for who awaits the operation again."""
        self.handed_over = HandedOver(result)
        self.stored_tensors = ()


class HandedOver:
    """The result of a launched operation that a strategy got, remembered as long as the strategy keeps it.

    Args:
        result: a tensor, a bucket, or None.
    """

    __slots__ = ("_is_bucket", "_results")

    def __init__(self, result: Any) -> None:
        self._is_bucket = isinstance(result, list)
        self._results = [ref(item) for item in tensors_of(result) if item is not None]

    def again(self, operation: Operation) -> Any:
        """Return the result again.

        Raises:
            StrategyError: it was freed.
        """
        results = [found() for found in self._results]
        if any(result is None for result in results):
            message = (
                f"{operation.op} on rank {operation.rank} was awaited before and its result was freed since; "
                "keep the result in a store if it is needed again"
            )
            raise StrategyError(message, rank=operation.rank, op=operation.op)
        return results if self._is_bucket else next(iter(results), None)
