"""What watches the ranks of a strict run: it follows each tensor from the operation that makes it to the last use.

Before an operation, what it is given must be valid and of one step. What is held outside the stores is noted then.
Afterwards, what it has made gets its origin and its buffer (see `minitrain.run.strict.buffers`):

- `update`, `with_table`, `all_reduce` and `reduce_scatter` work in place. Their results take over the buffers of what
  was given.
- Everything else that operations give has a buffer of its own.
- On its way, a message is a copy that occupies nothing, so that the sender may free the tensor. Once it has arrived, it
  lies on the receiver's device, also while the receiver does not ask for it. That is counted when the run has ended, by
  the clocks of both, so that it does not depend on which rank came first.
- A launched operation holds what it was given, and its result as soon as that is known, until it is awaited. What is
  given its result before that is looked at once the result is there.

When the run has ended, the final weights must be what was handed in, and prices must be durations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minitrain.engine.model import Model
from minitrain.engine.observers import Observer
from minitrain.engine.operations import Launched
from minitrain.errors import LawError, StrategyError
from minitrain.machine.price import PENDING
from minitrain.operations import FETCH, OFFLOAD, ON_HOST, PRICE, RECV, SEND, STRIDE, TYP, UPDATE_ON_HOST
from minitrain.operations.collectives import COLLECTIVES, Collective
from minitrain.operations.computations import COMPUTATIONS, names_of
from minitrain.run.strict.buffers import Alias, LaunchHold, Ledger, Line, Origin, Overwrite, Unusable
from minitrain.run.strict.laws import (
    Members,
    note_update,
    require_awaited,
    require_copied,
    require_exchangeable,
    require_final_weights,
    require_gatherable,
    require_reducible,
    require_update,
    require_update_on_host,
    require_usable,
    require_valid,
)
from minitrain.tensors import FIELDS, KINDS, clone
from minitrain.tensors.fields import OnHost
from minitrain.tensors.kinds import LocalWeight
from minitrain.tensors.placed import COPIES, KeysValuesGrad

_LAWS: dict[str, Callable[[str, Sequence[Any], Any, Members], None]] = {
    "sum": require_reducible,
    "union": require_gatherable,
}
_MAKING = frozenset(record.name for record in COMPUTATIONS.values() if record.makes_new)
_UPDATES = frozenset(names_of("update"))
_COMPRESSING = frozenset(names_of("compression"))
_LOADS = frozenset(names_of("load"))
_WHOLE = frozenset(KINDS)  # kinds of which all members get equal results, unless these are shards
_UNLOGGED = frozenset(record.name for record in COMPUTATIONS.values() if record.event is None)
_UNUSUAL = object()
_fields_of = FIELDS.get


class StrictAccounting(Observer):
    """Follows every tensor of a run; each rank's ledger is its model's memory meter."""

    __slots__ = ()

    def begin(self, model: Model) -> None:
        """Give a rank its ledger."""
        model._meter = Ledger(model._account.measure, rank=model._rank, is_uniform=model._is_uniform)

    def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:
        """Require valid tensors of one step."""
        ledger = model._meter
        ledger.moments.append((len(model._rows), model._time, ledger.units))
        if op not in COMPUTATIONS:
            self._before_communication(model, ledger, op, given)
            return
        if ledger.unawaited:
            require_awaited(ledger, op, given)
        delay = model._semantics.delay if op == "update" and model._semantics is not None else 0
        step = _UNUSUAL if delay else _usual_step(ledger, given)
        ledger.step = require_usable(ledger, op, given, delay) if step is _UNUSUAL else step
        if ledger.units - ledger.stored > ledger.most_outside and op not in _UNLOGGED:
            ledger.sample(len(model._rows))
        if op == "update" and len(given) == 4:
            require_update(ledger, *given)
            require_copied(ledger, given)

    def _before_communication(self, model: Any, ledger: Ledger, op: str, given: tuple[Any, ...]) -> None:
        """Require valid tensors for a communication, and remember its line; a reduction overwrites them."""
        value = None if op == RECV else given[1 if op == SEND else 0]
        tensors = tensors_in(value)
        if model._chains is not None:
            tensors = [tensor for tensor in tensors if not isinstance(tensor, Launched)]
        if ledger.unawaited:
            require_awaited(ledger, op, tensors)
        fields_of = _fields_of(value.__class__)
        if fields_of is None or not _is_usual(ledger, value, fields_of(value)):
            require_valid(ledger, op, tensors)
            _require_offloaded(ledger, op, tensors)
        row = len(model._rows)
        if ledger.units - ledger.stored > ledger.most_outside:
            ledger.sample(row)
        ledger.submitted[row] = line = ledger.lines.calling()
        if op in COLLECTIVES and COLLECTIVES[op].gives == "sum":
            group = given[2]
            if (model._world if group is None else model._member(group)).communicator.size > 1:
                _begin_overwrite(op, line, tensors)

    def chained(self, operation: Any, taken: Sequence[Any]) -> None:
        """Require valid tensors for what they were given to, as for any communication."""
        ledger, op = operation.model._meter, operation.op
        require_valid(ledger, op, taken)
        if op in COLLECTIVES and COLLECTIVES[op].gives == "sum" and operation.owner.communicator.size > 1:
            _begin_overwrite(op, ledger.submitted[operation.row], taken)
        hold = ledger.holds.get(operation.row)
        if hold is not None:
            for value in taken:
                hold.add(value)

    def departed(self, operation: Any) -> None:
        """Let a message be a copy from now on, unless it is one already."""
        if operation.model._meter.submitted.pop(operation.row, None) is not None:
            operation.value = _copy_on_its_way(operation.value)

    def after(self, model: Any, op: str, given: tuple[Any, ...], named: Mapping[str, Any], made: Any) -> None:  # noqa: ARG002  (as observers')
        """Give what an operation has made its origin."""
        ledger = model._meter
        if op == "with_table":
            self._after_with_table(ledger, op, given[1], made)
        elif op in _MAKING:
            self._after_making(ledger, op, made if made.__class__ is tuple else (made,))
        elif op in _UPDATES:
            results = made if made.__class__ is tuple else (made,)
            if op == "update" and model._semantics is not None and model._semantics.delay:
                weight, state = results  # the weight is a new one, since the older is still needed
                line = ledger.lines.calling()
                weight._origin = Origin(ledger, ledger.units_of(weight), FIELDS[LocalWeight](weight), weight.step, line)
                given, results = (*given[:2], given[3]), (state,)
            self._after_update(ledger, op, given, results)
        elif op in _COMPRESSING:
            first = made[0]
            fields, line = FIELDS[first.__class__](first), ledger.lines.calling()
            first._origin = Origin(ledger, first._units, fields, ledger.step, line)
            self._after_update(ledger, op, given, made[1:])
        elif op == "set_final_weight":
            _keep_a_copy(model, ledger, *given)
        else:
            self._after_submission(ledger, model, op, given, made)
        ledger.moments.append((len(model._rows), model._time, ledger.units))

    @staticmethod
    def _after_making(ledger: Ledger, op: str, made: tuple[Any, ...]) -> None:
        """Give each result a buffer of its own."""
        line, step = ledger.lines.calling(), 0 if op in _LOADS else ledger.step
        for tensor in made:
            fields = _fields_of(tensor.__class__)(tensor)  # type: ignore[misc]  # a kind that operations make
            tensor._origin = Origin(ledger, ledger.units_of(tensor), fields, step, line)

    @staticmethod
    def _after_with_table(ledger: Ledger, op: str, gradient: Any, made: Any) -> None:
        """Let the gradient's buffer be the result's: the table is a part of it."""
        origin, fields = gradient._origin, _fields_of(made.__class__)(made)  # type: ignore[misc]  # of its kind
        origin.begin_overwrite(gradient, Overwrite(op, ledger.lines.calling()))
        origin.buffer.set_owner(made, fields, ledger.step)

    @staticmethod
    def _after_update(ledger: Ledger, op: str, given: tuple[Any, ...], made: tuple[Any, ...]) -> None:
        """Let the buffers of a weight and its state be those of the results."""
        overwritten = [value for value in given[2:] if value is not None]
        if op in _UPDATES:
            note_update(ledger, overwritten[0])
        overwrite = Overwrite(op, ledger.lines.calling())
        for old, new in zip(overwritten, made, strict=True):
            origin = old._origin
            origin.begin_overwrite(old, overwrite)
            origin.buffer.set_owner(new, FIELDS[new.__class__](new), new.step)

    @staticmethod
    def _after_submission(ledger: Ledger, model: Any, op: str, given: tuple[Any, ...], operation: Any) -> None:
        """Follow what was submitted: a message on its way, or a move to or from the host."""
        if op == SEND:
            ledger.num_submitted += 1
            if not isinstance(operation.value, Launched):  # which is looked at later
                del ledger.submitted[operation.row]
                if not model.launching:
                    operation.value = _copy_on_its_way(operation.value)
        elif op == OFFLOAD:
            del ledger.submitted[operation.row]
            kept, step = operation.outcome, given[0]._origin.step
            kept._origin = Unusable("is in host memory; fetch it", ledger, step, (kept.kind, kept.fields))
        elif op == FETCH:
            result, line = operation.outcome, ledger.submitted.pop(operation.row)
            _receive(operation, result, FIELDS[result.__class__](result), given[0]._origin.step, line)
        elif op in ON_HOST:
            del ledger.submitted[operation.row]
            _have_stepped(ledger, given[0][1:] if op == UPDATE_ON_HOST else ())
        elif op == RECV or operation.owner.communicator.size > 1:
            ledger.num_submitted += 1

    def launched(self, operation: Any) -> None:
        """Hold what a launched operation was given, and its result, until it is awaited."""
        ledger = operation.model._meter
        hold = ledger.holds[operation.row] = LaunchHold()
        for value in (*tensors_in(operation.value), *(() if operation.chain is None else operation.chain.taken)):
            hold.add(value)
        if operation.op == SEND and not isinstance(operation.value, Launched):
            operation.value = _copy_on_its_way(operation.value)
        if operation.op == OFFLOAD:
            ledger.copied[operation.row] = operation.value
        outcome = operation.outcome if operation.settled else None
        if outcome is not None and outcome is not operation.value:  # which a lone rank gets again
            for result in tensors_in(outcome):
                hold.add_result(ledger, result)
        elif operation.gets_new:
            hold.window = ledger.open_window()

    def awaited(self, operation: Any, result: Any) -> None:  # noqa: ARG002  (as observers')
        """Release what a launched operation held: whoever awaited it has the result now."""
        ledger = operation.model._meter
        ledger.copied.pop(operation.row, None)
        hold = ledger.holds.pop(operation.row, None)
        if hold is not None:
            hold.release()

    def settled(self, operations: Sequence[Any], results: Sequence[Any]) -> None:
        """Follow the results of a collective, and require that nothing is counted twice in them."""
        record = COLLECTIVES[operations[0].op]
        first = next(filter(None, results), None) if record.to_root else results[0]
        members = [(operation, operation.model._meter.submitted.pop(operation.row)) for operation in operations]
        if (
            record.gives == "nothing" or first is operations[0].value
        ):  # nothing new: a group of one rank gets what it gave
            return
        for operation, result in zip(operations, results, strict=True):
            if operation.model._meter.holds:
                _count_since_launch(operation, tensors_in(result))
        values = [operation.value for operation in operations]
        if record.gives not in _LAWS:
            _settle_copies(record, members, results)
        elif first.__class__ is list:  # buckets, place by place
            for place in zip(zip(*values, strict=True), zip(*results, strict=True), strict=True):
                _settle(record, members, *place)
        else:
            _settle(record, members, values, results)

    def received(self, operation: Any, value: Any, result: Any) -> None:
        """Follow a received tensor."""
        ledger = operation.model._meter
        try:
            step = value._origin.step
        except AttributeError:
            del ledger.submitted[operation.row]
            result._origin = Unusable("came through the transport behind the sender's back; use model.send")
        else:
            _count_since_launch(operation, [result])
            fields = FIELDS[result.__class__](result)
            _receive(operation, result, fields, step, ledger.submitted.pop(operation.row))
            ledger.messages.append((operation, ledger.units_of(result)))

    def stored(self, store: Any, key: Any, value: Any) -> None:  # noqa: ARG002  (as observers')
        """Count a tensor as stored."""
        try:
            buffer = value._origin
        except AttributeError:  # made before the run
            return
        if buffer.usable_by is None:
            buffer = buffer.buffer
        if buffer is not None:  # `enter`, written out as this is the hot path
            buffer.holders = holders = buffer.holders + 1
            if holders == 1:
                buffer.ledger.stored += buffer.units
                buffer.line.outside -= buffer.units

    def left(self, store: Any, key: Any, value: Any) -> None:  # noqa: ARG002  (as observers')
        """Count a tensor as stored no longer."""
        try:
            buffer = value._origin
        except AttributeError:
            return
        if buffer.usable_by is None:
            buffer = buffer.buffer
        if buffer is not None:
            buffer.leave()

    def resized(self, model: Model, tensor: Any, units: int) -> None:  # noqa: ARG002  (as observers')
        """Give the buffer of a tensor another size."""
        tensor._origin.buffer.resize(units)

    def finish(self, models: Sequence[Model]) -> None:
        """Require that final weights are as they were handed in, that operations cost time, and that none is hidden."""
        for model in models:
            ledger: Any = model._meter
            ledger.count_waiting_messages(model._rows)
            for handed_in in (model.final_weights, model.final_experts, model.final_locals):
                require_final_weights(ledger, handed_in)
        _require_durations(models)
        _require_all_asked(models)


def _require_durations(models: Sequence[Model]) -> None:
    """Require that every price is a duration."""
    for model in models:
        prices = model._rows[PRICE::STRIDE]
        for price in dict(zip(map(id, prices), prices, strict=True)).values():
            if price is not PENDING and not 0 <= price.seconds < math.inf:
                typ = model._rows[prices.index(price) * STRIDE + TYP]
                message = f"the hardware gives {price.seconds!r} s for a {typ}; a duration is a number of at least 0"
                raise StrategyError(message, rank=model._rank)


def _require_all_asked(models: Sequence[Any]) -> None:
    """Require that the transport did no operations but those that models asked for; a group of one rank needs none."""
    done, asked = models[0]._dist.num_operations, sum([model._meter.num_submitted for model in models])
    if done != asked:
        message = (
            f"the transport carried out {done} operations and the models asked for {asked}; use the operations of the "
            "model, not those of model.dist, which cost no time"
        )
        raise StrategyError(message, done=done, asked=asked)


def _usual_step(ledger: Ledger, given: tuple[Any, ...]) -> Any:
    """Return the step of tensors that are surely valid and of one step, and None where none has a step.

    Returns:
        `_UNUSUAL` where that is not sure; `require_usable` knows.
    """
    step = None
    for value in given:
        kind = value.__class__
        if kind is int:
            continue
        fields_of = _fields_of(kind)
        try:
            origin = value._origin
        except AttributeError:
            return _UNUSUAL
        if fields_of is None or origin.usable_by is not ledger or origin.fields != fields_of(value):
            return _UNUSUAL
        if origin.step is not step and origin.step is not None:
            if step is not None:
                return _UNUSUAL
            step = origin.step
    return step


def _begin_overwrite(op: str, line: Line, tensors: Sequence[Any]) -> None:
    """Note that a reduction overwrites what it was given."""
    overwrite = Overwrite(op, line)
    for value in tensors:
        if value.__class__ in FIELDS:
            value._origin.begin_overwrite(value, overwrite)


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the tensors of a bucket, the one tensor, or nothing."""
    if value.__class__ in FIELDS:
        return (value,)
    if isinstance(value, list | tuple):
        return value
    return () if value is None else (value,)


def _is_usual(ledger: Ledger, value: Any, fields: tuple[Any, ...]) -> bool:
    """Return whether a tensor is surely valid, as it owns its buffer."""
    try:
        origin = value._origin
    except AttributeError:
        return False
    return origin.usable_by is ledger and bool(origin.fields == fields)


def _require_offloaded(ledger: Ledger, op: str, given: Sequence[Any]) -> None:
    """Require that what is fetched, written or updated came out of an offload of the rank, as it is."""
    kept = [value for value in given if isinstance(value, OnHost) and (op == FETCH or op in ON_HOST)]
    for value in kept:
        origin = getattr(value, "_origin", None)
        if not (
            isinstance(origin, Unusable) and (origin.ledger, origin.fields) == (ledger, (value.kind, value.fields))
        ):
            rule = (
                f"{op} on rank {ledger.rank}: {value!r} did not come out of an offload of this rank, or was altered "
                "since; only what operations give can be used"
            )
            raise LawError(rule, rank=ledger.rank, layer=value.layer, value=value)
    if op == UPDATE_ON_HOST and len(kept) == len(given):
        require_update_on_host(ledger, kept)


def _have_stepped(ledger: Ledger, updated: Sequence[Any]) -> None:
    """Let weight and state in host memory be of one step on."""
    for kept in updated:
        kept._origin = Unusable(kept._origin.reason, ledger, kept._origin.step + 1, (kept.kind, kept.fields))


def _settle(record: Collective, members: Members, values: Sequence[Any], results: Sequence[Any]) -> None:
    """Follow the results of a reduction or a gather of one tensor a member."""
    fields_of = FIELDS[values[0].__class__]
    origins = [value._origin for value in values]
    if [fields_of(value) for value in values] != [origin.fields for origin in origins]:
        for (operation, _), value in zip(members, values, strict=True):  # altered while it waited
            require_valid(operation.model._meter, record.name, (value,), whatever_version=True)
    first = next(filter(None, results)) if record.to_root else results[0]
    _LAWS[record.gives](record.name, values, first, members)
    fields_of = FIELDS[first.__class__]  # a sum of parts is another kind of tensor
    of_all = fields_of(first) if not record.scatters and first.__class__ in _WHOLE else None
    units = members[0][0].model._meter.units_of(first)
    for (operation, line), origin, result in zip(members, origins, results, strict=True):
        if result is None:
            continue
        result._units = units
        if record.gives == "sum" and not record.scatters:
            origin.buffer.set_owner(result, of_all or fields_of(result), origin.step)
        elif record.gives == "sum" and result.__class__ is not KeysValuesGrad:  # whose shards may lie apart
            origin.buffer.make_view(result, fields_of(result), origin.step, line)
        else:
            _receive(operation, result, of_all or fields_of(result), origin.step, line)


def _settle_copies(record: Collective, members: Members, results: Sequence[Any]) -> None:
    """Follow the results of a broadcast or an exchange: copies, but the root of a broadcast keeps its own."""
    operations = [operation for operation, _ in members]
    for operation in operations:  # it may have been altered while it waited
        require_valid(operation.model._meter, record.name, tensors_in(operation.value), whatever_version=True)
    if record.gives == "exchange":
        require_exchangeable(record.name, [operation.value for operation in operations], members)
    for index, (operation, line) in enumerate(members):
        for source, tensor in zip(_sources(operations, index), tensors_in(results[index]), strict=True):
            origin, fields = source._origin, FIELDS[tensor.__class__](tensor)
            if record.gives == "copy" and operation.detail == operation.rank:
                tensor._origin = Alias(origin.buffer, fields, origin.step, origin.tensor_version)
            else:
                _receive(operation, tensor, fields, origin.step, line)


def _sources(operations: Sequence[Any], index: int) -> Sequence[Any]:
    """Return of what tensors a member's copies were made: the root's, its own, or all members' for it."""
    operation = operations[index]
    gives = COLLECTIVES[operation.op].gives
    if gives == "exchange" and operation.value.__class__ not in COPIES:
        return [other.value[index] for other in operations]
    if gives == "copy":
        operation = next(other for other in operations if other.rank == other.detail)
    return tensors_in(operation.value)


def _count_since_launch(operation: Any, results: Sequence[Any]) -> None:
    """Count what a launched operation brings from its launch on, now that the size is known."""
    ledger = operation.model._meter
    hold = ledger.holds.get(operation.row)
    if hold is not None and hold.window is not None:
        units = sum([ledger.units_of(result) for result in results])
        ledger.backdate(hold.window, units)
        ledger.units -= units  # `_receive` adds them again
        hold.window = None


def _receive(operation: Any, result: Any, fields: tuple[Any, ...], step: int | None, line: Line) -> None:
    """Count what came from other ranks; an operation that was launched holds it."""
    ledger = operation.model._meter
    result._origin = Origin(ledger, ledger.units_of(result), fields, step, line)
    hold = ledger.holds.get(operation.row)
    if hold is not None:
        hold.add_result(ledger, result)


def _copy_on_its_way(value: Any) -> Any:
    """Return the copy of a tensor that travels to another rank."""
    message = clone(value)
    if hasattr(value, "_content"):
        message._content = value._content
    message._origin = Unusable("is a message on its way; receive it", step=value._origin.step)
    return message


def _keep_a_copy(model: Any, ledger: Ledger, layer: int, weight: Any) -> None:
    """Keep a copy of a final weight, which occupies nothing and cannot be used."""
    final, origin = model._final_of(weight)[layer], weight._origin
    kept = clone(final)
    if hasattr(weight, "_content"):
        kept._content = weight._content
    reason = "was handed in as the final weight and is no longer held; keep it in a store"
    fields = origin.fields if final is weight else FIELDS[kept.__class__](kept)  # steps in turn end as one
    kept._origin = Unusable(reason, ledger, origin.step, fields, origin.buffer.line)
    model._final_of(weight)[layer] = kept
