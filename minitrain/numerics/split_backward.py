"""Split backward: what the first half, `backward_input`, leaves on its rank for the second, `backward_weight`.

A pipeline may do the second half much later, as in zero-bubble schedules (Qi et al. 2023). Each half that is kept is
taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

from minitrain.errors import LawError
from minitrain.numerics.transformer_problem import TransformerProblem

T = TypeVar("T")


@final
class PendingHalves(Generic[T]):
    """The second halves that one rank still has to do, by layer and samples.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: TransformerProblem) -> None:
        self._problem = problem
        self._kept: dict[tuple[int, frozenset[int]], T] = {}

    def keep(self, layer: int, samples: frozenset[int], half: T) -> None:
        """Keep what the first half has made."""
        self._kept[layer, samples] = half

    def take(self, layer: int, samples: frozenset[int], is_right: Callable[[T], bool]) -> T:
        """Return what is kept, once.

        Args:
            layer: which layer.
            samples: of the gradient.
            is_right: whether a half was made of the gradient that the second half is given.

        Raises:
            LawError: there is none on this rank for these samples and this gradient.
        """
        half = self._kept.pop((layer, samples), None)
        if half is None or not is_right(half):
            raise LawError(
                f"backward_weight of layer {layer} ({self._problem.units[layer].name}) needs what backward_input made "
                "of the same gradient for the same samples on the same rank; call backward_input first, and "
                "backward_weight once after it"
            )
        return half
