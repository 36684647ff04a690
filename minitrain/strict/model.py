"""`StrictModel`: a rank whose tensors are followed from the operation that makes them to the last one that uses them.

It extends each operation and leaves what it does alone, so that it can be combined with other models that do so too.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator, Hashable, Iterable, Sequence
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from minitrain.errors import StrategyError
from minitrain.model import Model
from minitrain.storage import UNITS_PER_ELEMENT, Account, Store
from minitrain.strict.ledger import Buffer, Ledger, Line, Written
from minitrain.strict.origin import FIELDS, Final, Message, Origin, Stranger, adopt, require_genuine, size, succeed
from minitrain.strict.rules import note_update, require_gatherable, require_reducible, require_step, require_update
from minitrain.strict.stores import FollowedStore, JournalledFollowedStore
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.work import Launched, Work

T = TypeVar("T")

_RULES = {
    "all_reduce": require_reducible,
    "reduce_scatter": require_reducible,
    "all_gather": require_gatherable,
}
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_RESULT_IS_NEW = frozenset({"all_gather", "all_to_all", "broadcast", "recv"})
_frame = sys._getframe


class StrictModel(Model):
    """One rank of a strict run.

    Args: those of `Model`.

    Attributes:
        ledger: what the rank holds over all tensors alive.
    """

    attentive = True

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._lines: dict[int, Line] = {}  # of operations that wait, by row
        self._receives: list[Work] = []  # those that wait for their message
        self._flights: dict[int, _Flight] = {}  # of launched operations, by row
        self._submitted: Line | None = None
        self.given = self.given_now()

    def _store(self, name: str) -> Store[Any]:
        """Make one of the five stores, and with the first one the ledger."""
        if not hasattr(self, "ledger"):
            self.ledger = Ledger(self.account, self.rank)
        if self.account.journal is None:
            return FollowedStore(self.account)
        return JournalledFollowedStore(self.account, name, self.log)

    def given_now(self) -> tuple[Any, ...]:
        """Return what a strategy must leave alone."""
        return (
            self.dist,
            self.log,
            self.runtime_predictor,
            self.rank,
            self.world_size,
            self.num_layers,
            self.global_batch_size,
        )

    @property
    def counted(self) -> Account:
        """What counts as this rank's memory."""
        return self.ledger

    def memory_by_store(self) -> dict[str, float]:
        """Return the elements in each store now, those of operations in flight, and those outside."""
        return {
            **super().memory_by_store(),
            "outside the stores": (self.ledger.units - self.ledger.stored) / UNITS_PER_ELEMENT,
        }

    def _begin(self, op: str, values: Sequence[Any] = ()) -> None:
        """Require that an operation gets genuine tensors, and note what is held outside while it begins."""
        ledger = self.ledger
        try:
            for value in values:  # the quick way of `require_genuine`
                origin = value._origin
                buffer = origin.buffer
                if (
                    buffer.ledger is not ledger
                    or origin.written is not buffer.written
                    or origin.fields != FIELDS[value.__class__](value)
                ):
                    require_genuine(ledger, op, (value,))
        except (AttributeError, KeyError):
            require_genuine(ledger, op, values)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))

    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[Weight, OptState]:
        """Load a weight; see `Model.load_weights`."""
        self._begin("load_weights")
        weight, opt_state = super().load_weights(layer, shard, num_shards)
        line = self.ledger.line(_frame(1))
        adopt(self.ledger, weight, line)
        adopt(self.ledger, opt_state, line)
        return weight, opt_state

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Hand in a trained weight: a copy is kept, which holds no memory; see `Model.set_final_weight`."""
        require_genuine(self.ledger, "set_final_weight", (weight,))
        super().set_final_weight(layer, weight)
        self.final_weights[layer] = kept = _copy(weight)
        kept._origin = Final(weight._origin)

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Return the model's input; see `Model.get_input_activation`."""
        activation = super().get_input_activation(samples)
        adopt(self.ledger, activation, self.ledger.line(_frame(1)))
        return activation

    def forward(self, layer: int, inp: Activation, weight: Weight) -> Activation:
        """Take an activation through a layer; see `Model.forward`."""
        self._begin("forward", (inp, weight))
        if inp.__class__ is Activation and weight.__class__ is Weight and inp._origin.step != weight.step:
            require_step(self.rank, "forward", "the input", inp, weight.step)
        out = super().forward(layer, inp, weight)
        adopt(self.ledger, out, self.ledger.line(_frame(1)), weight.step)
        return out

    def loss(self, inp: Activation) -> ActivationGrad:
        """Return the gradient of the model's output; see `Model.loss`."""
        self._begin("loss", (inp,))
        grad = super().loss(inp)
        adopt(self.ledger, grad, self.ledger.line(_frame(1)), inp._origin.step)
        return grad

    def backward(
        self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Take a gradient back through a layer; see `Model.backward`."""
        self._begin_backward("backward", inp, grad, weight)
        weight_grad, grad_inp = super().backward(layer, inp, grad, weight)
        line = self.ledger.line(_frame(1))
        adopt(self.ledger, weight_grad, line, weight.step)
        adopt(self.ledger, grad_inp, line, weight.step)
        return weight_grad, grad_inp

    def backward_input(self, layer: int, inp: Activation, grad: ActivationGrad, weight: Weight) -> ActivationGrad:
        """Take a gradient back to a layer's input; see `Model.backward_input`."""
        self._begin_backward("backward_input", inp, grad, weight)
        grad_inp = super().backward_input(layer, inp, grad, weight)
        adopt(self.ledger, grad_inp, self.ledger.line(_frame(1)), weight.step)
        return grad_inp

    def backward_weight(self, layer: int, inp: Activation, grad: ActivationGrad) -> WeightGrad:
        """Return the gradient of a layer's weight; see `Model.backward_weight`."""
        self._begin("backward_weight", (inp, grad))
        if isinstance(inp, Activation) and isinstance(grad, ActivationGrad):
            require_step(self.rank, "backward_weight", "the input", inp, grad._origin.step)
        weight_grad = super().backward_weight(layer, inp, grad)
        adopt(self.ledger, weight_grad, self.ledger.line(_frame(1)), grad._origin.step)
        return weight_grad

    def _begin_backward(self, op: str, inp: Any, grad: Any, weight: Any) -> None:
        """Require genuine tensors of one step."""
        self._begin(op, (inp, grad, weight))
        if inp.__class__ is Activation and grad.__class__ is ActivationGrad and weight.__class__ is Weight:
            require_step(self.rank, op, "the gradient", grad, weight.step)
            require_step(self.rank, op, "the input", inp, weight.step)

    def update(
        self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState
    ) -> tuple[Weight, OptState]:
        """Take an optimizer step, in place; see `Model.update`."""
        self._begin("update", (weight_grad, weight, opt_state))
        if isinstance(weight_grad, WeightGrad) and isinstance(weight, Weight) and isinstance(opt_state, OptState):
            require_update(self.ledger, layer, weight_grad, weight, opt_state)
        new = super().update(layer, weight_grad, weight, opt_state)
        note_update(self.ledger, weight)
        written = Written("update", self.ledger.line(_frame(1)))
        for before, after in zip((weight, opt_state), new, strict=True):
            buffer: Buffer = before._origin.buffer
            buffer.overwrite(written)
            succeed(after, buffer)
        return new

    def _collective(self, op: str, v: Any, layer: int | None, group: Any, detail: Any = None) -> Work:
        """Submit a collective of genuine tensors; a reduction overwrites them."""
        values = _items(v)
        self._begin(op, values)
        member = self._world if group is None else self._member(group)
        self._lines[len(self._rows)] = line = self.ledger.line(_frame(1).f_back)
        if op in _REDUCTIONS and member.communicator.size > 1:
            for value in values:
                if value.__class__ is WeightGrad:
                    value._origin.buffer.overwrite(Written(op, line))
        return super()._collective(op, v, layer, member, detail)

    def after_collective(self, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective, and require that nothing is counted twice in them."""
        super().after_collective(works, results)
        op, first = works[0].op, results[0]
        if op == "barrier" or first is works[0].value:  # nothing comes, or a lone rank gets what it gave
            for work in works:
                del work.model._lines[work.row]
        elif op in _RULES and first.__class__ is not list:
            _require_unaltered(works)
            values = [work.value for work in works]
            _RULES[op](op, values, first, works)
            for work, value, result in zip(works, values, results, strict=True):
                work.model._take_one(work, value, result)
        else:
            self._after_bucket(works, results)

    def _after_bucket(self, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective of buckets, or one that is neither a reduction nor a gather."""
        op = works[0].op
        for work in works:
            require_genuine(work.model.ledger, op, _items(work.value), whatever_version=True)
        if op in _RULES:
            brought = zip(*(_items(work.value) for work in works), strict=True)
            for values, result in zip(brought, results[0], strict=True):
                _RULES[op](op, values, result, works)
        for index, (work, result) in enumerate(zip(works, results, strict=True)):
            work.model._take(works, index, _items(result), work.model._lines.pop(work.row))

    def _take_one(self, work: Work, value: Any, result: Any) -> None:
        """Follow the one tensor that this rank got from a reduction or a gather."""
        line = self._lines.pop(work.row)
        if work.op in _REDUCTIONS:
            self._reduced(work.op, value, result, line)
        elif work.row in self._flights:
            self._gain(work.row, [result], [value._origin.step], line)
        else:
            adopt(self.ledger, result, line, value._origin.step)

    def line_of(self, work: Work) -> Line:
        """Return where an operation was submitted that nobody has the result of yet."""
        return self._lines[work.row]

    def _take(self, works: Sequence[Work], index: int, results: Sequence[Any], line: Line) -> None:
        """Follow what this rank got from a collective."""
        work = works[index]
        if work.op in _REDUCTIONS:
            for value, result in zip(_items(work.value), results, strict=True):
                self._reduced(work.op, value, result, line)
            return
        if work.op == "broadcast" and work.detail == self.rank:
            for value, result in zip(_items(work.value), results, strict=True):
                succeed(result, value._origin.buffer, value._origin.step)
            return
        if work.op == "all_to_all":
            sources = [other.value[index] for other in works]
        else:
            source = next(other for other in works if work.op != "broadcast" or other.rank == work.detail)
            sources = _items(source.value)
        self._gain(work.row, results, [source._origin.step for source in sources], line)

    def _reduced(self, op: str, value: Any, result: Any, line: Line) -> None:
        """Let the result of a reduction take the place of what was brought, or of its shard."""
        buffer: Buffer = value._origin.buffer
        if op == "reduce_scatter":
            (shard,) = result.shards
            buffer = buffer.view(size(self.ledger, result), shard, result.num_shards, line)
        succeed(result, buffer, value._origin.step)

    def _gain(self, row: int, results: Sequence[Any], steps: Sequence[int | None], line: Line) -> None:
        """Count what came from others: from now on, or from the launch of what brought it."""
        flight = self._flights.get(row)
        if flight is None:
            for result, step in zip(results, steps, strict=True):
                adopt(self.ledger, result, line, step)
            return
        if flight.window is not None:
            self.ledger.backdate(flight.window, sum(size(self.ledger, result) for result in results))
            flight.window = None
        for result, step in zip(results, steps, strict=True):
            succeed(result, Buffer(self.ledger, size(self.ledger, result), line), step)
            flight.hold(result)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Work:
        """Submit a message; on its way it is a copy, so that the sender may free the tensor."""
        self._begin("send", (v,))
        work = super()._send(dest, v, tag)
        if not self.launching:
            work.value = _copy_on_its_way(v)
        return work

    def _receive(self, source: int, tag: Hashable) -> Work:
        """Submit a receive."""
        self._begin("receive")
        self._submitted = self._lines[len(self._rows)] = self.ledger.line(_frame(1))
        work = super()._receive(source, tag)
        if hasattr(work, "carried"):
            del self._lines[work.row]
        else:
            self._receives.append(work)
        return work

    def after_message(self, value: Any, result: Any) -> None:
        """Follow a received tensor."""
        super().after_message(value, result)
        origin = getattr(value, "_origin", None)
        line, row = self._submitted, -1
        for work in self._receives:
            if getattr(work, "outcome", None) is result:
                self._receives.remove(work)
                line, row = self._lines.pop(work.row), work.row
                break
        assert line is not None  # a message comes to a receive
        if isinstance(origin, Origin | Message):
            self._gain(row, [result], [origin.step], line)
        else:
            result._origin = Stranger("came through the transport behind the sender's back; use model.send")

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows; see `Model.launch`."""
        work = super().launch(operation).work
        flight = self._flights[work.row] = _Flight()
        for value in _items(work.value):
            flight.hold(value)
        if work.op == "send":
            work.value = _copy_on_its_way(work.value)
        outcome = getattr(work, "outcome", None)
        if outcome is not None:
            for result in _items(outcome):
                flight.hold(result)
        elif work.op in _RESULT_IS_NEW and work.detail != self.rank:
            flight.window = self.ledger.open_window()
        return _LaunchedOnce(work)

    def land(self, work: Work) -> None:
        """Let go of what a launched operation held: whoever awaited it has the result now."""
        self._flights.pop(work.row).release()
        work.outcome = None
        if work.op != "send":  # a message, a copy, may lie unreceived still
            work.value = None
        if work.flight is not None:
            work.flight.lent.clear()


class _Flight:
    """What a launched operation holds until it is awaited: what it was given, and its result.

    Attributes:
        window: where the count of a result begins that is not known yet.
    """

    __slots__ = ("held", "window")

    def __init__(self) -> None:
        self.held: list[tuple[Any, Buffer]] = []
        self.window: int | None = None

    def hold(self, tensor: Any) -> None:
        """Hold a tensor."""
        origin = getattr(tensor, "_origin", None)
        if isinstance(origin, Origin):
            origin.buffer.enter()
            self.held.append((tensor, origin.buffer))

    def release(self) -> None:
        """Let everything go."""
        for _, buffer in self.held:
            buffer.leave()
        self.held.clear()


class _LaunchedOnce(Launched[T]):
    """A launched operation whose result belongs to whoever awaits it first; later it is only remembered weakly."""

    __slots__ = ("_is_bucket", "_results")

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._results: list[ReferenceType[Any]] | None = None
        self._is_bucket = False

    def __await__(self) -> Generator[Any, None, T]:
        if self._results is None:
            result: Any = yield from self.work.__await__()
            if self._results is None:  # nobody was quicker
                self._results = [ref(item) for item in _items(result)]
                self._is_bucket = isinstance(result, list)
                self.work.model.land(self.work)  # type: ignore[attr-defined]  # the model is a strict one
                return result  # type: ignore[no-any-return]
        return self._again()

    def _again(self) -> T:
        """Return the result once more, if it still lives."""
        results = [found() for found in self._results or ()]
        if any(result is None for result in results):
            raise StrategyError(
                f"{self.work.op} on rank {self.work.rank} was awaited before and its result was freed since; keep the "
                "result in a store if it is needed again",
                rank=self.work.rank,
                op=self.work.op,
            )
        if self._is_bucket:
            return results  # type: ignore[return-value]
        return results[0] if results else None  # type: ignore[return-value]


def _require_unaltered(works: Sequence[Any]) -> None:
    """Require that nobody altered a tensor between the start of a collective and its end."""
    fields_of = FIELDS[works[0].value.__class__]
    if [fields_of(work.value) for work in works] != [work.value._origin.fields for work in works]:
        for work in works:
            require_genuine(work.model.ledger, work.op, (work.value,), whatever_version=True)


def _copy(value: T) -> T:
    """Return an equal tensor, an object of its own, that carries the same content."""
    copy: Any = value.__class__(*FIELDS[value.__class__](value))
    if hasattr(value, "_content"):
        copy._content = value._content
    return copy  # type: ignore[no-any-return]


def _copy_on_its_way(value: Any) -> Any:
    """Return the copy of a tensor that travels."""
    message = _copy(value)
    message._origin = Message(value._origin)
    return message


def _items(value: Any) -> list[Any]:
    """Return the tensors of a bucket, the one tensor, or nothing."""
    if isinstance(value, list):
        return value
    return list(value) if isinstance(value, tuple) else [] if value is None else [value]
