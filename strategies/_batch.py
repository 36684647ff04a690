"""What all strategies share: checks of their sizes, and the samples and the layers of each rank."""

from collections.abc import Sequence
from typing import TypeVar, cast

from minitrain import span
from minitrain.errors import StrategyError
from minitrain.lib import Model

Grad = TypeVar("Grad")


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


def microbatches(samples: range, microbatch_size: int | None, strategy: str) -> Sequence[range]:
    """Cut samples into microbatches; the last one is smaller where they do not divide.

    Args:
        samples: indices into the global batch.
        microbatch_size: samples a microbatch; all of them if None.
        strategy: name of the strategy, for errors.
    """
    require_range("microbatch_size", microbatch_size, max(len(samples), 1), strategy)
    size = microbatch_size or max(len(samples), 1)
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def share(total: int, num_ranks: int, index: int) -> range:
    """Return the `index`-th of `num_ranks` equal, contiguous parts of 0..total-1."""
    part = total // num_ranks
    return cast(range, span(index * part, (index + 1) * part))  # of folded ranks, an object like a range


def stage_layers(
    model: Model,
    stage: int,
    num_stages: int,
    microbatch_size: int | None,
    layers_per_stage: Sequence[int] | None,
    of: str,
    strategy: str,
) -> range:
    """Return the layers of a stage: equal shares where layers are alike, and as `Model.stages` says where they differ.

    Args:
        model: the rank.
        stage: which stage.
        num_stages: how many.
        microbatch_size: samples a microbatch; global_batch_size / world_size if None.
        layers_per_stage: how many layers each stage has, where the user decides.
        of: what the number of stages is made of, for errors.
        strategy: name of the strategy, for errors.
    """
    if layers_per_stage is None and getattr(model, "layers_are_alike", True):  # the specification knows no others
        require_multiple("num_layers", model.num_layers, of, num_stages, strategy)
        return share(model.num_layers, num_stages, stage)
    require_range("microbatch_size", microbatch_size, model.global_batch_size, strategy)
    size = microbatch_size or max(1, model.global_batch_size // model.world_size)
    return model.stages(num_stages, size, layers_per_stage=layers_per_stage)[stage]


def add(total: Grad | None, grad: Grad) -> Grad:
    """Accumulate a gradient in place: the first one becomes the total."""
    return grad if total is None else total + grad  # type: ignore[operator]
