"""Process groups: who takes part in a collective, and a mesh that names them by axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, overload

from minitrain.engine.transport.protocol import ProcessGroup
from minitrain.errors import UsageError


class Group:
    """Some ranks that communicate among themselves, as one of them sees it.

    Attributes:
        ranks: the members in ascending order, each once.
        size: number of members.
        index: the place of this rank among them: its shard index.
    """

    __slots__ = ("communicator", "index", "rank", "stream")

    def __init__(self, communicator: ProcessGroup, rank: int) -> None:
        self.communicator = communicator
        self.rank = rank
        self.index = communicator.index_of(rank)
        self.stream = communicator.stream

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members in ascending order."""
        return self.communicator.ranks

    @property
    def size(self) -> int:
        """Number of members."""
        return self.communicator.size

    def __repr__(self) -> str:
        return f"Group(ranks={self.ranks}, index={self.index})"


class Mesh:
    """The ranks of a run laid out on named axes, last axis fastest, as one rank sees them.

    Args:
        rank: this rank.
        axes: size of each axis, in order.
        group_of: returns this rank's group from its lowest rank and the strides and sizes of its axes.
    """

    def __init__(
        self, rank: int, axes: Mapping[str, int], group_of: Callable[[int, tuple[tuple[int, int], ...]], Group]
    ) -> None:
        self._rank = rank
        self.axes = dict(axes)
        self._group_of = group_of
        self._strides: dict[str, int] = {}
        stride = 1
        for axis, size in reversed(self.axes.items()):
            self._strides[axis] = stride
            stride *= size

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    def size(self, axis: str) -> int:
        """Return the number of ranks along an axis."""
        self._require(axis)
        return self.axes[axis]

    def coord(self, axis: str) -> int:
        """Return this rank's place along an axis, 0 to size - 1."""
        self._require(axis)
        return self._rank // self._strides[axis] % self.axes[axis]

    def group(self, *axes: str) -> Group:
        """Return the group of ranks that differ from this one along the given axes alone."""
        lowest, spans = self._rank, []
        for axis in dict.fromkeys(axes):
            lowest -= self.coord(axis) * self._strides[axis]
            spans.append((self._strides[axis], self.axes[axis]))
        return self._group_of(lowest, tuple(spans))

    @overload
    def peer(self, axis: str, offset: int, *, wrap: Literal[True]) -> int: ...
    @overload
    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> int | None: ...
    def peer(self, axis: str, offset: int, *, wrap: bool = False) -> int | None:
        """Return the rank `offset` places further along an axis, or None beyond its end unless it wraps."""
        size, coord = self.size(axis), self.coord(axis)
        place = coord + offset
        if wrap:
            place %= size
        if not 0 <= place < size:
            return None
        return self._rank + (place - coord) * self._strides[axis]

    def _require(self, axis: str) -> None:
        """Raise a UsageError for an axis that the mesh does not have."""
        if axis not in self.axes:
            raise UsageError(f"the mesh has no axis {axis!r}; its axes are {', '.join(self.axes)}", axis=axis)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.axes.items())}, rank={self._rank})"


def require_axes(axes: Mapping[str, int], world_size: int) -> None:
    """Raise a UsageError unless the axes are positive counts whose product is world_size."""
    for axis, size in axes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"axis {axis} of a mesh must be an integer of at least 1, got {size!r}")
    product = math.prod(axes.values())
    if product != world_size:
        shape = " x ".join(f"{axis}={size}" for axis, size in axes.items()) or "no axes"
        raise UsageError(
            f"the product of a mesh's axes must be world_size ({world_size}), got {shape} = {product}",
            axes=dict(axes),
            world_size=world_size,
        )
