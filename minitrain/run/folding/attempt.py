"""One attempt at folding: how ranks are laid out on axes, which axes fold, and what the attempt found out.

Ranks lie on named axes, the last one fastest, as on a mesh. Along a folded axis, all ranks belong to one class, and one
rank is simulated for them. Along a kept axis, each position is a class of its own. An attempt ends early when the ranks
of a class would do different things: they *diverge*, on some axes and at a line of the strategy.

Ranks with different devices or shares of the step, where ranks fold: they are not folded together.

Ranks on different kinds of device, or with different numbers of samples, do the same operations at other prices. So
they are classes of their own, along axes that are kept apart as where the network has other prices. Where an axis, also
one of the strategy's own mesh, has equal blocks of ranks that are alike, it is split into the blocks and the places in
a block. Where it has none, every rank is simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, product
from math import gcd, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from minitrain.errors import StrategyError
from minitrain.machine.price import RankPredictors
from minitrain.operations import Stream
from minitrain.source_lines import ENGINE, OWNERS, caller, present_place

if TYPE_CHECKING:
    from minitrain.run.rank_tasks import PreparedRun


class DivergesError(StrategyError):
    """Ranks that should do the same would do different things.

    Attributes:
        is_handled: that the error need not be logged where a sub-task's is lost: the attempt has noted it.
    """

    is_handled = True


def in_engine(depth: int = 2) -> bool:
    """Return whether the function that called the caller is the engine's own."""
    return OWNERS[caller(depth).f_code.co_filename] == ENGINE


NO_SPLIT: Mapping[str, int] = MappingProxyType({})


def split_axis(axis: str, size: int, num_inner: int) -> dict[str, int]:
    """Return an axis in two: blocks of `num_inner` neighbours, and the places in a block; itself where that is all.

    >>> split_axis("dp", 8, 4), split_axis("pp", 2, 2)
    ({'dp//4': 2, 'dp%4': 4}, {'pp': 2})
    """
    return (
        {axis: size}
        if num_inner == size
        else {f"{axis}//{num_inner}": size // num_inner, f"{axis}%{num_inner}": num_inner}
    )


class FoldAttempt:
    """How the ranks of one attempt are folded, and what was found out about the strategy.

    Args:
        axes: size of each axis, the last one fastest.
        kept: axes whose positions are classes of their own.
        apart: those of them along which ranks do the same, but at other prices or on other shards of a sequence.
        may_change_axes: whether the strategy's own mesh, or a division of the rank, may replace the axes. A mesh of the
            strategy's own stays as it is.
        split: axes of that mesh that are laid out in two, with the size of the inner one: blocks of neighbours, whose
            ranks are alike, and the places in a block. The strategy sees one axis.

    Attributes:
        mesh_axes: the axes as the strategy sees them.
        parts: those of each of them: itself, or the two that it is split into.
        folded_sizes: size of each folded axis of more than one rank.
        strides: distance in ranks of neighbours on each axis.
        world_size: number of ranks.
        streams: those of the groups that were asked for, by lowest rank and axes.
        diverged: axes on which ranks diverge, and where; None as long as they do not.
        prices_differ: whether they diverge because the same takes longer on some, by the network, devices or loads.
        needs_every_rank: whether they do not diverge, but the run needs something that only all ranks can give.
        sequences_differ: whether they diverge because ranks that do the same have other shards of a sequence.
        wanted_axes: axes that the strategy asked for and that are not these.
        wants_split: whether it asked for them by dividing its rank, and not by a mesh.
        wanted_split: axes of the strategy's mesh that should be split, as `split`, since their ranks are unlike.
        message_axes: kept axes along which a message went.
        is_observed: whether the strategy has already been shown something that depends on the axes.
        has_adopted_mesh: whether the strategy's own mesh took the place of the axes before that.
        is_over: whether the attempt has ended, so that values may be shown as text.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        kept: frozenset[str],
        apart: frozenset[str] = frozenset(),
        *,
        may_change_axes: bool = False,
        split: Mapping[str, int] = NO_SPLIT,
    ) -> None:
        self.split = split
        self.wanted_split: dict[str, int] = {}
        self.kept = kept
        self.apart = apart
        self.may_change_axes = may_change_axes
        self._lay_out(axes)
        self.diverged: tuple[frozenset[str], str] | None = None
        self.wanted_axes: dict[str, int] | None = None
        self.wants_split = False
        self.message_axes: set[str] = set()
        self.is_observed = self.has_adopted_mesh = self.is_over = False
        self.prices_differ = self.sequences_differ = self.needs_every_rank = False

    def _lay_out(self, axes: Mapping[str, int]) -> None:
        """Lay the ranks out on some axes."""
        self.mesh_axes = dict(axes)
        in_parts = {axis: split_axis(axis, size, self.split.get(axis, size)) for axis, size in axes.items()}
        self.parts = {axis: tuple(parts) for axis, parts in in_parts.items()}
        self.axes = {part: size for parts in in_parts.values() for part, size in parts.items()}
        self.folded_sizes = {axis: size for axis, size in self.axes.items() if size > 1 and axis not in self.kept}
        self.strides: dict[str, int] = {}
        stride = 1
        for axis, size in reversed(self.axes.items()):
            self.strides[axis] = stride
            stride *= size
        self.world_size = stride
        self.streams: dict[tuple[int, frozenset[str]], Stream] = {}

    def adopt_mesh(self, axes: Mapping[str, int]) -> bool:
        """Replace the axes by the strategy's own mesh, if it has seen nothing yet that depends on them.

        That spares an attempt: one that began with these axes would have done the same up to here.

        Returns:
            Whether the axes were replaced.
        """
        if self.is_observed or self.kept or not self.may_change_axes:
            return False
        self._lay_out(axes)
        self.may_change_axes = False
        self.has_adopted_mesh = True
        return True

    def request_split(self, axis: str, num_inner: int) -> None:
        """Ask for axes with one of them in two: blocks of `num_inner` neighbours, and the places in a block."""
        divides = 1 < num_inner < self.axes[axis] and self.axes[axis] % num_inner == 0
        if not self.may_change_axes or self.wanted_axes is not None or not divides:
            return
        self.wanted_axes = {}
        for name, size in self.axes.items():
            self.wanted_axes |= split_axis(name, size, num_inner if name == axis else size)
        self.wants_split = True

    def representatives(self) -> list[int]:
        """Return the lowest rank of each class, ascending."""
        ranks = [0]
        for axis, size in self.axes.items():
            if axis in self.kept:
                ranks = [rank + place * self.strides[axis] for rank in ranks for place in range(size)]
        return ranks

    @property
    def num_ranks_a_class(self) -> int:
        """How many ranks each representative stands for."""
        return prod(self.folded_sizes.values())

    def of_every_rank(self, values: list[Any]) -> list[Any]:
        """Return a value for every rank, from one for each class."""
        chunks = [[value] for value in values]
        for axis, size in reversed(self.axes.items()):
            if axis in self.folded_sizes:
                chunks = [chunk * size for chunk in chunks]
            elif axis in self.kept:
                chunks = [list(chain(*chunks[first : first + size])) for first in range(0, len(chunks), size)]
        return chunks[0]

    def diverge(self, what: str, axes: Mapping[str, Any] | frozenset[str] | None = None) -> NoReturn:
        """Note that ranks diverge here, and raise.

        Args:
            what: what the strategy does, for the message.
            axes: those along which ranks differ; all folded ones by default.

        Raises:
            DivergesError: always; the attempt ends even if the strategy catches it.
        """
        place = f"{what} ({present_place()})"
        if self.diverged is None:
            self.diverged = frozenset(self.folded_sizes if axes is None else axes), place
        raise DivergesError(f"ranks that are folded into one would part ways: {place}")

    def require_text_allowed(self, what: str, axes: Mapping[str, Any] | None = None) -> None:
        """Refuse to show the strategy the text of what differs between ranks; errors may show it afterwards.

        Raises:
            DivergesError: the strategy asked for the text (the caller of the caller of this is not the engine's own).
        """
        if not (self.is_over or in_engine(3)):
            self.diverge(f"the text of {what} that differs between ranks", axes)


Labels = Sequence[Hashable]


def labels_of(prepared: PreparedRun) -> Labels | None:
    """Return what ranks of one class must have in common, for each rank; None where all ranks are alike."""
    world_size = prepared.parameters.world_size
    labels: list[Sequence[Hashable]] = []
    if isinstance(prepared.predictor, RankPredictors):
        labels.append(prepared.predictor.devices)
    shares = prepared.parameters.shares
    for counts in () if shares is None else (shares.samples, shares.microbatch_sizes):
        if counts is not None and len(counts) == world_size:  # a replica is a rank
            labels.append(counts)
    if prepared.entry_clocks is not None and len(set(prepared.entry_clocks)) > 1:
        labels.append(prepared.entry_clocks)
    return list(zip(*labels, strict=True)) if labels else None


def require_alike(attempt: FoldAttempt, rank: int, labels: Labels) -> None:
    """Require that the ranks of a class are alike.

    Args:
        attempt: how ranks are folded.
        rank: the class's lowest rank.
        labels: what they must have in common, for each rank.

    Raises:
        DivergesError: they are not.
    """
    if all(labels[rank + shift] == labels[rank] for shift in _shifts(attempt)):
        return
    axes = frozenset(axis for axis in attempt.folded_sizes if _differ_along(attempt, rank, labels, axis))
    if attempt.may_change_axes and len(attempt.axes) == 1:
        attempt.request_split(next(iter(attempt.axes)), _block(labels))
    elif not attempt.may_change_axes:
        attempt.wanted_split |= {axis: size for axis in axes if (size := _block_along(attempt, labels, axis)) > 1}
    attempt.prices_differ = True
    attempt.diverge("devices or shares that differ between ranks", axes or None)


def classes_are_alike(attempt: FoldAttempt, representatives: Iterable[int], labels: Labels) -> bool:
    """Return whether the ranks of every class are alike; if not, the attempt has noted along which axes."""
    try:
        for rank in representatives:
            require_alike(attempt, rank, labels)
    except DivergesError:
        return False
    return True


def _shifts(attempt: FoldAttempt) -> list[int]:
    """Return the distances of a class's ranks from the lowest one."""
    steps = [
        range(0, attempt.strides[axis] * size, attempt.strides[axis]) for axis, size in attempt.folded_sizes.items()
    ]
    return [sum(places) for places in product(*steps)]


def _differ_along(attempt: FoldAttempt, rank: int, labels: Labels, axis: str) -> bool:
    """Return whether ranks of a class that differ in their place on one axis alone may be unlike."""
    stride, size = attempt.strides[axis], attempt.folded_sizes[axis]
    others = FoldAttempt(attempt.axes, attempt.kept | {axis})
    return any(len({labels[rank + shift + stride * place] for place in range(size)}) > 1 for shift in _shifts(others))


def _block_along(attempt: FoldAttempt, labels: Labels, axis: str) -> int:
    """Return the size of the largest equal blocks along an axis that are alike; 1 for an axis that is split already."""
    if axis not in attempt.mesh_axes:
        return 1
    stride, size = attempt.strides[axis], attempt.axes[axis]
    lines = [
        [labels[rank + stride * place] for place in range(size)]
        for rank in range(len(labels))
        if not rank // stride % size
    ]
    found = gcd(*map(_block, lines))
    return found if found < size else 1


def _block(labels: Labels) -> int:
    """Return the size of the largest equal blocks of neighbours that are alike.

    >>> _block("aaaabbbbbbbb"), _block("aab")
    (4, 1)
    """
    borders = [place for place in range(1, len(labels)) if labels[place] != labels[place - 1]]
    return gcd(*borders, len(labels))
