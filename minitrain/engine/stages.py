"""The stages of a pipeline: contiguous ranges of layers, so that the costliest stage costs as little as it can.

Layers that are alike go in equal shares. Layers that differ are priced, forward and backward of a microbatch each, by
the predictor of a rank that is no straggler, so that all ranks of a run find the same stages. Of all ways to cut that
keep the costliest stage as cheap as possible, the one is taken whose stages differ least (sum of squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError, require_count
from minitrain.machine.price import Predictor, decide, reference_of
from minitrain.tensors.index_sets import between, equal_ranges

if TYPE_CHECKING:
    from minitrain.engine.state import RankState

Stages = tuple[range, ...]


def stages_of(
    model: RankState, num_stages: int, num_samples: int = 1, layers_per_stage: Sequence[int] | None = None
) -> Stages:
    """Return the layers of each stage.

    Args:
        model: any rank.
        num_stages: how many stages.
        num_samples: samples of a microbatch.
        layers_per_stage: how many layers each stage has, where the user decides.

    Raises:
        UsageError: layers that are alike do not divide, there are fewer layers than stages, or `layers_per_stage` is
            not one count of at least 1 for each stage that add up to num_layers.
    """
    num_layers = model.num_layers
    if layers_per_stage is None and model._shares is not None and model._shares.shares.layers is not None:
        model._shares.read.add("layers")
        return _as_given(model._shares.shares.layers, num_stages, num_layers, "layers of shares")
    if layers_per_stage is not None:
        return _as_given(layers_per_stage, num_stages, num_layers)
    if num_layers < num_stages:
        raise UsageError(
            f"num_layers ({num_layers}) must be at least num_stages ({num_stages}); use {num_layers} stages or fewer"
        )
    predictor = reference_of(model._runtime_predictor)
    if predictor.workload.is_uniform:
        return _equal(num_stages, num_layers)
    require_count("microbatch_size", num_samples)
    return _of_least_cost(_ByIdentity(predictor), num_layers, num_stages, num_samples)


def blocks_of(model: RankState) -> Stages:
    """Return the layers that belong together: those of the workload's blocks, or each layer by itself."""
    blocks: Stages | None = getattr(model._runtime_predictor.workload, "blocks", None)
    return equal_ranges(model.num_layers, model.num_layers) if blocks is None else blocks


def _as_given(layers_per_stage: Any, num_stages: int, num_layers: int, what: str = "layers_per_stage") -> Stages:
    """Return the stages that the user asks for."""
    counts = list(layers_per_stage) if isinstance(layers_per_stage, Sequence) else []
    are_counts = all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in counts)
    if not are_counts or len(counts) != num_stages or sum(counts) != num_layers:
        example = ", ".join(str(len(share)) for share in equal_ranges(num_layers, num_stages))
        raise UsageError(
            f"{what} must be {num_stages} counts of at least 1 that add up to num_layers ({num_layers}), got "
            f"{layers_per_stage!r:.80}; for example [{example}]",
            layers_per_stage=layers_per_stage,
        )
    return between([0, *accumulate(counts)])


def _equal(num_stages: int, num_layers: int) -> Stages:
    """Return equal shares."""
    if num_layers % num_stages:
        below = num_layers - num_layers % num_stages
        raise UsageError(
            f"num_layers ({num_layers}) must be a multiple of num_stages ({num_stages}), since all layers are alike; "
            f"use {below} or {below + num_stages}, or give layers_per_stage"
        )
    return equal_ranges(num_layers, num_stages)


@final
class _ByIdentity:
    """A key of a cache that stands for an object, which may not be hashable."""

    __slots__ = ("value",)

    def __init__(self, value: Predictor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=32)
def _of_least_cost(predictor: _ByIdentity, num_layers: int, num_stages: int, num_samples: int) -> Stages:
    """Return the stages by what their layers cost."""

    def costs_on(machine: Predictor) -> list[float]:
        costs = [
            machine.compute("forward", num_samples, layer).seconds
            + machine.compute("backward", num_samples, layer).seconds
            for layer in range(num_layers)
        ]
        costs[-1] += machine.compute("loss", num_samples, num_layers).seconds
        return costs

    return decide(
        predictor.value,
        costs_on,
        lambda costs: balanced(costs, num_stages),
        lambda costs: balanced_all(costs, num_stages),
    )


def balanced(costs: Sequence[float], num_stages: int) -> Stages:
    """Cut layers into stages whose largest cost is the least possible.

    >>> balanced([1, 1, 1, 1, 1, 3], 3)
    (range(0, 3), range(3, 5), range(5, 6))
    """
    return balanced_all([[cost] for cost in costs], num_stages)[0]


_NO_MORE = 1 + 1e-9
"""Costs nearer than this differ by rounding alone."""

_MOST_NUMBERS = 1 << 18  # in one array: 2 MiB


def balanced_all(costs: Any, num_stages: int) -> list[Stages]:
    """Return what `balanced` does for several machines; costs are (num_layers, num_machines)."""
    import numpy as np  # noqa: PLC0415  (`import minitrain` needs none)

    costs = np.asarray(costs, dtype=float).T
    sums = np.concatenate([np.zeros((len(costs), 1)), np.cumsum(costs, axis=1)], axis=1)
    most = max(1, _MOST_NUMBERS // sums.shape[1] ** 2)
    parts = [_borders(sums[first : first + most], num_stages) for first in range(0, len(sums), most)]
    return [between(borders) for part in parts for borders in part.tolist()]


def _borders(sums: Any, num_stages: int) -> Any:
    """Return the borders of stages whose largest cost is least; of these, those whose squares add up to least.

    Of equal ones, the latest are taken. Stages are put before others, one at a time.

    Args:
        sums: what the layers before each one cost, and all of them, (num_machines, num_layers + 1).
        num_stages: how many stages.

    Returns:
        Layers, (num_machines, num_stages + 1).
    """
    import numpy as np  # noqa: PLC0415

    machines, num_layers = np.arange(len(sums)), sums.shape[1] - 1
    costs = sums[:, None] - sums[:, :, None]  # of a stage that begins with a layer and ends before another
    costs[:, np.tri(num_layers + 1, dtype=bool)] = np.inf
    nothing = np.where(np.arange(num_layers + 1) == num_layers, 0.0, np.inf) + np.zeros_like(sums)
    largest, squares = nothing, nothing  # of all stages from a layer on
    for _ in range(num_stages):
        largest = np.maximum(costs, largest[:, None]).min(axis=2)
    possible = np.where(costs <= largest[:, :1, None] * _NO_MORE, costs * costs, np.inf)
    ends = []
    for _ in range(num_stages):
        totals = possible + squares[:, None]
        least = totals.min(axis=2)
        equal = totals <= least[:, :, None] * _NO_MORE
        ends.append(num_layers - equal[:, :, ::-1].argmax(axis=2))
        squares = np.take_along_axis(totals, ends[-1][:, :, None], axis=2)[:, :, 0]
    borders = [np.zeros_like(machines)]
    for end in reversed(ends):
        borders.append(end[machines, borders[-1]])
    return np.stack(borders, axis=1)
