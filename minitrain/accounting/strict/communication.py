"""What a rank of a strict run does with others: it follows tensors through collectives and messages.

Reductions work in place: the result takes over the buffer of what a member gave. A gathered, exchanged or received
tensor gets a buffer of its own. On its way, a message is a copy that occupies nothing, so that the sender may free the
tensor.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from minitrain.accounting.strict.buffers import Overwrite
from minitrain.accounting.strict.computation import unbound
from minitrain.accounting.strict.experts import StrictExperts
from minitrain.accounting.strict.launched import LaunchHold, StrictLaunched, tensors_in
from minitrain.accounting.strict.laws import (
    is_surely_valid,
    require_exchangeable,
    require_gatherable,
    require_reducible,
    require_valid,
)
from minitrain.accounting.strict.ledger import Line
from minitrain.accounting.strict.price_recomputation import Moved, Offloaded, facts_of, moved_by
from minitrain.accounting.strict.provenance import Alias, new_origin
from minitrain.accounting.strict.unusable_tensors import HANDMADE_DETECTION, InTransit, OffloadedOrigin, Unusable
from minitrain.errors import LawError, UsageError
from minitrain.events import OFFLOAD, STRIDE
from minitrain.rank.launched_memory import RESULT_IS_NEW
from minitrain.rank.operations import Launched, Operation
from minitrain.tensors import FIELDS, KINDS, WeightGrad, clone
from minitrain.tensors.on_host import OnHost
from minitrain.tensors.placed import (
    COPIES,
    PARTIAL,
    ExpertGrad,
    KeysValuesGrad,
    RouterGrad,
    WeightGradPart,
)

T = TypeVar("T")

_LAWS = {
    "all_reduce": require_reducible,
    "reduce_scatter": require_reducible,
    "all_gather": require_gatherable,
}
_FOLLOWED = frozenset({*_LAWS, "broadcast", "all_to_all"})
_WHOLE = frozenset(KINDS)  # kinds of which all members get equal results, unless these are shards
_SUMMANDS: frozenset[type[Any]] = frozenset(
    {WeightGrad, WeightGradPart, RouterGrad, ExpertGrad, *PARTIAL, KeysValuesGrad}
)
_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})


class StrictCommunication(StrictExperts):
    """The operations on a rank's communication streams.

    Each adds to what `minitrain.rank` does: it requires valid tensors, notes what is held outside the stores while it
    begins, and remembers the line of the strategy. Its results get their origin in `after_collective` and
    `after_message`, when the transport has made them.
    """

    follows_tensors = True

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._lines: dict[int, Line] = {}  # of operations without a result yet, by row
        self._moved: dict[int, Moved] = {}  # what communications moved, by row
        self._receives: list[Operation] = []  # those that wait for their message
        self._launch_holds: dict[int, LaunchHold] = {}  # what launched operations hold, by row
        self._submitted: Line | None = None
        self._join = unbound(super()._collective)

    def _collective(self, op: str, v: Any, layer: int | None, group: Any, detail: Any = None) -> Operation:
        """Submit a collective of valid tensors; a reduction overwrites them."""
        ledger = self._ledger
        if v is not None and not is_surely_valid(ledger, v):
            require_valid(ledger, op, tensors_in(v))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        member = self._world if group is None else self._member(group)
        self._lines[len(self._rows)] = line = ledger.line()
        if op in _REDUCTIONS and member.communicator.size > 1:
            for value in tensors_in(v):
                if value.__class__ in _SUMMANDS:  # each has an origin, as it is valid
                    value._origin.begin_overwrite(value, Overwrite(op, line))
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            return self._join(self, op, v, layer, member, detail)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies

    def after_collective(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective, and require that nothing is counted twice in them."""
        super().after_collective(operations, results)
        op, first = operations[0].op, results[0]
        moved = moved_by(op, operations, results)
        for operation in operations:
            operation.model._moved[operation.row] = moved
        if op == "barrier" or first is operations[0].value:  # nothing new: a group of one rank gets what it gave
            for operation in operations:
                del operation.model._lines[operation.row]
        elif op in _LAWS and first.__class__ is not list:
            self._after_one(op, operations, results)
        else:
            self._after_bucket(op, operations, results)

    def _after_one(self, op: str, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a reduction or a gather of one tensor a member."""
        values = [operation.value for operation in operations]
        origins = [value._origin for value in values]
        fields_of = FIELDS[values[0].__class__]
        if [fields_of(value) for value in values] != [origin.fields for origin in origins]:
            for operation in operations:  # a tensor was altered while it waited here
                require_valid(operation.model._ledger, op, (operation.value,), whatever_version=True)
        _LAWS[op](op, values, results[0], operations)
        fields_of = FIELDS[results[0].__class__]  # a sum of parts is another kind of tensor
        of_all = fields_of(results[0]) if op != "reduce_scatter" and results[0].__class__ in _WHOLE else None
        units = operations[0].model._ledger.units_of(results[0])
        for operation, origin, result in zip(operations, origins, results, strict=True):
            model = operation.model
            line = model._lines.pop(operation.row)
            result._units = units
            if op == "all_reduce":
                origin.buffer.set_owner(result, of_all or fields_of(result), origin.step)
            elif op == "reduce_scatter" and result.__class__ is not KeysValuesGrad:  # whose shards may lie apart
                origin.buffer.make_view(result, fields_of(result), origin.step, line)
            elif operation.row in model._launch_holds:
                model._follow_received(operation.row, [result], [origin.step], line)
            else:
                result._origin = new_origin(model._ledger, units, of_all or fields_of(result), origin.step, line)

    def _after_bucket(self, op: str, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective of buckets, or one that is neither a reduction nor a gather."""
        if op not in _FOLLOWED:
            raise UsageError(
                f"a strict run follows tensors through {', '.join(sorted(_FOLLOWED))}, got {op}; run it without "
                "strict=True, or say in minitrain.accounting.strict.communication what it does to tensors"
            )
        for operation in operations:
            require_valid(operation.model._ledger, op, tensors_in(operation.value), whatever_version=True)
        if op == "all_to_all":
            require_exchangeable(op, [operation.value for operation in operations], operations)
        if op in _LAWS:
            brought = zip(*(tensors_in(operation.value) for operation in operations), strict=True)
            for values, result in zip(brought, results[0], strict=True):
                _LAWS[op](op, values, result, operations)
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            operation.model._follow_result(
                operations, index, tensors_in(result), operation.model._lines.pop(operation.row)
            )

    def line_of(self, operation: Operation) -> Line:
        """Return where an operation without a result was submitted."""
        return self._lines[operation.row]

    def _follow_result(self, operations: Sequence[Operation], index: int, results: Sequence[Any], line: Line) -> None:
        """Follow what this rank got from a collective of buckets, a broadcast or an exchange."""
        operation = operations[index]
        if operation.op in _REDUCTIONS or (operation.op == "broadcast" and operation.detail == self._rank):
            for value, result in zip(tensors_in(operation.value), results, strict=True):
                _follow_in_place(operation.op, value, result, line)
            return
        if operation.op == "all_to_all":
            is_copies = operation.value.__class__ in COPIES
            sources = [operation.value] if is_copies else [other.value[index] for other in operations]
        else:
            source = next(
                other for other in operations if operation.op != "broadcast" or other.rank == operation.detail
            )
            sources = tensors_in(source.value)
        self._follow_received(operation.row, results, [source._origin.step for source in sources], line)

    def _follow_received(self, row: int, results: Sequence[Any], steps: Sequence[int | None], line: Line) -> None:
        """Count what came from other ranks: from now on, or from the launch of the operation that brought it."""
        ledger, hold = self._ledger, self._launch_holds.get(row)
        if hold is not None and hold.window is not None:
            units = sum([ledger.units_of(result) for result in results])
            ledger.backdate(hold.window, units)
            ledger.units -= units  # `new_origin` adds them again
            hold.window = None
        for result, step in zip(results, steps, strict=True):
            result._origin = new_origin(ledger, ledger.units_of(result), FIELDS[result.__class__](result), step, line)
            if hold is not None:
                hold.add(result)

    def _send(self, dest: int, v: Any, tag: Hashable) -> Operation:
        """Submit a message; on its way it is a copy, so that the sender may free the tensor."""
        ledger = self._ledger
        if not is_surely_valid(ledger, v):
            require_valid(ledger, "send", (v,))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            operation = super()._send(dest, v, tag)
            if not self.launching:
                operation.value = _copy_on_its_way(v)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        self._moved[operation.row] = facts_of(v)
        return operation

    def _receive(self, source: int, tag: Hashable) -> Operation:
        """Submit a receive."""
        ledger = self._ledger
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        self._submitted = self._lines[len(self._rows)] = ledger.line()
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            operation = super()._receive(source, tag)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        if operation.carried is not None:
            del self._lines[operation.row]
        else:
            self._receives.append(operation)
        return operation

    def after_message(self, value: Any, result: Any) -> None:
        """Follow a received tensor."""
        super().after_message(value, result)
        line, row = self._submitted, -1
        moved_at = len(self._rows) - STRIDE  # a receive whose message is there already is the latest operation
        for operation in self._receives:
            if getattr(operation, "outcome", None) is result:
                self._receives.remove(operation)
                line, row = self._lines.pop(operation.row), operation.row
                moved_at = row
                break
        self._moved[moved_at] = facts_of(result)
        assert line is not None  # a message is delivered to a receive
        try:
            step = value._origin.step
        except AttributeError:
            result._origin = Unusable("came through the transport behind the sender's back; use model.send")
        else:
            self._follow_received(row, [result], [step], line)

    def _offload(self, v: Any) -> Operation:
        """Submit a copy of a valid tensor to the host."""
        ledger = self._ledger
        if not is_surely_valid(ledger, v):
            require_valid(ledger, OFFLOAD, (v,))
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        operation = super()._offload(v)
        kept = operation.outcome
        kept._origin = OffloadedOrigin(ledger, v._origin.step, (kept.kind, kept.fields))
        self._moved[operation.row] = Offloaded(kept._units)
        return operation

    def _fetch(self, v: Any) -> Operation:
        """Submit a copy from the host of what this rank has offloaded."""
        ledger, origin = self._ledger, getattr(v, "_origin", None)
        if isinstance(v, OnHost) and not (
            isinstance(origin, OffloadedOrigin) and origin.ledger is ledger and origin.fields == (v.kind, v.fields)
        ):
            raise LawError(
                f"fetch on rank {ledger.rank}: {v!r} did not come out of an offload of this rank, or was altered "
                "since; only what operations give can be used",
                rank=ledger.rank,
                layer=v.layer,
                value=v,
            )
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(len(self._rows))
        line = ledger.line()
        HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_operations
        try:
            operation = super()._fetch(v)
        finally:
            HANDMADE_DETECTION.on = HANDMADE_DETECTION.in_strategies
        result: Any = operation.outcome
        assert isinstance(origin, OffloadedOrigin)
        result._origin = new_origin(ledger, result._units, FIELDS[result.__class__](result), origin.step, line)
        self._moved[operation.row] = Offloaded(v._units)
        return operation

    def launch(self, operation: Coroutine[Any, Any, T]) -> Launched[T]:
        """Submit a communication to run beside what follows; see `Model.launch`."""
        submitted = super().launch(operation).operation
        hold = self._launch_holds[submitted.row] = LaunchHold()
        for value in tensors_in(submitted.value):
            hold.add(value)
        if submitted.op == "send":
            submitted.value = _copy_on_its_way(submitted.value)
        outcome = submitted.outcome if submitted.settled else None
        if outcome is not None:
            for result in tensors_in(outcome):
                hold.add(result)
        elif submitted.op in RESULT_IS_NEW and submitted.detail != self._rank:
            hold.window = self._ledger.open_window()
        return StrictLaunched(submitted)

    def release_launched(self, operation: Operation) -> None:
        """Release what a launched operation held: whoever awaited it has the result now."""
        self._launch_holds.pop(operation.row).release()
        operation.outcome = None
        if operation.op != "send":  # the copy may not have been received yet
            operation.value = None
        if operation.launched_memory is not None:
            operation.launched_memory.stored_tensors.clear()


def _follow_in_place(op: str, value: Any, result: Any, line: Line) -> None:
    """Let the result made of a member's own tensor share its buffer: a sum, a shard of one, or what it broadcasts."""
    origin = value._origin
    fields = FIELDS[result.__class__](result)
    if op == "all_reduce":
        origin.buffer.set_owner(result, fields, origin.step)
    elif op == "reduce_scatter":
        origin.buffer.make_view(result, fields, origin.step, line)
    else:
        result._origin = Alias(origin.buffer, fields, origin.step, origin.tensor_version)


def _copy_on_its_way(value: Any) -> Any:
    """Return the copy of a tensor that travels to another rank."""
    message = clone(value)
    if hasattr(value, "_content"):
        message._content = value._content
    message._origin = InTransit(value._origin.step)
    return message
