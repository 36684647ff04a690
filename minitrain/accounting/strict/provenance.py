"""Where a valid tensor came from, what it was then, and what it occupies: kept in a hidden slot of the tensor.

A tensor that comes out of an operation gets an `Origin`, which is also its buffer on the device. `update`, the
reductions and `+` work in place: the result takes over the origin, and the old tensor keeps an `Alias` of it. So each
origin stands in the slot of at most one tensor, its owner; other tensors that share the buffer have an alias. Neither
refers to a tensor, so that both die with theirs. The buffer lives as long as any tensor refers to it, in whatever
variable, closure or container that tensor is, and it counts once.

A shard cut from a whole tensor is a view of the whole's buffer. It counts nothing while the whole lives, and for itself
afterwards.

What a strategy itself makes of tensors, by `+`, `combine` and `shard`, is followed by `derive`.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import ReferenceType, ref

from minitrain.accounting.strict.buffers import Buffer, Overwrite, PartialOverwrite
from minitrain.accounting.strict.laws import (
    Fields,
    alteration,
    counted_twice,
    different_steps,
    is_surely_valid,
    require_valid,
)
from minitrain.accounting.strict.ledger import Ledger, Line
from minitrain.tensors import FIELDS, Sharded
from minitrain.tensors.placed import PARTIAL, num_summed


class Origin(Buffer):
    """The origin of a valid tensor of a rank, and its buffer.

    `new_origin` makes them.

    Attributes:
        fields: the values of its owner's fields.
        step: the step of the weights that the owner was computed with; None for a weight, a state and an input.
    """

    __slots__ = ("fields", "step")

    fields: Fields
    step: int | None

    @property
    def buffer(self) -> Origin:
        """What its owner occupies."""
        return self

    def is_valid(self, ledger: Ledger, fields: Fields, whatever_version: bool) -> bool:
        """Return whether a ledger's rank may use the owner, which has these fields now."""
        return self.ledger is ledger and (whatever_version or self.usable_by is not None) and self.fields == fields

    def why_invalid(self, ledger: Ledger, value: Any) -> str:
        """Return why its owner cannot be used."""
        return _why_invalid(self, self.fields, ledger, value)

    def replace_owner(self, old: Any, new: Any, fields: Fields, step: int | None, overwrite: Overwrite) -> None:
        """Make the result of an in-place operation the owner, in place of the tensor that it overwrites."""
        old._origin = Alias(self, self.fields, self.step, self.version)
        self.fields = fields
        self.step = step
        new._origin = self
        self.version = overwrite
        if self.views is not None:
            self._overwrite_views(overwrite)

    def begin_overwrite(self, owner: Any, overwrite: Overwrite) -> None:
        """Note that an operation begins to overwrite the owner; `set_owner` is called with its result."""
        owner._origin = Alias(self, self.fields, self.step, self.version)
        self.version = overwrite
        if self.views is not None:
            self._overwrite_views(overwrite)

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

    def derive(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Follow a tensor that the strategy makes of this one by `+`, `combine` or `shard`; see `derive`."""
        derive(self, result, how, parent, other)


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
        self,
        whole: Origin,
        place: tuple[int, int],
        units: int,
        fields: Fields,
        step: int | None,
        line: Line,
    ) -> None:
        self.ledger = self.usable_by = whole.ledger
        self.units = 0
        self.line = line
        self.fields = fields
        self.step = step
        self.holders = 0
        version = whole.version
        is_kept = isinstance(version, PartialOverwrite) and version.keeps(*place, version.before)
        self.version = version.before if is_kept else version  # type: ignore[union-attr]  # a partial one has it
        self.views = None
        self.place = place
        self.size = units
        self.whole: ReferenceType[Origin] | None = ref(whole)

    def replace_owner(self, old: Any, new: Any, fields: Fields, step: int | None, overwrite: Overwrite) -> None:
        """Make a result the owner; a part of the whole is overwritten."""
        super().replace_owner(old, new, fields, step, overwrite)
        self._overwrite_shard_of_whole(overwrite)

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
        if self.whole is None:
            return
        self.whole = None
        self.units = units = self.size
        if self.holders:
            self.ledger.stored += units
        else:
            self.line.outside += units
        self.ledger.grow(units)


class Alias:
    """What stands in the slot of a tensor whose buffer has another owner: it shares the buffer, or was overwritten.

    Args:
        buffer: what it occupies.
        fields: the values of its fields.
        step: the step of the weights that it was computed with, or None.
        tensor_version: the version of the buffer when the tensor was made.
    """

    __slots__ = ("buffer", "fields", "step", "tensor_version")

    usable_by: ClassVar[None] = None  # so that `is_valid` is asked

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

    def why_invalid(self, ledger: Ledger, value: Any) -> str:
        """Return why the tensor cannot be used."""
        return _why_invalid(self.buffer, self.fields, ledger, value)

    def replace_owner(self, old: Any, new: Any, fields: Fields, step: int | None, overwrite: Overwrite) -> None:
        """Let a result share the buffer that it overwrote."""
        self.begin_overwrite(old, overwrite)
        self.buffer.set_owner(new, fields, step)

    def begin_overwrite(self, tensor: Any, overwrite: Overwrite) -> None:  # noqa: ARG002  (as an Origin's)
        """Note that an operation overwrites the buffer."""
        self.buffer.overwrite(overwrite)

    def add_in_place(self, owner: Any, result: Any, fields: Fields) -> None:  # noqa: ARG002  (as an Origin's)
        """Let a sum share the buffer too."""
        result._origin = Alias(self.buffer, fields, self.step, self.tensor_version)

    def derive(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Follow a tensor that the strategy makes of this one by `+`, `combine` or `shard`; see `derive`."""
        derive(self, result, how, parent, other)


def new_origin(ledger: Ledger, units: int, fields: Fields, step: int | None, line: Line) -> Origin:
    """Return the origin of a tensor that has just come out of an operation, which counts as memory from now on.

    Args:
        ledger: the rank's.
        units: how much the tensor holds, in units.
        fields: the values of its fields.
        step: the step of the weights that it was computed with; None for a weight, a state and an input.
        line: what made it.
    """
    origin = Origin()  # without `__init__`, which would take as long as all of this
    origin.ledger = origin.usable_by = ledger
    origin.units = units
    origin.line = line
    origin.fields = fields
    origin.step = step
    origin.holders = 0
    origin.version = None
    origin.views = None
    line.outside += units
    ledger.units = total = ledger.units + units
    if total > ledger.peak_units:
        ledger.peak_units = total
        if total > ledger.limit_units:
            ledger.overflow()
    return origin


def _why_invalid(buffer: Origin, fields: Fields, ledger: Ledger, value: Any) -> str:
    """Return why a tensor cannot be used."""
    if buffer.ledger is not ledger:
        return (
            f"belongs to rank {buffer.ledger.rank}, which made it at {buffer.line}; send and receive it, or use a "
            "collective"
        )
    if fields != FIELDS[type(value)](value):
        return alteration(value, fields, buffer.line)
    return f"(made at {buffer.line}) was overwritten by {buffer.version}, which works in place; use its result"


def derive(origin: Origin | Alias, result: Any, how: str, parent: Any, other: Any) -> None:
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
        buffer.make_view(result, fields, origin.step, ledger.line())
        return
    if not (is_surely_valid(ledger, parent) and is_surely_valid(ledger, other)):
        require_valid(ledger, how, (parent, other))
    if other._origin.step != origin.step:
        raise different_steps(ledger.rank, how, parent, other)
    if how == "combine":  # a copy, with a buffer of its own
        result._origin = new_origin(ledger, ledger.units_of(result), fields, origin.step, ledger.line())
        return
    if not isinstance(parent, PARTIAL) and num_summed(result) != num_summed(parent) + num_summed(other):
        raise counted_twice(ledger.rank, parent, other)
    origin.add_in_place(parent, result, fields)


def _require_valid_whole(origin: Origin | Alias, shard: Any, whole: Any) -> None:
    """Require a valid tensor to cut a shard from; other shards of it may have been overwritten since."""
    ledger, version = origin.buffer.ledger, origin.buffer.version
    if not is_surely_valid(ledger, whole):
        is_kept = version is not None and version.keeps(*_place_of(shard), origin.tensor_version)
        require_valid(ledger, "shard", (whole,), whatever_version=is_kept)


def _place_of(shard: Any) -> tuple[int, int]:
    """Return which shard of how many a tensor is, of what it was cut from."""
    sequence = shard.sequence
    held, count = sequence.pieces, sequence.num_pieces
    if isinstance(shard, Sharded):
        held, count = shard.shards, shard.num_shards
    (number,) = held
    return number, count
