"""Ranks with different devices or shares of the step, where ranks fold: they are not folded together.

Ranks on different kinds of device, or with different numbers of samples, do the same operations at other prices. So
they are classes of their own, along axes that are kept apart as where the network has other prices. Where an axis, also
one of the strategy's own mesh, has equal blocks of ranks that are alike, it is split into the blocks and the places in
a block. Where it has none, every rank is simulated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import product
from math import gcd
from typing import TYPE_CHECKING

from minitrain.machine.price import RankPredictors
from minitrain.run.folding.attempt import DivergesError, FoldAttempt

if TYPE_CHECKING:
    from minitrain.run.rank_tasks import PreparedRun

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


def are_alike(attempt: FoldAttempt, representatives: Iterable[int], labels: Labels) -> bool:
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
