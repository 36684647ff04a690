"""What the configurations of a sweep tell the next ones: which ways of folding did not hold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any


class Parted:
    """The ways of folding in which ranks of a strategy have parted; whoever simulates several keeps one for them.

    It is a guess at what the next attempt comes to, which is then rehearsed (`minitrain.folding.rehearsal`) and not
    believed: it changes how long a run takes, and nothing else. So a key may leave out whatever varies in a sweep.
    """

    def __init__(self) -> None:
        self._ways: set[Hashable] = set()

    def is_likely(self, way: Hashable) -> bool:
        """Return whether ranks parted the last time."""
        return way in self._ways

    def note(self, way: Hashable, *, parted: bool) -> None:
        """Remember whether ranks parted."""
        if parted:
            self._ways.add(way)
        else:
            self._ways.discard(way)


def way_of(name: str, options: Mapping[str, Any], axes: Mapping[str, int], kept: frozenset[str]) -> Hashable:
    """Return what tells ways of folding apart.

    Args:
        name: the strategy's.
        options: its options, which shape its mesh.
        axes: size of each axis.
        kept: axes whose positions are classes of their own.
    """
    return name, repr(options), tuple(axes.items()), kept
