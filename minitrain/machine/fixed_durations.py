"""A predictor whose durations are given by hand, one for each type of event.

Figures in papers often count time in units: a forward takes 1, a backward takes 2. `FixedPredictor(forward=1,
backward=2)` does the same. There is no device behind it, and no network.

Predictors whose loads take no time: of a run whose weights are there before it begins.

Where ranks load for unequal times, the clocks of a run do not say what its step takes (see
`minitrain.run.analysis.breakdown`). A run that keeps no events is executed once more with these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from minitrain.errors import UsageError
from minitrain.machine.network import no_such_algorithm
from minitrain.machine.price import FREE, Predictor, Price, RankPredictors
from minitrain.operations import COMPUTING, EVENT_TYPES
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import USUAL, PassMode, Workload

_SHORTEST_S, _LONGEST_S = 1e-100, 1e100  # outside of them sums and ratios overflow or vanish, as in configs


class FixedPredictor:
    """Price every operation by its type alone: `FixedPredictor(forward=1, backward=2)`.

    There is no device behind it, so that MFU and memory capacity are None. Use it wherever a hardware name goes.

    Args:
        durations: s a call, by event type; 0 for those not given, and `recv` as `send`.

    Raises:
        UsageError: an event type is unknown, or a duration is no number of at least 0.

    >>> FixedPredictor(forward=1, backward=2).compute("backward", num_samples=8).seconds
    2.0
    """

    workload: Workload = MATMUL_LAYER
    prices_layers_alike = True
    peak_flop_per_s = None
    capacity_bytes = None
    host_capacity_bytes = math.inf

    def __init__(self, **durations: float) -> None:
        for typ, seconds in durations.items():
            if typ not in EVENT_TYPES:
                raise UsageError(f"there is no event type {typ!r}; use {', '.join(EVENT_TYPES)}", typ=typ)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise UsageError(f"the duration of {typ} must be a number of at least 0, got {seconds!r}", typ=typ)
            if seconds and not _SHORTEST_S <= seconds <= _LONGEST_S:
                raise UsageError(
                    f"the duration of {typ} must be 0 or lie in {_SHORTEST_S}..{_LONGEST_S} s, got {seconds!r}", typ=typ
                )
        self._given = durations
        self.durations = {
            typ: float(seconds) for typ, seconds in {"recv": durations.get("send", 0), **durations}.items()
        }
        self._slowdown = 1.0

    def __repr__(self) -> str:
        return f"FixedPredictor({', '.join(f'{typ}={seconds:g}' for typ, seconds in self._given.items())})"

    def slowed(self, factor: float) -> FixedPredictor:
        """Return the same durations for a rank whose computing takes `factor` times as long."""
        other = copy.copy(self)
        other._slowdown = self._slowdown * factor
        return other

    def training(self, workload: Workload) -> FixedPredictor:
        """Return the same durations for another workload, whose tensors have other sizes."""
        other = copy.copy(self)
        other.workload = workload
        return other

    def compute(
        self,
        typ: str,
        num_samples: int,  # noqa: ARG002  (a Predictor's parameters)
        layer: int = 0,  # noqa: ARG002
        mode: PassMode = USUAL,  # noqa: ARG002
    ) -> Price:
        """Price a pass through a layer; what it computes again is part of the given duration."""
        return self._price(typ)

    def update(
        self,
        num_shards_on_device: int,  # noqa: ARG002
        num_shards: int,  # noqa: ARG002
        layer: int = 0,  # noqa: ARG002
        num_parts: int = 1,  # noqa: ARG002
    ) -> Price:
        """Price an optimizer step."""
        return self._price("update")

    def load(
        self,
        num_shards_on_device: int,  # noqa: ARG002
        num_shards: int,  # noqa: ARG002
        layer: int = 0,  # noqa: ARG002
        num_parts: int = 1,  # noqa: ARG002
    ) -> Price:
        """Price loading weights."""
        return self._price("load_weights")

    def collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        """Price a collective; one of a single rank is free. There is no network that could have algorithms."""
        if algorithm is not None:
            raise no_such_algorithm(op, algorithm, "its duration is given by hand; use algorithm=None")
        return self._price(op, size_bytes) if len(ranks) > 1 else Price(0.0, size_bytes)

    def p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:  # noqa: ARG002
        """Price one side of a message."""
        return self._price(op, size_bytes)

    def host_transfer(self, op: str, size_bytes: float) -> Price:
        """Price a move to or from host memory."""
        return self._price(op, size_bytes)

    def _price(self, typ: str, size_bytes: float = 0) -> Price:
        seconds = self.durations.get(typ, 0.0)
        return Price(seconds * self._slowdown if typ in COMPUTING and self._slowdown != 1 else seconds, size_bytes)


P = TypeVar("P")


def with_free_loading(predictor: P) -> P:
    """Return the same predictor, or predictors of ranks, with loads that take no time."""
    if not isinstance(predictor, RankPredictors):
        return _FreeLoading(predictor)  # type: ignore[return-value]  # which answers all that the predictor does
    free = {id(each): _FreeLoading(each) for each in predictor.predictors}
    ranks: Any = copy.copy(predictor)
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

    def training(self, workload: Any) -> Predictor:
        """Return the same machine for another workload."""
        return _FreeLoading(self._own.training(workload))
