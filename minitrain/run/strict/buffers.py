"""What tensors of a strict run occupy on their device, and where they came from: the memory meter of a rank.

A tensor that comes out of an operation gets an `Origin` in its hidden slot: where it came from, what its fields were
then, and its buffer on the device. `update`, the reductions and `+` work in place: the result takes over the origin,
and the old tensor keeps an `Alias` of it. So each origin stands in the slot of at most one tensor, its owner; others
that share the buffer have an alias. Neither refers to a tensor, so that both die with theirs. The buffer lives as long
as any tensor refers to it, in whatever variable, closure or container that tensor is, and it counts once.

A shard cut from a whole tensor is a view of the whole's buffer. It counts nothing while the whole lives, and for itself
afterwards. Each overwriting of a buffer is an object of its own, so that it also serves as the version of the content:
a tensor is up to date if its buffer was not overwritten since the tensor was made. The slot of a tensor that must not
be used holds an `Unusable`.

What a strategy itself makes of tensors, by `+`, `combine` and `shard`, is followed by `derive`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import CodeType
from typing import Any, ClassVar
from weakref import ReferenceType, ref

from minitrain.engine.stores import Account
from minitrain.operations import PRICE, UNITS_PER_ELEMENT
from minitrain.run.strict import laws
from minitrain.source_lines import Place, Places
from minitrain.tensors import FIELDS, Sharded
from minitrain.tensors.index_sets import overlaps_any
from minitrain.tensors.placed import PARTIAL, num_summed

Fields = tuple[Any, ...]
_row, _clock = itemgetter(0), itemgetter(1)


class Line(Place):
    """A line of a strategy that makes tensors, and how much of what it made is held outside the stores now.

    Attributes:
        outside: units.
    """

    __slots__ = ("outside",)

    def __init__(self, code: CodeType | None, instruction: int) -> None:
        super().__init__(code, instruction)
        self.outside = 0


class LaunchHold:
    """What a launched operation holds until it is awaited: what it was given, and its result.

    Attributes:
        window: the ledger's window at the launch while the size of the result is not known, else None.
    """

    __slots__ = ("_held", "_results", "_unawaited", "window")

    def __init__(self) -> None:
        self._held: list[tuple[Any, Origin]] = []
        self._results: list[Any] = []
        self._unawaited: set[int] = set()
        self.window: int | None = None

    def add(self, tensor: Any) -> None:
        """Hold one more tensor."""
        origin = getattr(tensor, "_origin", None)
        if origin is not None and origin.buffer is not None:
            origin.buffer.enter()
            self._held.append((tensor, origin.buffer))

    def add_result(self, ledger: Ledger, tensor: Any) -> None:
        """Hold a result, which nothing may use until the operation is awaited."""
        self.add(tensor)
        self._results.append(tensor)  # so that its `id` is its own
        self._unawaited = ledger.unawaited
        self._unawaited.add(id(tensor))

    def release(self) -> None:
        """Release everything."""
        self._unawaited.difference_update(map(id, self._results))
        self._results.clear()
        for _, buffer in self._held:
            buffer.leave()
        self._held.clear()


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Ledger(Account):
    """What one rank holds over all buffers alive.

    Args:
        measure: that of the account of the rank's stores.
        rank: whose it is, for messages.
        is_uniform: whether shards of one kind are of the same size in all layers, as the workload says.

    Attributes:
        stored: units of what the stores and operations in flight hold now.
        most_outside: the most that was held outside of them, when an operation began.
        at_most: how much of it each line had made, in units.
        at_row: the row of the rank's log that the operation got.
        updated: the shards that were updated, by the number of shards, by layer and step.
        step: the step of the weights that the present operation computes with; None where it has none.
        submitted: the lines of communications without a result yet, by row.
        holds: what launched operations hold, by row.
        copied: the tensors that launched offloads copy, which nobody has awaited, by row.
        unawaited: the results of launched operations that nobody has awaited, by `id`.
        lines: the lines that have made something.
        num_submitted: operations that the rank has asked of the transport.
        moments: before and after each operation, the rows of the log, the clock, and the units held, in program order.
        messages: the receives that got a message, with its units.
        most_waiting: units of messages that had arrived and were not received yet, at most.
    """

    rank: int
    is_uniform: bool
    stored: int = 0
    most_outside: int = 0
    at_most: dict[Line, int] = field(default_factory=dict)
    at_row: int = 0
    updated: dict[tuple[int, int], dict[int, set[int]]] = field(default_factory=dict)
    step: int | None = None
    submitted: dict[int, Line] = field(default_factory=dict)
    holds: dict[int, LaunchHold] = field(default_factory=dict)
    copied: dict[int, Any] = field(default_factory=dict)
    unawaited: set[int] = field(default_factory=set)
    _sizes: dict[tuple[type, int, int, int, int], int] = field(default_factory=dict)
    lines: Places[Line] = field(default_factory=lambda: Places(Line))
    num_submitted: int = 0
    moments: list[tuple[int, float, int]] = field(default_factory=list)
    messages: list[tuple[Any, int]] = field(default_factory=list)
    most_waiting: int = 0

    def units_of(self, tensor: Any) -> int:
        """Return the size of a tensor in units; shards of one kind (and layer) are measured once."""
        units: int | None = getattr(tensor, "_units", None)
        if units is not None:
            return units
        if not isinstance(tensor, Sharded):
            return self.size(tensor)
        layer = 0 if self.is_uniform else tensor.layer
        key = tensor.__class__, layer, len(tensor.shards), tensor.num_shards, tensor.num_parts
        units = self._sizes.get(key)
        if units is None:
            units = self._sizes[key] = self.size(tensor)
        tensor._units = units
        return units

    def sample(self, row: int) -> None:
        """Note what is held outside the stores while an operation begins, if it was never more."""
        if self.units - self.stored > self.most_outside:
            self.most_outside = self.units - self.stored
            self.at_row = row
            self.at_most = {line: line.outside for line in self.lines if line.outside}

    def count_waiting_messages(self, rows: Sequence[Any]) -> None:
        """Count the messages that waited to be received, from their arrival on: their copies lie on this device.

        Args:
            rows: of the rank's log.
        """
        changes: dict[int, int] = {}
        for operation, units in self.messages:
            arrived = operation.carried + rows[operation.row + PRICE].seconds
            first = bisect_right(self.moments, arrived, key=_clock)
            asked = bisect_right(self.moments, operation.row, key=_row)  # it counts as received from here on
            if first < asked:
                changes[first] = changes.get(first, 0) + units
                changes[asked] = changes.get(asked, 0) - units
        waiting = 0
        for place, (_, _, held) in enumerate(self.moments if changes else ()):
            waiting += changes.get(place, 0)
            self.most_waiting = max(self.most_waiting, waiting)
            self.grow(held + waiting - self.units)
        self.messages.clear()  # they know their model, which knows this
        self.moments.clear()

    def beside_stores(self) -> dict[str, int]:
        """Return the units held outside the stores."""
        return {"outside the stores": self.units - self.stored}

    def held_outside(self) -> dict[str, float]:
        """Return the elements held outside the stores when it was most, by line, most first."""
        by_name: dict[str, int] = {}
        for line, units in self.at_most.items():
            by_name[str(line)] = by_name.get(str(line), 0) + units
        by_size = sorted(by_name.items(), key=lambda item: -item[1])
        return {line: units / UNITS_PER_ELEMENT for line, units in by_size}


class Overwrite:
    """One overwriting of a whole buffer.

    Args:
        op: the operation that did it.
        line: where in the strategy.
    """

    __slots__ = ("line", "op")

    def __init__(self, op: str, line: Line) -> None:
        self.op = op
        self.line = line

    def __str__(self) -> str:
        return f"{self.op} at {self.line}"

    def keeps(self, shard: int, num_shards: int, version: Overwrite | None) -> bool:  # noqa: ARG002  (as PartialOverwrite's)
        """Return whether a shard still has the content of an earlier version: never, as the whole was overwritten."""
        return False


class PartialOverwrite(Overwrite):
    """The overwriting of some shards of a buffer.

    Args:
        latest: what overwrote a shard last.
        version: the version of the buffer until then; if it is partial too, this object takes over what it knows.
        place: the shard, as (shard, num_shards).

    Attributes:
        before: the version of the whole buffer before any shard was overwritten.
        shards: the shards overwritten since, by the number of shards that the whole is cut into.
    """

    __slots__ = ("before", "shards")

    def __init__(self, latest: Overwrite, version: Overwrite | None, place: tuple[int, int]) -> None:
        super().__init__(latest.op, latest.line)
        if isinstance(version, PartialOverwrite):  # taken over: a copy each time would take quadratic time
            self.before: Overwrite | None = version.before
            self.shards: dict[int, set[int]] = version.shards
        else:
            self.before, self.shards = version, {}
        shard, num_shards = place
        self.shards.setdefault(num_shards, set()).add(shard)

    def keeps(self, shard: int, num_shards: int, version: Overwrite | None) -> bool:
        """Return whether a shard still has the content of an earlier version."""
        return self.before is version and not overlaps_any(shard, num_shards, self.shards)


class _InSlot:
    """What stands in the slot of a tensor: where that came from, or why it must not be used.

    Attributes:
        usable_by: the ledger of the rank that may use the tensor, where that is sure, else None. One comparison with
            it tells most valid tensors.
        buffer: what the tensor occupies; None if nothing.
        fields: the values of its fields when it was made.
        step: the step of the weights that it was computed with, or its own; None for an input of the model.
    """

    __slots__ = ()

    usable_by: Any
    buffer: Any
    fields: Any
    step: int | None

    def is_valid(self, ledger: Ledger, fields: Fields, whatever_version: bool) -> bool:  # noqa: ARG002
        """Return whether a ledger's rank may use the tensor, which has these fields now."""
        return False

    def why_invalid(self, ledger: Ledger, value: Any) -> str:
        """Return why the tensor cannot be used."""
        buffer = self.buffer
        if buffer.ledger is not ledger:
            return (
                f"belongs to rank {buffer.ledger.rank}, which made it at {buffer.line}; send and receive it, or use a "
                "collective"
            )
        if self.fields != FIELDS[type(value)](value):
            return laws.alteration(value, self.fields, buffer.line)
        return f"(made at {buffer.line}) was overwritten by {buffer.version}, which works in place; use its result"

    def derive(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Follow a tensor that the strategy makes of this one by `+`, `combine` or `shard`; see `derive`."""
        derive(self, result, how, parent, other)


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Origin(_InSlot):
    """The origin of a valid tensor of a rank, and the buffer behind it and perhaps others; it is the owner's.

    It is made when the tensor comes out of an operation, and counts as memory from then on.

    Args:
        ledger: the rank's.
        units: how much the buffer holds, in units; 0 for a view while the whole tensor lives.
        fields: the values of the tensor's fields.
        step: the step of the weights that it was computed with, or its own; None for an input of the model.
        line: the line of the strategy that made it.
        holders: number of entries of stores, and of launched operations, that hold it.
        version: its latest overwriting, None if there was none.
        outdated_version: the version of the owner, if that is not up to date.
        views: the shards cut from it, by (shard, num_shards).
    """

    ledger: Ledger
    units: int
    fields: Fields
    step: int | None
    line: Line
    usable_by: Ledger | None = field(init=False)
    holders: int = 0
    version: Overwrite | None = None
    outdated_version: Overwrite | None = None
    views: dict[tuple[int, int], ReferenceType[View]] | None = None

    def __post_init__(self) -> None:
        self.usable_by = self.ledger
        self.line.outside += self.units
        self.ledger.grow(self.units)

    def __del__(self) -> None:
        ledger, units = self.ledger, self.units
        ledger.units -= units
        if self.holders:
            ledger.stored -= units
        else:
            self.line.outside -= units
        if self.views is not None:
            for view in self._living_views():
                view.outlive_whole()

    @property
    def buffer(self) -> Origin:
        """What its owner occupies."""
        return self

    @property
    def tensor_version(self) -> Overwrite | None:
        """The version of the buffer when its owner was made."""
        return self.version if self.usable_by is not None else self.outdated_version

    def is_valid(self, ledger: Ledger, fields: Fields, whatever_version: bool) -> bool:
        """Return whether a ledger's rank may use the owner, which has these fields now."""
        return self.ledger is ledger and (whatever_version or self.usable_by is not None) and self.fields == fields

    def _living_views(self) -> Iterator[View]:
        """Yield the views that exist."""
        for found in (self.views or {}).values():
            view = found()
            if view is not None:
                yield view

    def resize(self, units: int) -> None:
        """Let it hold another amount from now on."""
        change = units - self.units
        self.units = units
        if self.holders:
            self.ledger.stored += change
        else:
            self.line.outside += change
        self.ledger.grow(change)

    def enter(self) -> None:
        """Note that a store, or a launched operation, holds it."""
        self.holders += 1
        if self.holders == 1:
            self.ledger.stored += self.units
            self.line.outside -= self.units

    def leave(self) -> None:
        """Note that a store, or a launched operation, holds it no longer."""
        self.holders -= 1
        if not self.holders:
            self.ledger.stored -= self.units
            self.line.outside += self.units

    def overwrite(self, overwrite: Overwrite) -> None:
        """Note that the buffer and its views have another content from now on; their owners are out of date."""
        self._outdate_owner()
        self._replace_content(overwrite)

    def _replace_content(self, overwrite: Overwrite) -> None:
        """Note another content, whose owner is known; views have another content too."""
        self.version = overwrite
        if self.views is not None:
            for view in self._living_views():
                Origin.overwrite(view, overwrite)  # not the view's own method, which would overwrite the whole in turn

    def overwrite_shard(self, overwrite: Overwrite, place: tuple[int, int]) -> None:
        """Note that one of its views was overwritten, so that the whole has partly new content."""
        self._outdate_owner()
        self.version = PartialOverwrite(overwrite, self.version, place)

    def _outdate_owner(self) -> None:
        """Note that the owner is not up to date any more."""
        if self.usable_by is not None:
            self.outdated_version = self.version
            self.usable_by = None

    def begin_overwrite(self, owner: Any, overwrite: Overwrite) -> None:
        """Note that an operation begins to overwrite the owner; `set_owner` is called with its result."""
        owner._origin = Alias(self, self.fields, self.step, self.version)
        self._replace_content(overwrite)

    def set_owner(self, result: Any, fields: Fields, step: int | None) -> None:
        """Make the result of an in-place operation the owner after `begin_overwrite`.

        If the tensor that was overwritten only shared the buffer with its owner, that owner is out of date now, and the
        result gets an alias.
        """
        if self.usable_by is None:
            result._origin = Alias(self, fields, step, self.version)
        else:
            self.fields = fields
            self.step = step
            result._origin = self

    def add_in_place(self, owner: Any, result: Any, fields: Fields) -> None:
        """Make the sum that `+` has written into the owner the next owner; the tensor before stays usable."""
        owner._origin = Alias(self, self.fields, self.step, self.version)
        self.set_owner(result, fields, self.step)

    def make_view(self, result: Any, fields: Fields, step: int | None, line: Line) -> None:
        """Make a shard that was just cut from the tensor a view of the buffer: the same view for the same shard."""
        if isinstance(self, View) and self.whole is not None:  # the only shard of a whole is the whole
            whole = self.whole()
            if whole is not None:
                whole.make_view(result, fields, step, line)
                return
        place = _place_of(result)
        if self.views is None:
            self.views = {}
        elif not len(self.views) & (len(self.views) - 1):  # at 2**n views: drop dead ones
            self.views = {of: found for of, found in self.views.items() if found() is not None}
        found = self.views.get(place)
        known = None if found is None else found()
        if known is not None:
            result._origin = Alias(known, fields, step, known.version)
            return
        result._origin = view = View(self, place, self.ledger.units_of(result), fields, step, line)
        self.views[place] = ref(view)


class View(Origin):
    """The buffer of a shard of a whole tensor: part of the whole's while that lives, then a buffer like any other.

    Args:
        whole: what it is cut from.
        place: (shard, num_shards).
        units: how much it holds once the whole is gone.
        fields: the values of its owner's fields.
        step: the step of the weights that the owner was computed with, or None.
        line: what made it.
    """

    __slots__ = ("place", "size", "whole")

    def __init__(
        self, whole: Origin, place: tuple[int, int], units: int, fields: Fields, step: int | None, line: Line
    ) -> None:
        super().__init__(whole.ledger, 0, fields, step, line)
        version = whole.version
        is_kept = isinstance(version, PartialOverwrite) and version.keeps(*place, version.before)
        self.version = version.before if is_kept else version  # type: ignore[union-attr]  # a partial one has it
        self.place = place
        self.size = units
        self.whole: ReferenceType[Origin] | None = ref(whole)

    def begin_overwrite(self, owner: Any, overwrite: Overwrite) -> None:
        """Note that an operation begins to overwrite the owner, and with it a part of the whole."""
        super().begin_overwrite(owner, overwrite)
        self._overwrite_shard_of_whole(overwrite)

    def overwrite(self, overwrite: Overwrite) -> None:
        """Note that it has another content from now on, and so has a part of the whole."""
        super().overwrite(overwrite)
        self._overwrite_shard_of_whole(overwrite)

    def _overwrite_shard_of_whole(self, overwrite: Overwrite) -> None:
        """Note that a part of the whole was overwritten, if the whole still lives."""
        whole = None if self.whole is None else self.whole()
        if whole is not None:
            whole.overwrite_shard(overwrite, self.place)

    def resize(self, units: int) -> None:
        """Count for itself from now on, as it stands for more than a part of the whole."""
        self.whole = None
        super().resize(units)

    def outlive_whole(self) -> None:
        """Count for itself from now on, as the whole is gone."""
        if self.whole is not None:
            self.resize(self.size)


class Alias(_InSlot):
    """What stands in the slot of a tensor whose buffer has another owner: it shares the buffer, or was overwritten.

    Args:
        buffer: what it occupies.
        fields: the values of its fields.
        step: the step of the weights that it was computed with, or None.
        tensor_version: the version of the buffer when the tensor was made.
    """

    __slots__ = ("buffer", "fields", "step", "tensor_version")

    usable_by: ClassVar[None] = None  # type: ignore[misc]  # of all of them, so that `is_valid` is asked

    def __init__(self, buffer: Origin, fields: Fields, step: int | None, tensor_version: Overwrite | None) -> None:
        self.buffer = buffer
        self.fields = fields
        self.step = step
        self.tensor_version = tensor_version

    def is_valid(self, ledger: Ledger, fields: Fields, whatever_version: bool) -> bool:
        """Return whether a ledger's rank may use the tensor, which has these fields now."""
        return (
            self.buffer.ledger is ledger
            and (whatever_version or self.tensor_version is self.buffer.version)
            and self.fields == fields
        )

    def begin_overwrite(self, tensor: Any, overwrite: Overwrite) -> None:  # noqa: ARG002  (as an Origin's)
        """Note that an operation overwrites the buffer."""
        self.buffer.overwrite(overwrite)

    def add_in_place(self, owner: Any, result: Any, fields: Fields) -> None:  # noqa: ARG002  (as an Origin's)
        """Let a sum share the buffer too."""
        result._origin = Alias(self.buffer, fields, self.step, self.tensor_version)


@dataclass(slots=True, eq=False)
class Unusable(_InSlot):
    """What stands in the slot of a tensor that must not be used although it looks right, and occupies nothing.

    Args:
        reason: why, as the error message says it after the tensor's description.
        ledger: that of the rank which may do with it what the reason says, if any.
        step: the step of the tensor that it is a copy of.
        fields: what it said when it was made.
        line: the line that made what it is a copy of.
    """

    reason: str
    ledger: Ledger | None = None
    step: int | None = None
    fields: Fields = ()
    line: Line | None = None

    usable_by: ClassVar[None] = None  # type: ignore[misc]  # of all of them
    buffer: ClassVar[None] = None  # type: ignore[misc]

    def why_invalid(self, ledger: Ledger, value: Any) -> str:  # noqa: ARG002
        """Return why the tensor cannot be used."""
        return self.reason

    def derive(self, result: Any, how: str, parent: Any, other: Any) -> None:  # noqa: ARG002  (as an Origin's)
        """Mark a tensor made of this one as unusable too."""
        result._origin = self


def derive(origin: Any, result: Any, how: str, parent: Any, other: Any) -> None:
    """Follow a tensor that a strategy itself makes of one or two others.

    Args:
        origin: the first tensor's.
        result: the new tensor.
        how: "+", "combine" or "shard".
        parent: the first tensor.
        other: the second tensor, or None.

    Raises:
        LawError: a tensor is not valid, or the two must not be put together.
    """
    buffer = origin.buffer
    ledger = buffer.ledger
    fields = FIELDS[result.__class__](result)
    if how == "shard":
        _require_valid_whole(origin, result, parent)
        buffer.make_view(result, fields, origin.step, ledger.lines.calling())
        return
    laws.require_valid(ledger, how, (parent, other))
    if other._origin.step != origin.step:
        raise laws.different_steps(ledger.rank, how, parent, other)
    if how == "combine":  # a copy, with a buffer of its own
        line = ledger.lines.calling()
        result._origin = Origin(ledger, ledger.units_of(result), fields, origin.step, line)
        return
    if not isinstance(parent, PARTIAL) and num_summed(result) != num_summed(parent) + num_summed(other):
        raise laws.counted_twice(ledger.rank, parent, other)
    origin.add_in_place(parent, result, fields)


def _require_valid_whole(origin: Any, shard: Any, whole: Any) -> None:
    """Require a valid tensor to cut a shard from; other shards of it may have been overwritten since."""
    ledger, version = origin.buffer.ledger, origin.buffer.version
    if origin.usable_by is ledger and origin.fields == FIELDS[whole.__class__](whole):
        return
    is_kept = version is not None and version.keeps(*_place_of(shard), origin.tensor_version)
    laws.require_valid(ledger, "shard", (whole,), whatever_version=is_kept)


def _place_of(shard: Any) -> tuple[int, int]:
    """Return which shard of how many a tensor is, of what it was cut from."""
    sequence = shard.sequence
    held, count = sequence.pieces, sequence.num_pieces
    if isinstance(shard, Sharded):
        held, count = shard.shards, shard.num_shards
    (number,) = held
    return number, count
