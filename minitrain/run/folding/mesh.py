"""Groups and meshes as the ranks of a class see them.

The check that what a class's ranks do together costs the same for all of them, on a network of tiers.

The groups of a class are copies of one another at equal distances, as are its pairs of sender and receiver. Copies that
lie alike in nodes cost the same, and few of them lie differently (`RankNodes.one_of_each_shape`). One of
each is priced. Where prices differ, so do the ranks' clocks: the ranks diverge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Any

from minitrain.engine.protocol import Group, Mesh
from minitrain.machine.price import decide
from minitrain.machine.topology import RankNodes
from minitrain.operations import COMM, Stream
from minitrain.run.folding.attempt import FoldAttempt, in_engine
from minitrain.run.folding.per_rank_values import PerRankInt, per_rank


def require_same_price(
    attempt: FoldAttempt,
    nodes: RankNodes,
    what: str,
    shapes: Sequence[Sequence[int]],
    axes: frozenset[str],
    price: Callable[[Any, Sequence[int]], Any],
    predictor: Any = None,
) -> None:
    """Require that groups cost the same.

    Args:
        attempt: how ranks are folded.
        nodes: where ranks sit.
        what: what the groups do, for the message.
        shapes: the groups, that of the class's lowest rank first.
        axes: those along which the members of a group differ.
        price: what a group pays by a predictor.
        predictor: what prices the groups; None where places alone decide.

    Raises:
        DivergesError: they do not.
    """
    across = _steps_across(attempt, axes)
    copies = {axis: nodes.one_of_each_shape(shapes[0], [step])[1:] for axis, step in across.items()}
    groups = [*shapes, *chain.from_iterable(copies.values())]

    def prices_on(machine: Any) -> list[Any]:
        return [price(machine, group) for group in groups]

    def unequal(prices: Sequence[Any]) -> tuple[str, ...] | None:
        """Return along which axes prices differ; None where they nowhere do."""
        if all(other == prices[0] for other in prices[: len(shapes)]):
            return None
        along = [axis for axis, others in copies.items() for _ in others]
        found = zip(along, prices[len(shapes) :], strict=True)
        return tuple(dict.fromkeys(axis for axis, other in found if other != prices[0]))

    apart = decide(predictor, prices_on, unequal)
    if apart is None:
        return
    attempt.prices_differ = True
    attempt.diverge(f"{what}, which crosses nodes on some ranks only,", frozenset(apart or across))


def _steps_across(attempt: FoldAttempt, axes: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Return distance and number of places on each folded axis but some."""
    return {axis: (attempt.strides[axis], size) for axis, size in attempt.folded_sizes.items() if axis not in axes}


def _members(attempt: FoldAttempt, rank: int, axes: frozenset[str]) -> Sequence[int]:
    """Return the group of a class's lowest rank along folded axes: a range where it has equal distances."""
    sizes = {attempt.strides[axis]: attempt.axes[axis] for axis in axes}
    step, count = min(sizes, default=1), 1
    while step * count in sizes:
        count *= sizes.pop(step * count)
    group: Sequence[int] = range(rank, rank + step * count, step)
    for stride in sorted(sizes):
        group = tuple(member + stride * place for place in range(sizes[stride]) for member in group)
    return group


class FoldedCommunicator:
    """What pricing reads of a group: its ranks, and when its stream is free.

    Args:
        shapes: a group for each way in which the groups of a class lie in the network, that of the lowest rank first.
        is_world: whether it holds all ranks.
    """

    __slots__ = ("busy_until", "is_world", "ranks", "shapes", "size")

    def __init__(self, shapes: Sequence[Sequence[int]], *, is_world: bool) -> None:
        self.shapes = shapes
        self.ranks = shapes[0]
        self.size = len(self.ranks)
        self.is_world = is_world
        self.busy_until = 0.0


class FoldedGroup(Group):
    """The groups along some axes, one for each rank of a class.

    Args:
        attempt: how ranks are folded.
        axes: those along which its ranks differ, each of more than one rank.
        rank: the class's lowest rank.
        nodes: where ranks sit; None on a flat network, which reads the number of ranks alone.

    Attributes:
        kept: those of its axes along which classes differ.
    """

    __slots__ = ("_index", "_stream", "attempt", "axes", "kept", "lowest_rank")

    def __init__(self, attempt: FoldAttempt, axes: frozenset[str], rank: int, nodes: RankNodes | None = None) -> None:
        self.attempt = attempt
        self.axes = axes
        self.kept = axes & attempt.kept
        self.lowest_rank = rank
        size = prod(attempt.axes[axis] for axis in axes)
        is_world = size == attempt.world_size
        shapes: Sequence[Sequence[int]] = [range(size)]
        if nodes is not None:
            members, across = _members(attempt, self.lowest_class(), axes), _steps_across(attempt, axes)
            shapes = nodes.one_of_each_shape(members, across.values())
        self.communicator: Any = FoldedCommunicator(shapes, is_world=is_world)
        self._index = self._indices()
        self._stream = _stream(attempt, self.lowest_class(), axes, is_world=is_world)

    def lowest_class(self) -> int:
        """Return the lowest rank of the lowest class that the groups have members of."""
        strides, axes = self.attempt.strides, self.attempt.axes
        return self.lowest_rank - sum(
            self.lowest_rank // strides[axis] % axes[axis] * strides[axis] for axis in self.kept
        )

    def _indices(self) -> Any:
        """Return the place of each rank among its group's members."""
        index, stride, slopes = 0, 1, {}
        for axis, size in reversed(self.attempt.axes.items()):
            if axis in self.axes:
                index += self.lowest_rank // self.attempt.strides[axis] % size * stride
                slopes[axis] = stride
                stride *= size
        return per_rank(self.attempt, index, slopes)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Distance and number of the classes that meet, along each axis."""
        return tuple((self.attempt.strides[axis], self.attempt.axes[axis]) for axis in sorted(self.kept))

    @property
    def rank(self) -> Any:  # type: ignore[override]
        """The rank whose group it is, a number for each rank of the class."""
        return per_rank(self.attempt, self.lowest_rank, self.attempt.strides)

    @property
    def index(self) -> Any:  # type: ignore[override]
        """The place of each rank among its group's members."""
        return self._index

    @property
    def ranks(self) -> Any:
        """The members, where they are the same for all ranks."""
        self._require_same("the ranks of a group")
        return tuple(members_along(self.attempt, self.lowest_rank, self.axes))

    @property
    def stream(self) -> Stream:  # type: ignore[override]
        """The stream of the lowest rank's group."""
        self._require_same("the stream of a group")
        return self._stream

    def _require_same(self, what: str) -> None:
        """Refuse to tell the strategy what differs between ranks."""
        if not self.axes.issuperset(self.attempt.folded_sizes) and not in_engine(3):
            self.attempt.diverge(f"{what} that differs between ranks")

    def __repr__(self) -> str:
        self._require_same("the text of a group")
        return f"Group({self.size} ranks)"


class GroupOfEnds(FoldedGroup):
    """The first and the last rank along a kept axis, such as a pipeline's: one such group for each rank of a class."""

    __slots__ = ()

    def __init__(self, attempt: FoldAttempt, axis: str, rank: int, nodes: RankNodes | None = None) -> None:
        self.attempt = attempt
        self.axes = self.kept = frozenset([axis])
        self.lowest_rank = rank
        ends = ends_along(attempt, rank, axis)
        across = _steps_across(attempt, self.axes).values()
        shapes = [range(2)] if nodes is None else nodes.one_of_each_shape(ends, across)
        self.communicator = FoldedCommunicator(shapes, is_world=False)
        self._index = ends.index(rank)
        self._stream = attempt.streams.setdefault((ends[0], frozenset([axis, ENDS])), Stream(COMM, ends))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Distance of the classes that meet, and their number."""
        first, last = ends_along(self.attempt, self.lowest_rank, *self.axes)
        return ((last - first, 2),)

    @property
    def ranks(self) -> Any:
        """The members, where they are the same for all ranks."""
        self._require_same("the ranks of a group")
        return ends_along(self.attempt, self.lowest_rank, *self.axes)


def _stream(attempt: FoldAttempt, lowest_rank: int, axes: frozenset[str], *, is_world: bool) -> Stream:
    """Return the stream of the group along some axes; classes whose lowest ranks are in one group share it."""
    key = lowest_rank, axes
    if key not in attempt.streams:
        attempt.streams[key] = Stream(COMM, None if is_world else tuple(members_along(attempt, lowest_rank, axes)))
    return attempt.streams[key]


class FoldedMesh(Mesh):
    """The ranks on named axes, as the ranks of a class see them."""

    def __init__(self, attempt: FoldAttempt, rank: int, groups: Any) -> None:
        super().__init__(rank, attempt.mesh_axes, groups)
        self.attempt = attempt
        self._groups = groups

    @property
    def rank(self) -> Any:
        """A number for each rank of the class."""
        return per_rank(self.attempt, self._rank, self.attempt.strides)

    def coord(self, axis: str) -> Any:
        """Return the rank's place along an axis: a number where positions are kept."""
        lowest, stride = super().coord(axis), self._strides[axis]
        return per_rank(
            self.attempt, lowest, {part: self.attempt.strides[part] // stride for part in self.attempt.parts[axis]}
        )

    def group(self, *axes: str) -> Group:
        """Return the group of ranks that differ from this one along the given axes alone."""
        for axis in axes:
            self._require(axis)
        return self._groups(part for axis in axes for part in self.attempt.parts[axis])  # type: ignore[no-any-return]

    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> Any:
        """Return the rank `offset` places further along an axis; folded ranks have no peers of their own there."""
        if offset and not self.attempt.folded_sizes.keys().isdisjoint(self.attempt.parts.get(axis, ())):
            self.attempt.diverge(f"a peer along the axis {axis}", frozenset([axis]))
        found = super().peer(axis, offset, wrap=wrap)
        return None if found is None else per_rank(self.attempt, found, self.attempt.strides)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.axes.items())})"


def axes_along(attempt: FoldAttempt, rank: int, members: Sequence[Any]) -> frozenset[str] | None:
    """Return the axes along which the ranks of a group differ; None where it is not made of all ranks along some axes.

    Args:
        attempt: how ranks are folded.
        rank: the class's lowest rank.
        members: the group's ranks, each an int, or a number for each rank of the class.
    """
    consts = {member.const if isinstance(member, PerRankInt) else member for member in members}
    if not consts or not all(isinstance(const, int) and 0 <= const < attempt.world_size for const in consts):
        return None
    found = frozenset(
        axis
        for axis, size in attempt.axes.items()
        if len({const // attempt.strides[axis] % size for const in consts}) > 1
    )
    is_found = sorted(consts) == sorted(members_along(attempt, rank, found))
    return found if is_found and _move_with(attempt, members, found) else None


def _move_with(attempt: FoldAttempt, members: Sequence[Any], axes: frozenset[str]) -> bool:
    """Return whether the members of a group are equally far from each rank of a class, but along some axes."""
    slopes = {axis: attempt.strides[axis] for axis in attempt.folded_sizes if axis not in axes}
    return all((member.slopes if isinstance(member, PerRankInt) else {}) == slopes for member in members)


ENDS = "first and last"
"""Marks the axes of a stream that the two ends of a kept one share."""


def axis_of_ends(attempt: FoldAttempt, rank: int, members: Sequence[Any]) -> str | None:
    """Return the kept axis whose first and last rank a group has; None for another one. Args: as of `axes_along`."""
    consts = tuple(member.const if isinstance(member, PerRankInt) else member for member in members)
    axes = (axis for axis in sorted(attempt.kept) if consts == ends_along(attempt, rank, axis))
    return next(axes, None) if _move_with(attempt, members, frozenset()) else None


def ends_along(attempt: FoldAttempt, rank: int, axis: str) -> tuple[int, int]:
    """Return the first and the last rank that differ from one along an axis alone."""
    stride, size = attempt.strides[axis], attempt.axes[axis]
    first = rank - rank // stride % size * stride
    return first, first + stride * (size - 1)


def members_along(attempt: FoldAttempt, rank: int, axes: frozenset[str]) -> list[int]:
    """Return the ranks that differ from one along some axes alone, ascending."""
    ranks = [rank]
    for axis in attempt.axes:
        if axis in axes:
            stride, size = attempt.strides[axis], attempt.axes[axis]
            here = rank // stride % size
            ranks = [other + (place - here) * stride for other in ranks for place in range(size)]
    return ranks
