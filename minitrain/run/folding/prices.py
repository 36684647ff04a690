"""The check that what a class's ranks do together costs the same for all of them, on a network of tiers.

The groups of a class are copies of one another at equal distances, as are its pairs of sender and receiver. Copies that
lie alike in nodes cost the same, and few of them lie differently (`RankNodes.one_of_each_shape`). One of
each is priced. Where prices differ, so do the ranks' clocks: the ranks diverge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from minitrain.machine.price import decide
from minitrain.machine.topology import RankNodes
from minitrain.run.folding.attempt import FoldAttempt


def groups_by_shape(attempt: FoldAttempt, nodes: RankNodes, rank: int, axes: frozenset[str]) -> list[Sequence[int]]:
    """Return groups that stand for those of all ranks of a class, that of the lowest rank first.

    Args:
        attempt: how ranks are folded.
        nodes: where ranks sit.
        rank: the class's lowest rank.
        axes: folded axes along which the members of a group differ.
    """
    return nodes.one_of_each_shape(_members(attempt, rank, axes), _steps_across(attempt, axes).values())


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
