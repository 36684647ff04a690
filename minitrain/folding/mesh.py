"""Groups and meshes as the ranks of a class see them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from minitrain.events import COMM, Stream
from minitrain.folding.rank_values import Each, Fold, in_engine
from minitrain.transport.groups import Group, Mesh


class FoldedCommunicator:
    """What prices ask of a group: its size, and when its stream is free. All groups of a class are alike."""

    __slots__ = ("busy_until", "is_world", "ranks", "size")

    def __init__(self, size: int, *, is_world: bool) -> None:
        self.size = size
        self.is_world = is_world
        self.ranks = range(size)  # a flat network knows their number alone
        self.busy_until = 0.0


class FoldedGroup(Group):
    """The groups along some axes, one for each rank of a class.

    Args:
        fold: the attempt.
        axes: those along which its ranks differ, each of more than one rank.
        rank: the class's lowest rank.

    Attributes:
        kept: those of its axes along which classes differ.
    """

    __slots__ = ("_each_index", "_lowest", "_stream", "axes", "fold", "kept")

    def __init__(self, fold: Fold, axes: frozenset[str], rank: int) -> None:
        self.fold = fold
        self.axes = axes
        self.kept = axes & fold.kept
        self._lowest = rank
        size = prod(fold.axes[axis] for axis in axes)
        is_world = size == fold.world_size
        self.communicator: Any = FoldedCommunicator(size, is_world=is_world)
        self._each_index = self._indices()
        self._stream = Stream(COMM, None if is_world else tuple(self._members()))

    def _indices(self) -> Any:
        """Return the place of each rank among its group's members."""
        index, stride, slopes = 0, 1, {}
        for axis, size in reversed(self.fold.axes.items()):
            if axis in self.axes:
                index += self._lowest // self.fold.strides[axis] % size * stride
                slopes[axis] = stride
                stride *= size
        return self.fold.each(index, slopes)

    def _members(self) -> list[int]:
        """Return the members of the lowest rank's group, ascending."""
        return members_along(self.fold, self._lowest, self.axes)

    @property
    def rank(self) -> Any:  # type: ignore[override]
        """The rank whose group it is: a number to the engine, one number each to the strategy."""
        return self._lowest if in_engine() else self.fold.each(self._lowest, self.fold.strides)

    @property
    def index(self) -> Any:  # type: ignore[override]
        """The place of each rank among its group's members."""
        return self._each_index

    @property
    def ranks(self) -> Any:
        """The members, where they are the same for all ranks."""
        self._require_same("the ranks of a group")
        return tuple(self._members())

    @property
    def stream(self) -> Stream:  # type: ignore[override]
        """The stream of the lowest rank's group."""
        self._require_same("the stream of a group")
        return self._stream

    def _require_same(self, what: str) -> None:
        """Refuse to tell the strategy what differs between ranks."""
        if not self.axes.issuperset(self.fold.sizes) and not in_engine(3):
            self.fold.diverge(f"{what} that differs between ranks")

    def __repr__(self) -> str:
        self._require_same("the text of a group")
        return f"Group({self.size} ranks)"


class FoldedMesh(Mesh):
    """The ranks on named axes, as the ranks of a class see them."""

    def __init__(self, fold: Fold, rank: int, groups: Any) -> None:
        super().__init__(rank, fold.axes, groups)
        self.fold = fold
        self._groups = groups

    @property
    def rank(self) -> Any:
        """The rank: a number to the engine, one number each to the strategy."""
        return self._rank if in_engine() else self.fold.each(self._rank, self.fold.strides)

    @rank.setter
    def rank(self, rank: int) -> None:
        self._rank = rank

    def coord(self, axis: str) -> Any:
        """Return the rank's place along an axis: a number where positions are kept."""
        return self.fold.each(super().coord(axis), {axis: 1})

    def group(self, *axes: str) -> Group:
        """Return the group of ranks that differ from this one along the given axes alone."""
        for axis in axes:
            self._require(axis)
        return self._groups(axes)  # type: ignore[no-any-return]

    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> Any:
        """Return the rank `offset` places further along an axis; on a folded axis nobody can be told apart."""
        if axis in self.fold.sizes and offset:
            self.fold.diverge(f"a peer along the axis {axis}", frozenset([axis]))
        found = super().peer(axis, offset, wrap=wrap)
        return None if found is None else self.fold.each(found, self.fold.strides)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.axes.items())})"


def axes_along(fold: Fold, rank: int, members: Sequence[Any]) -> frozenset[str] | None:
    """Return the axes along which the ranks of a group differ, None where a group is not of all ranks along some axes.

    Args:
        fold: the attempt.
        rank: the class's lowest rank.
        members: the group's ranks, each an int or one number a rank of the class.
    """
    consts = {member.const if isinstance(member, Each) else member for member in members}
    if not consts or not all(isinstance(const, int) and 0 <= const < fold.world_size for const in consts):
        return None
    found = frozenset(
        axis for axis, size in fold.axes.items() if len({const // fold.strides[axis] % size for const in consts}) > 1
    )
    slopes = {axis: fold.strides[axis] for axis in fold.sizes if axis not in found}
    moves_along = all((member.slopes if isinstance(member, Each) else {}) == slopes for member in members)
    return found if moves_along and sorted(consts) == sorted(members_along(fold, rank, found)) else None


def members_along(fold: Fold, rank: int, axes: frozenset[str]) -> list[int]:
    """Return the ranks that differ from one along some axes alone, ascending."""
    ranks = [rank]
    for axis in fold.axes:
        if axis in axes:
            stride, size = fold.strides[axis], fold.axes[axis]
            here = rank // stride % size
            ranks = [other + (place - here) * stride for other in ranks for place in range(size)]
    return ranks
