"""Predictors whose loads take no time: of a run whose weights are there before it begins.

Where ranks load for unequal times, the clocks of a run do not say what its step takes (see
`minitrain.analysis.breakdown`). A run that keeps no events is executed once more with these.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

from minitrain.hardware.price import FREE, Predictor, Price, RankPredictors

P = TypeVar("P")


def with_free_loading(predictor: P) -> P:
    """Return the same predictor, or predictors of ranks, with loads that take no time."""
    if not isinstance(predictor, RankPredictors):
        return _FreeLoading(predictor)  # type: ignore[return-value]  # which answers all that the predictor does
    free = {id(each): _FreeLoading(each) for each in predictor.predictors}
    ranks: Any = copy(predictor)
    ranks.predictors = tuple(free[id(each)] for each in predictor.predictors)
    return ranks  # type: ignore[no-any-return]  # predictors of ranks


class _FreeLoading:
    """A predictor with loads that take no time.

    Args:
        own: what prices all else.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # while it is copied
            raise AttributeError(name)
        return getattr(self._own, name)

    def load(self, *_: Any, **__: Any) -> Price:
        """Price loading: it takes no time."""
        return FREE

    def slowed(self, factor: float) -> Predictor:
        """Return the same predictor for a rank whose computing takes `factor` times as long."""
        return _FreeLoading(self._own.slowed(factor))

    def slowed_by(self, factors: Any) -> Any:
        """Return the same predictor of several machines for a rank that is a straggler on some of them."""
        return _FreeLoading(self._own.slowed_by(factors))

    def training(self, workload: Any) -> Predictor:
        """Return the same machine for another workload."""
        return _FreeLoading(self._own.training(workload))
