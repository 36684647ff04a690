"""The samples and microbatches of a rank: its part of the batch, by the run's shares or equally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minitrain.engine.shares import EXAMPLE, ranges_of
from minitrain.errors import UsageError, require_count
from minitrain.tensors.index_sets import equal_ranges, span

if TYPE_CHECKING:
    from minitrain.engine.state import RankState


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
    return _in_step(model, samples, count, sizes)


def _of_replica(values: Sequence[Any], place: Any) -> Any:
    """Return a replica's value among those of all; of folded ranks, that of each of them."""
    return place.item_of(values) if hasattr(place, "item_of") else values[place]


def _in_step(model: RankState, samples: Any, count: int, sizes: Sequence[int]) -> Sequence[Any]:
    """Cut samples into so many microbatches, as equal as they can be."""
    if min(sizes) < count:
        raise UsageError(
            f"all replicas of this strategy take as many microbatches, {count} here, but the smallest share has "
            f"{min(sizes)} samples; use a microbatch_size of at least {-(-max(sizes) // min(sizes))}, or shares that "
            "differ less",
            rank=model._rank,
        )
    return [samples[part.start : part.stop] for part in equal_ranges(len(samples), count)]


def _replica(model: RankState, num_replicas: int | None, index: Any) -> tuple[int, Any]:
    """Return how many replicas share the batch, and which of them a rank belongs to."""
    number = model.world_size if num_replicas is None else require_count("num_replicas", num_replicas)
    place = getattr(model, "_rank_of_each", model._rank) if index is None else index  # of folded ranks, of each
    if index is None and number != model.world_size:
        raise UsageError(
            f"with num_replicas ({number}) say which one this rank belongs to, as in index=model.rank // 2"
        )
    if isinstance(place, int) and not 0 <= place < number:
        raise UsageError(f"the index of a replica must lie in 0..{number - 1}, got {place}", index=place)
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
