"""What a rank of a strict run does with others: what comes of tensors in collectives and messages."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from minitrain.accounting.strict.computing import StrictComputing, unbound
from minitrain.accounting.strict.flights import Flight, LaunchedOnce, items
from minitrain.accounting.strict.genuine import is_usual, require_genuine
from minitrain.accounting.strict.handmade import NOTING
from minitrain.accounting.strict.ledger import Line
from minitrain.accounting.strict.origin import Alias, born
from minitrain.accounting.strict.rules import require_gatherable, require_reducible
from minitrain.accounting.strict.strangers import Message, Stranger
from minitrain.accounting.strict.written import Written
from minitrain.rank.operations import Launched, Work
from minitrain.tensors import FIELDS, WeightGrad, clone

T = TypeVar("T")

_RULES = {
    "all_reduce": require_reducible,
    "reduce_scatter": require_reducible,
    "all_gather": require_gatherable,
}
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_RESULT_IS_NEW = frozenset({"all_gather", "all_to_all", "broadcast", "recv"})
_frame = sys._getframe


class StrictCommunicating(StrictComputing):
    """The operations on a rank's communication streams."""

    follows_tensors = True

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._lines: dict[int, Line] = {}  # of operations that wait, by row
        self._receives: list[Work] = []  # those that wait for their message
        self._flights: dict[int, Flight] = {}  # of launched operations, by row
        self._submitted: Line | None = None
        self._join = unbound(super()._collective)

    def _collective(self, op: str, v: Any, layer: int | None, group: Any, detail: Any = None) -> Work:
        """Submit a collective of genuine tensors; a reduction overwrites them."""
        ledger = self.ledger
        if v is not None and not is_usual(ledger, v):
            require_genuine(ledger, op, items(v))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        member = self._world if group is None else self._member(group)
        self._lines[len(self._rows)] = line = ledger.line(_frame(4 if self.launching else 2))
        if op in _REDUCTIONS and member.communicator.size > 1:
            for value in [v] if v.__class__ is WeightGrad else items(v):
                if value.__class__ is WeightGrad:
                    value._origin.give_way(value, Written(op, line))
        NOTING.on = NOTING.in_operations
        try:
            return self._join(self, op, v, layer, member, detail)
        finally:
            NOTING.on = NOTING.in_strategies

    def after_collective(self, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective, and require that nothing is counted twice in them."""
        super().after_collective(works, results)
        op, first = works[0].op, results[0]
        if op == "barrier" or first is works[0].value:  # nothing comes, or a lone rank gets what it gave
            for work in works:
                del work.model._lines[work.row]
        elif op in _RULES and first.__class__ is not list:
            self._after_one(op, works, results)
        else:
            self._after_bucket(op, works, results)

    def _after_one(self, op: str, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a reduction or a gather of one tensor a member."""
        values = [work.value for work in works]
        origins = [value._origin for value in values]
        fields_of = FIELDS[values[0].__class__]
        if [*map(fields_of, values)] != [origin.fields for origin in origins]:
            for work in works:  # somebody altered what waits here
                require_genuine(work.model.ledger, op, (work.value,), whatever_version=True)
        _RULES[op](op, values, results[0], works)
        fields = fields_of(results[0])
        units = works[0].model.ledger.units_of(results[0])
        for work, origin, result in zip(works, origins, results, strict=True):
            model = work.model
            line = model._lines.pop(work.row)
            result._units = units
            if op == "all_reduce":
                origin.buffer.pass_to(result, fields, origin.step)
            elif op == "reduce_scatter":
                origin.buffer.cut(result, fields_of(result), origin.step, line)
            elif work.row in model._flights:
                model._gain(work.row, [result], [origin.step], line)
            else:
                result._origin = born(model.ledger, units, fields, origin.step, line)

    def _after_bucket(self, op: str, works: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective of buckets, or one that is neither a reduction nor a gather."""
        for work in works:
            require_genuine(work.model.ledger, op, items(work.value), whatever_version=True)
        if op in _RULES:
            brought = zip(*(items(work.value) for work in works), strict=True)
            for values, result in zip(brought, results[0], strict=True):
                _RULES[op](op, values, result, works)
        for index, (work, result) in enumerate(zip(works, results, strict=True)):
            work.model._take(works, index, items(result), work.model._lines.pop(work.row))

    def line_of(self, work: Work) -> Line:
        """Return where an operation was submitted that nobody has the result of yet."""
        return self._lines[work.row]

    def _take(self, works: Sequence[Work], index: int, results: Sequence[Any], line: Line) -> None:
        """Follow what this rank got from a collective of buckets, a broadcast or an exchange."""
        work = works[index]
        if work.op in _REDUCTIONS or (work.op == "broadcast" and work.detail == self.rank):
            for value, result in zip(items(work.value), results, strict=True):
                _follow_in_place(work.op, value, result, line)
            return
        if work.op == "all_to_all":
            sources = [other.value[index] for other in works]
        else:
            source = next(other for other in works if work.op != "broadcast" or other.rank == work.detail)
            sources = items(source.value)
        self._gain(work.row, results, [source._origin.step for source in sources], line)

    def _gain(self, row: int, results: Sequence[Any], steps: Sequence[int | None], line: Line) -> None:
        """Count what came from others: from now on, or from the launch of what brought it."""
        ledger, flight = self.ledger, self._flights.get(row)
        if flight is not None and flight.window is not None:
            units = sum([ledger.units_of(result) for result in results])
            ledger.backdate(flight.window, units)
            ledger.units -= units  # which it gets back at once
            flight.window = None
        for result, step in zip(results, steps, strict=True):
            result._origin = born(ledger, ledger.units_of(result), FIELDS[result.__class__](result), step, line)
            if flight is not None:
                flight.hold(result)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Work:
        """Submit a message; on its way it is a copy, so that the sender may free the tensor."""
        ledger = self.ledger
        if not is_usual(ledger, v):
            require_genuine(ledger, "send", (v,))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        NOTING.on = NOTING.in_operations
        try:
            work = super()._send(dest, v, tag)
            if not self.launching:
                work.value = _copy_on_its_way(v)
        finally:
            NOTING.on = NOTING.in_strategies
        return work

    def _receive(self, source: int, tag: Hashable) -> Work:
        """Submit a receive."""
        ledger = self.ledger
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        self._submitted = self._lines[len(self._rows)] = ledger.line(_frame(4 if self.launching else 2))
        NOTING.on = NOTING.in_operations
        try:
            work = super()._receive(source, tag)
        finally:
            NOTING.on = NOTING.in_strategies
        if work.carried is not None:
            del self._lines[work.row]
        else:
            self._receives.append(work)
        return work

    def after_message(self, value: Any, result: Any) -> None:
        """Follow a received tensor."""
        super().after_message(value, result)
        line, row = self._submitted, -1
        for work in self._receives:
            if getattr(work, "outcome", None) is result:
                self._receives.remove(work)
                line, row = self._lines.pop(work.row), work.row
                break
        assert line is not None  # a message comes to a receive
        try:
            step = value._origin.step
        except AttributeError:
            result._origin = Stranger("came through the transport behind the sender's back; use model.send")
        else:
            self._gain(row, [result], [step], line)

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows; see `Model.launch`."""
        work = super().launch(operation).work
        flight = self._flights[work.row] = Flight()
        for value in items(work.value):
            flight.hold(value)
        if work.op == "send":
            work.value = _copy_on_its_way(work.value)
        outcome = work.outcome if work.settled else None
        if outcome is not None:
            for result in items(outcome):
                flight.hold(result)
        elif work.op in _RESULT_IS_NEW and work.detail != self.rank:
            flight.window = self.ledger.open_window()
        return LaunchedOnce(work)

    def land(self, work: Work) -> None:
        """Let go of what a launched operation held: whoever awaited it has the result now."""
        self._flights.pop(work.row).release()
        work.outcome = None
        if work.op != "send":  # a message, a copy, may lie unreceived still
            work.value = None
        if work.flight is not None:
            work.flight.lent.clear()


def _follow_in_place(op: str, value: Any, result: Any, line: Line) -> None:
    """Let what comes of a member's own tensor share its buffer: a sum, a shard of one, or what it gives to others."""
    origin = value._origin
    fields = FIELDS[result.__class__](result)
    if op == "all_reduce":
        origin.buffer.pass_to(result, fields, origin.step)
    elif op == "reduce_scatter":
        origin.buffer.cut(result, fields, origin.step, line)
    else:
        result._origin = Alias(origin.buffer, fields, origin.step, origin.version)


def _copy_on_its_way(value: Any) -> Any:
    """Return the copy of a tensor that travels."""
    message = clone(value)
    if hasattr(value, "_content"):
        message._content = value._content
    message._origin = Message(value._origin.step)
    return message
