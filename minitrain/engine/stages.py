"""The stages of a pipeline: contiguous ranges of layers, so that the costliest stage costs as little as it can.

Layers that are alike go in equal shares. Layers that differ are priced, forward and backward of a microbatch each, by
the predictor of a rank that is no straggler, so that all ranks of a run find the same stages. Of all ways to cut that
keep the costliest stage as cheap as possible, the one is taken whose stages differ least (sum of squares).

The samples and microbatches of a rank: its part of the batch, by the run's shares or equally.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from minitrain.engine.semantics import EXAMPLE, ranges_of
from minitrain.errors import UsageError, require_count
from minitrain.machine.price import Predictor, decide, reference_of
from minitrain.tensors.index_sets import between, equal_ranges, span

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
            f"{layers_per_stage!r:.80}; for example [{example}]"
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
        key=(num_layers, num_stages, num_samples),
    )


def balanced(costs: Sequence[float], num_stages: int) -> Stages:
    """Cut layers into stages whose largest cost is the least possible.

    >>> balanced([1, 1, 1, 1, 1, 3], 3)
    (range(0, 3), range(3, 5), range(5, 6))
    """
    return balanced_all([[cost] for cost in costs], num_stages)[0]


_NO_MORE = 1 + 1e-9
"""Costs nearer than this differ by rounding alone."""

_MOST_NUMBERS = 1 << 19  # costs of ranges of layers, of several machines; few of them are looked at


def balanced_all(costs: Any, num_stages: int) -> list[Stages]:
    """Return what `balanced` does for several machines; costs are (num_layers, num_machines)."""
    import numpy as np  # noqa: PLC0415  (`import minitrain` needs none)

    costs = np.asarray(costs, dtype=float)
    sums = np.concatenate([np.zeros((1, costs.shape[1])), np.cumsum(costs, axis=0)])
    most = max(1, _MOST_NUMBERS // len(sums) ** 2)
    parts = [_borders(sums[:, first : first + most], num_stages) for first in range(0, costs.shape[1], most)]
    return [between(borders) for part in parts for borders in part.tolist()]


def _borders(sums: Any, num_stages: int) -> Any:
    """Return the borders of stages whose largest cost is least; of these, those whose squares add up to least.

    Of equal ones, the latest are taken. Stages are put before others, one at a time. Left out are stages that cost more
    than the largest of a greedy cut may, which is an equal share and a layer.

    Args:
        sums: what the layers before each one cost, and all of them, (num_layers + 1, num_machines).
        num_stages: how many stages.

    Returns:
        Layers, (num_machines, num_stages + 1).
    """
    import numpy as np  # noqa: PLC0415

    machines = np.arange(sums.shape[1])
    nowhere = np.full_like(sums, np.inf)
    done = np.concatenate([nowhere[1:], np.zeros((1, len(machines)))])
    most = (sums[-1] / num_stages + (sums[1:] - sums[:-1]).max(axis=0)) * _NO_MORE
    lengths = np.arange(_longest(sums, most))
    beyond = np.full((len(lengths), len(machines)), np.inf)  # there, no stage ends
    ends = np.arange(1, len(sums) + 1)[:, None] + lengths  # by first layer, and by length
    costs = np.concatenate([sums, beyond])[ends] - sums[:, None]
    largest = done  # of all stages from a layer on
    for first in _first_layers(len(sums) - 1, num_stages, len(lengths)):
        after, largest = np.concatenate([largest, beyond])[ends[first]], nowhere.copy()
        largest[first] = np.maximum(costs[first], after).min(axis=1)
    most = largest[0] * _NO_MORE
    lengths = np.arange(_longest(sums, most))
    costs, ends = costs[:, lengths], ends[:, lengths]
    possible = np.where(costs <= most, costs * costs, np.inf)
    squares, chosen = done, []  # of all stages from a layer on, and the length of the first
    for first in _first_layers(len(sums) - 1, num_stages, len(lengths)):
        totals = possible[first] + np.concatenate([squares, beyond])[ends[first]]
        equal = totals <= totals.min(axis=1)[:, None] * _NO_MORE
        length = np.where(equal, lengths[:, None], 0).max(axis=1)
        chosen.append((first.start, length))
        squares = nowhere.copy()
        squares[first] = totals[np.arange(len(totals))[:, None], length, machines]
    borders = [np.zeros_like(machines)]
    for start, length in reversed(chosen):
        borders.append(borders[-1] + 1 + length[borders[-1] - start, machines])
    return np.stack(borders, axis=1)


def _first_layers(num_layers: int, num_stages: int, longest: int) -> list[slice]:
    """Return with which layers each stage may begin, the last stage first, if none has more than `longest` layers."""
    return [
        slice(
            max(num_stages - left, num_layers - left * longest),
            min((num_stages - left) * longest, num_layers - left) + 1,
        )
        for left in range(1, num_stages + 1)
    ]


def _longest(sums: Any, most: Any) -> int:
    """Return how many layers a stage may have on some machine, if it may cost so much, (num_machines,)."""
    return bisect_left(range(1, len(sums)), True, key=lambda count: not (sums[count:] - sums[:-count] <= most).any())


def samples_of_rank(model: RankState, num_replicas: int | None, index: Any) -> Any:
    """Return the samples of a rank; see `Model.samples_of_rank`."""
    number, place = _replica(model, num_replicas, index)
    ranges = _samples_of_replicas(model, number)
    if ranges is not None:
        return _of_replica(ranges, place)
    size = model.global_batch_size // number
    return span(place * size, (place + 1) * size)


def microbatches(
    model: RankState, microbatch_size: int | None, num_replicas: int | None, index: Any, *, in_step: bool
) -> Sequence[Any]:
    """Return the microbatches of a rank; see `Model.microbatches`."""
    number, place = _replica(model, num_replicas, index)
    samples = samples_of_rank(model, number, place)
    sizes = [len(found) for found in _samples_of_replicas(model, number) or [samples]]
    most = _microbatch_sizes(model, microbatch_size, sizes, number)
    if not in_step or len({*zip(sizes, most, strict=True)}) == 1:
        size = most[0] if len(most) == 1 else _of_replica(most, place)  # one for all where samples are equal
        return [samples[start : start + size] for start in range(0, len(samples), size)]
    count = max(-(-total // size) for total, size in zip(sizes, most, strict=True))
    if min(sizes) < count:
        raise UsageError(
            f"all replicas of this strategy take as many microbatches, {count} here, but the smallest share has "
            f"{min(sizes)} samples; use a microbatch_size of at least {-(-max(sizes) // min(sizes))}, or shares that "
            "differ less",
            rank=model._rank,
        )
    return [samples[part.start : part.stop] for part in equal_ranges(len(samples), count)]


def _of_replica(values: Sequence[Any], place: Any) -> Any:
    """Return a replica's value among those of all; of folded ranks, that of each of them."""
    return place.item_of(values) if hasattr(place, "item_of") else values[place]


def _replica(model: RankState, num_replicas: int | None, index: Any) -> tuple[int, Any]:
    """Return how many replicas share the batch, and which of them a rank belongs to."""
    number = model.world_size if num_replicas is None else require_count("num_replicas", num_replicas)
    place = getattr(model, "_rank_of_each", model._rank) if index is None else index  # of folded ranks, of each
    if index is None and number != model.world_size:
        raise UsageError(
            f"with num_replicas ({number}) say which one this rank belongs to, as in index=model.rank // 2"
        )
    if isinstance(place, int) and not 0 <= place < number:
        raise UsageError(f"the index of a replica must lie in 0..{number - 1}, got {place}")
    return number, place


def _samples_of_replicas(model: RankState, num_replicas: int) -> Sequence[range] | None:
    """Return the samples of each replica; None for equal shares.

    Raises:
        UsageError: the shares are of another number of replicas, or equal ones do not divide.
    """
    given = model._shares
    shares = None if given is None else given.shares
    if given is None or shares is None or (shares.samples is None and shares.microbatch_sizes is None):
        rest = model.global_batch_size % num_replicas
        if rest:
            below = model.global_batch_size - rest
            raise UsageError(
                f"global_batch_size ({model.global_batch_size}) must be a multiple of the {num_replicas} replicas that "
                f"share it, or their shares be given, {EXAMPLE}; use {below or num_replicas}"
            )
        return None
    given.read.add("samples")
    counts = shares.samples or shares.microbatch_sizes or ()
    if len(counts) != num_replicas:
        raise UsageError(
            f"shares are of {len(counts)} replicas, and {num_replicas} share the batch in this strategy; give "
            f"{num_replicas} shares",
            shares=shares,
        )
    return ranges_of(shares.samples) if shares.samples else equal_ranges(model.global_batch_size, num_replicas)


def _microbatch_sizes(
    model: RankState, microbatch_size: int | None, sizes: Sequence[int], num_replicas: int
) -> list[int]:
    """Return the most samples of a microbatch of each replica."""
    if microbatch_size is not None:
        require_count("microbatch_size", microbatch_size)
    own = None if model._shares is None else model._shares.shares.microbatch_sizes
    if own is None:
        return [microbatch_size or max(size, 1) for size in sizes]
    assert len(own) == num_replicas  # `_samples_of_replicas` has seen to it
    return list(own)
