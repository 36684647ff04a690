"""What is remembered of a genuine tensor, in a hidden slot: where it came from, what it was then, what it occupies.

A tensor that comes out of an operation gets an `Origin`, which is also its buffer on the device. `update`, the
reductions and `+` work in place: the result takes the origin over, and an `Alias` of it stays with the old tensor. So
each origin stands in the slot of one tensor at most, its owner, and what else shares the buffer has an alias. None of
them refers to a tensor, so that they die with theirs: the buffer lives as long as any tensor refers to it, whatever
variable, closure or container holds that tensor, and it counts once.

A shard cut from a whole tensor is a view of the whole's buffer: it counts nothing while that lives, and for itself
afterwards.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import ReferenceType, ref

from minitrain.accounting.strict.buffer import Buffer
from minitrain.accounting.strict.descent import descend
from minitrain.accounting.strict.genuine import FIELDS, alteration
from minitrain.accounting.strict.ledger import Ledger, Line
from minitrain.accounting.strict.written import Torn, Written


class Origin(Buffer):
    """The origin of a genuine tensor of a rank, and its buffer.

    `born` makes them.

    Attributes:
        fields: the values of its owner's fields.
        step: the step of the weights that the owner was computed with; None for a weight, a state and an input.
    """

    __slots__ = ("fields", "step")

    fields: tuple[Any, ...]
    step: int | None

    @property
    def buffer(self) -> Origin:
        """What its owner occupies."""
        return self

    def is_genuine(self, ledger: Ledger, fields: tuple[Any, ...], whatever_version: bool) -> bool:
        """Return whether a ledger's rank may use the owner, which has these fields now."""
        return self.ledger is ledger and (whatever_version or self.usable_by is not None) and self.fields == fields

    def fault(self, ledger: Ledger, value: Any) -> str:
        """Return why its owner cannot be used."""
        return _fault(self, self.fields, ledger, value)

    def hand_over(self, old: Any, new: Any, fields: tuple[Any, ...], step: int | None, written: Written) -> None:
        """Let the result of an operation that works in place take the place of the owner, which it overwrites."""
        old._origin = Alias(self, self.fields, self.step, self.written)
        self.fields = fields
        self.step = step
        new._origin = self
        self.written = written
        if self.views is not None:
            self._outdate_views(written)

    def give_way(self, owner: Any, written: Written) -> None:
        """Note that an operation begins to overwrite the owner; `pass_to` says what comes of it."""
        owner._origin = Alias(self, self.fields, self.step, self.written)
        self.written = written
        if self.views is not None:
            self._outdate_views(written)

    def pass_to(self, result: Any, fields: tuple[Any, ...], step: int | None) -> None:
        """Take the result of an operation for the owner, in place of one that has given way.

        If another owner is left, since what was overwritten only shared the buffer with it, the result shares it too.
        """
        if self.usable_by is None:
            result._origin = Alias(self, fields, step, self.written)
        else:
            self.fields = fields
            self.step = step
            result._origin = self

    def share(self, owner: Any, result: Any, fields: tuple[Any, ...]) -> None:
        """Take a sum that `+` wrote into the owner, which stays usable, for the next owner."""
        owner._origin = Alias(self, self.fields, self.step, self.written)
        self.pass_to(result, fields, self.step)

    def bear(self, result: Any, fields: tuple[Any, ...], step: int | None, line: Line) -> None:
        """Let a tensor that is a copy have a buffer of its own."""
        result._origin = born(self.ledger, self.ledger.units_of(result), fields, step, line)

    def cut(self, result: Any, fields: tuple[Any, ...], step: int | None, line: Line) -> None:
        """Let a shard that has just been cut from the tensor be a view of the buffer: the same one each time."""
        if isinstance(self, View) and self.whole is not None:  # the only shard of a whole is the whole
            whole = self.whole()
            if whole is not None:
                whole.cut(result, fields, step, line)
                return
        (shard,) = result.shards
        place = shard, result.num_shards
        if self.views is None:
            self.views = {}
        elif not len(self.views) & (len(self.views) - 1):  # seldom enough to look at them all, and often enough
            self.views = {of: found for of, found in self.views.items() if found() is not None}
        found = self.views.get(place)
        known = None if found is None else found()
        if known is not None:
            result._origin = Alias(known, fields, step, known.written)
            return
        result._origin = view = View(self, place, self.ledger.units_of(result), fields, step, line)
        self.views[place] = ref(view)

    def descend(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Let a tensor made of the owner by `+`, `combine` or `shard` be genuine too; see `descend`."""
        descend(self, result, how, parent, other)


class View(Origin):
    """A shard of a whole tensor, as long as the whole lives; then a buffer like any other.

    Args:
        whole: what it is cut from.
        place: (shard, num_shards).
        units: how much it holds once it stands for itself.
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
        fields: tuple[Any, ...],
        step: int | None,
        line: Line,
    ) -> None:
        self.ledger = self.usable_by = whole.ledger
        self.units = 0
        self.line = line
        self.fields = fields
        self.step = step
        self.stored = 0
        written = whole.written
        self.written = (
            written.before if isinstance(written, Torn) and written.spares(*place, written.before) else written
        )
        self.views = None
        self.place = place
        self.size = units
        self.whole: ReferenceType[Origin] | None = ref(whole)

    def hand_over(self, old: Any, new: Any, fields: tuple[Any, ...], step: int | None, written: Written) -> None:
        """Let a result take the place of the owner; the whole is not what it was."""
        super().hand_over(old, new, fields, step, written)
        self._tear_whole(written)

    def give_way(self, owner: Any, written: Written) -> None:
        """Note that an operation begins to overwrite the owner, and with it the whole."""
        super().give_way(owner, written)
        self._tear_whole(written)

    def overwrite(self, written: Written) -> None:
        """Note that its content is another one from now on, and so is the whole's."""
        super().overwrite(written)
        self._tear_whole(written)

    def _tear_whole(self, written: Written) -> None:
        """Note that a part of the whole was overwritten, if that lives."""
        whole = None if self.whole is None else self.whole()
        if whole is not None:
            whole.tear(written, self.place)

    def outlive(self) -> None:
        """Stand for itself from now on."""
        self.whole = None
        self.units = units = self.size
        if self.stored:
            self.ledger.stored += units
        else:
            self.line.outside += units
        self.ledger.grow(units)


class Alias:
    """What stands in the slot of a tensor whose buffer has another owner: it shares it, or was overwritten.

    Args:
        buffer: what it occupies.
        fields: the values of its fields.
        step: the step of the weights that it was computed with, or None.
        version: what had overwritten the buffer when the tensor was made.
    """

    __slots__ = ("buffer", "fields", "step", "version")

    usable_by: ClassVar[None] = None  # as far as can be seen at a glance

    def __init__(self, buffer: Origin, fields: tuple[Any, ...], step: int | None, version: Written | None) -> None:
        self.buffer = buffer
        self.fields = fields
        self.step = step
        self.version = version

    def is_genuine(self, ledger: Ledger, fields: tuple[Any, ...], whatever_version: bool) -> bool:
        """Return whether a ledger's rank may use the tensor, which has these fields now."""
        return (
            self.buffer.ledger is ledger
            and (whatever_version or self.version is self.buffer.written)
            and self.fields == fields
        )

    def fault(self, ledger: Ledger, value: Any) -> str:
        """Return why the tensor cannot be used."""
        return _fault(self.buffer, self.fields, ledger, value)

    def hand_over(self, old: Any, new: Any, fields: tuple[Any, ...], step: int | None, written: Written) -> None:
        """Let a result share the buffer that it overwrote."""
        self.give_way(old, written)
        self.buffer.pass_to(new, fields, step)

    def give_way(self, tensor: Any, written: Written) -> None:  # noqa: ARG002  (as an Origin's)
        """Note that an operation overwrites the buffer."""
        self.buffer.overwrite(written)

    def share(self, owner: Any, result: Any, fields: tuple[Any, ...]) -> None:  # noqa: ARG002  (as an Origin's)
        """Let a sum share the buffer too."""
        result._origin = Alias(self.buffer, fields, self.step, self.version)

    def descend(self, result: Any, how: str, parent: Any, other: Any) -> None:
        """Let a tensor made of this one by `+`, `combine` or `shard` be genuine too; see `descend`."""
        descend(self, result, how, parent, other)


def born(ledger: Ledger, units: int, fields: tuple[Any, ...], step: int | None, line: Line) -> Origin:
    """Return the origin of a tensor that has just come out of an operation, which counts from now on.

    Args:
        ledger: the rank's.
        units: how much the tensor holds, in units.
        fields: the values of its fields.
        step: the step of the weights that it was computed with; None for a weight, a state and an input.
        line: what made it.
    """
    origin = Origin()  # written out here: an `__init__` would take as long as all of this
    origin.ledger = origin.usable_by = ledger
    origin.units = units
    origin.line = line
    origin.fields = fields
    origin.step = step
    origin.stored = 0
    origin.written = None
    origin.views = None
    line.outside += units
    ledger.units = total = ledger.units + units
    if total > ledger.peak_units:
        ledger.peak_units = total
        if total > ledger.limit_units:
            ledger.overflow()
    return origin


def _fault(buffer: Origin, fields: tuple[Any, ...], ledger: Ledger, value: Any) -> str:
    """Return why a tensor cannot be used."""
    if buffer.ledger is not ledger:
        return (
            f"belongs to rank {buffer.ledger.rank}, which made it at {buffer.line}; send and receive it, or use a "
            "collective"
        )
    if fields != FIELDS[type(value)](value):
        return alteration(value, fields, buffer.line)
    return f"(made at {buffer.line}) was overwritten by {buffer.written}, which works in place; use its result"
