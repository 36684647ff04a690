"""What all strategies share: checks of their sizes, and the samples and the layers of each rank."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, cast

from minitrain import span
from minitrain.errors import StrategyError
from minitrain.lib import Model

Grad = TypeVar("Grad")
Samples = TypeVar("Samples", bound=Sequence[int])


def require_multiple(what: str, value: int, of: str, divisor: int, strategy: str) -> None:
    """Raise a StrategyError unless `value` is a multiple of `divisor`."""
    if value % divisor:
        below = value - value % divisor
        remedy = f"{below} or {below + divisor}" if below else f"{divisor}"
        raise StrategyError(f"{what} ({value}) must be a multiple of {of} ({divisor}) for {strategy}; use {remedy}")


def require_range(name: str, value: int | None, most: int, strategy: str) -> None:
    """Raise a StrategyError unless `value` is None or an integer of 1..most."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
        raise StrategyError(f"{name} must be an integer of 1..{most} for {strategy}, got {value!r}")


def microbatches(samples: Samples, microbatch_size: int | None, strategy: str) -> Sequence[Samples]:
    """Cut samples into microbatches; the last one is smaller where they do not divide.

    Args:
        samples: indices into the global batch.
        microbatch_size: samples a microbatch; all of them if None.
        strategy: name of the strategy, for errors.
    """
    require_range("microbatch_size", microbatch_size, max(len(samples), 1), strategy)
    size = microbatch_size or max(len(samples), 1)
    return [cast(Samples, samples[start : start + size]) for start in range(0, len(samples), size)]


def share(total: int, num_ranks: int, index: int) -> range:
    """Return the `index`-th of `num_ranks` equal, contiguous parts of 0..total-1."""
    part = total // num_ranks
    return cast(range, span(index * part, (index + 1) * part))  # of folded ranks, an object like a range


def require_shares(model: Model, of: str, divisor: int, strategy: str) -> None:
    """Raise a StrategyError unless the batch divides equally, or the run says who takes how much of it."""
    if not _has_shares(model, "samples"):
        require_multiple("global_batch_size", model.global_batch_size, of, divisor, strategy)


def microbatches_of(
    model: Model, num_replicas: int, index: int, microbatch_size: int | None, strategy: str, *, in_step: bool = False
) -> Sequence[range]:
    """Return the microbatches of a replica: of an equal, contiguous part of the batch, or of what the run's shares say.

    Args:
        model: the rank.
        num_replicas: how many share the batch.
        index: which of them it belongs to.
        microbatch_size: samples a microbatch; all of the replica's if None.
        strategy: name of the strategy, for errors.
        in_step: whether replicas communicate in each microbatch, and so must have the same number of them.
    """
    if not _has_shares(model, "samples"):
        return microbatches(share(model.global_batch_size, num_replicas, index), microbatch_size, strategy)
    require_range("microbatch_size", microbatch_size, model.global_batch_size, strategy)
    found = model.microbatches(microbatch_size, num_replicas=num_replicas, index=index, in_step=in_step)
    return cast("Sequence[range]", found)


def _has_shares(model: Model, what: str) -> bool:
    """Return whether the run says who takes how much of the samples, or of the layers."""
    shares = getattr(model, "shares", None)  # the specification knows none
    return shares is not None and what in shares.names


def stage_layers(
    model: Model,
    stage: int,
    num_stages: int,
    microbatch_size: int | None,
    layers_per_stage: Sequence[int] | None,
    of: str,
    strategy: str,
) -> range:
    """Return the layers of one stage; see `layers_of_stages`, whose arguments these are beside the stage."""
    if _are_shared_equally(model, layers_per_stage):
        require_multiple("num_layers", model.num_layers, of, num_stages, strategy)
        return share(model.num_layers, num_stages, stage)
    return layers_of_stages(model, num_stages, microbatch_size, layers_per_stage, of, strategy)[stage]


def layers_of_stages(
    model: Model,
    num_stages: int,
    microbatch_size: int | None,
    layers_per_stage: Sequence[int] | None,
    of: str,
    strategy: str,
) -> Sequence[range]:
    """Return the layers of all stages: equal shares of layers that are alike, and of others as `Model.stages` says.

    Where the run has shares of layers, it is these.

    Args:
        model: the rank.
        num_stages: how many.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        layers_per_stage: how many layers each stage has, where the user decides.
        of: what the number of stages is made of, for errors.
        strategy: name of the strategy, for errors.
    """
    if _are_shared_equally(model, layers_per_stage):
        require_multiple("num_layers", model.num_layers, of, num_stages, strategy)
        return _equal_stages(model.num_layers, num_stages)
    require_range("microbatch_size", microbatch_size, model.global_batch_size, strategy)
    size = microbatch_size or max(1, model.global_batch_size // model.world_size)
    return model.stages(num_stages, size, layers_per_stage=layers_per_stage)


def _are_shared_equally(model: Model, layers_per_stage: Sequence[int] | None) -> bool:
    """Return whether every stage has as many layers."""
    are_alike = getattr(model, "layers_are_alike", True)  # the specification knows no others
    return layers_per_stage is None and are_alike and not _has_shares(model, "layers")


@lru_cache(maxsize=64)
def _equal_stages(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """Return equal shares of the layers, once for all ranks."""
    return tuple(share(num_layers, num_stages, stage) for stage in range(num_stages))


def add(total: Grad | None, grad: Grad) -> Grad:
    """Accumulate a gradient in place: the first one becomes the total."""
    return grad if total is None else total + grad  # type: ignore[operator]
