"""What a strategy means to compute, where that is not one synchronous step of gradient descent.

By default the gradient of every sample of the batch goes into each update, and all ranks have the same weights. A
strategy that means something else declares it, and its laws and its proof follow from what it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

from minitrain.errors import StrategyError, UsageError
from minitrain.tensors.compressed import Compressor, compressor_of

S = TypeVar("S", bound=Callable[..., Any])


@final
@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov's momentum, as PyTorch has it: v' = decay v + g and w' = w - rate (g + decay v').

    Args:
        rate: step size.
        decay: of the momentum; 0 is plain SGD, which has no state.
    """

    rate: float = 0.7
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not (0 < self.rate < float("inf") and 0 <= self.decay < 1):
            raise UsageError(f"an outer optimizer needs a rate above 0 and a decay in 0..1 (without 1), got {self}")


MEAN = Nesterov(rate=1.0, decay=0.0)
"""The mean of the replicas' weights: w - 1 (w - mean)."""


@final
@dataclass(frozen=True, slots=True)
class LocalSteps:
    """Several optimizer steps in a step of the run, as replicas or all ranks take them.

    The batch of a step of the run is that of all its steps: step h of replica r has the share h x replicas + r of
    steps x replicas equal, contiguous ones.

    Args:
        steps: how many steps each replica takes between two meetings.
        replicas: how many there are.
        outer: what takes the common weight on, by the mean of what it was moved by (the outer gradient).
        in_turn: whether one replica takes the steps one after the other, and there is no outer step: the weights of
            the last step are the common ones.
        delay: then how many steps old the weights are that a gradient is of.
        compression: how the gradients are sent that workers exchange: of each step or, where replicas meet, the outer
            ones; None for exact ones.
        workers: how many send one each; in each step, worker w has the w-th of equal, contiguous parts of its samples.
        shards: in how many equal parts a worker compresses a layer's: a replica's ranks have one each.
        fragments: in how many equal, contiguous parts the layers meet, one after the other at equal distances, the last
            after the last step (Streaming DiLoCo, Douillard et al. 2025, algorithm 2).
        overlap: how many steps before its meeting a fragment's outer gradient is sent.
        mixing: what share of a replica's own weight stays when it meets; the rest is the common weight.
    """

    steps: int
    replicas: int
    outer: Nesterov = MEAN
    in_turn: bool = False
    delay: int = 0
    compression: Compressor | None = None
    workers: int = 1
    shards: int = 1
    fragments: int = 1
    overlap: int = 0
    mixing: float = 0.0

    def __str__(self) -> str:
        sent = f" by {self.compression} of {self.workers} workers" if self.compression else ""
        if self.in_turn:
            old = f" of weights {self.delay} step{'s' * (self.delay > 1)} old" if self.delay else ""
            how = f"with gradients{old}{sent}" if old or sent else "in turn"
            return f"{self.steps} step{'s' * (self.steps > 1)} {how}"
        each, of = f"{self.steps} local step{'s' * (self.steps > 1)}", f"replica{'s' * (self.replicas > 1)}"
        return f"{each} of {self.replicas} {of}{self.streamed}{f', outer gradients{sent}' if sent else ''}"

    @property
    def streamed(self) -> str:
        """How parts meet in turn, are sent before, or are mixed, in words that follow others; "" for none of it."""
        parts = f", {self.fragments} fragments in turn" if self.fragments > 1 else ""
        before = f", sent {self.overlap} step{'s' * (self.overlap > 1)} before" if self.overlap else ""
        return f"{parts}{before}{f', of which they keep {self.mixing:g}' if self.mixing else ''}"

    @property
    def goes_on(self) -> bool:
        """Whether replicas begin the next round with their own weights, and not with the common ones."""
        return self.fragments > 1 or self.overlap > 0 or self.mixing > 0

    def meets_after(self, layer: int, num_layers: int) -> int:
        """Return after how many of its own steps a replica takes the common weight of a layer."""
        return (layer * self.fragments // num_layers + 1) * self.steps // self.fragments

    def sends_after(self, layer: int, num_layers: int) -> int:
        """Return after how many of its own steps a replica sends its outer gradient of a layer."""
        return self.meets_after(layer, num_layers) - self.overlap

    def share(self, global_batch_size: int) -> int:
        """Return the samples of one replica's local step."""
        return global_batch_size // (self.steps * self.replicas)

    def compressed_samples(self, global_batch_size: int, layer: int, num_layers: int) -> int:
        """Return the samples of the gradient that a worker compresses."""
        seen = 1 if self.in_turn else self.sends_after(layer, num_layers)
        return seen * global_batch_size // (self.workers * self.steps)


@final
@dataclass(frozen=True, slots=True)
class DeclaredLocalSteps:
    """`LocalSteps` as a strategy declares it: numbers, or names of its options that have them.

    Args:
        alike: whether the strategy does in each step what it does in the one before, but for the first and last ones,
            so that `log="summary"` need not simulate all.
    """

    steps: int | str
    replicas: int | str | None
    outer: Nesterov
    in_turn: bool = False
    delay: int = 0
    compression: Any = None
    fragments: int | str = 1
    overlap: int | str = 0
    mixing: float | str = 0.0
    alike: bool = False

    def of(
        self, name: str, options: Mapping[str, Any], world_size: int, global_batch_size: int, num_layers: int
    ) -> LocalSteps:
        """Return what a run of the strategy means to compute.

        Raises:
            StrategyError: the batch does not divide by local steps and replicas, steps or layers do not by fragments,
                or they are no numbers.
            UsageError: there is no such compression.
        """
        steps = self.num_steps(name, options)
        given = self._number(name, self.replicas, options)
        replicas = world_size if given is None else given
        is_named = isinstance(self.compression, str) and self.compression in options
        how = compressor_of(options[self.compression] if is_named else self.compression)
        workers = 1 if how is None else world_size if self.in_turn else replicas
        divisor = steps * (workers if self.in_turn else replicas)
        if global_batch_size % divisor:
            what = f"{steps} local steps on {replicas} replicas"
            what = f"{steps} steps{f' of {workers} workers' if how else ''}" if self.in_turn else what
            raise StrategyError(
                f"{name} takes {what}: global_batch_size must be a multiple of {divisor}, the samples of all "
                f"these steps, got {global_batch_size}"
            )
        shards = 1 if how is None else max(1, world_size // workers)
        streaming = self._streaming(name, options, steps, num_layers)
        return LocalSteps(steps, replicas, self.outer, self.in_turn, self.delay, how, workers, shards, *streaming)

    def _streaming(self, name: str, options: Mapping[str, Any], steps: int, num_layers: int) -> tuple[int, int, float]:
        """Return fragments, overlap and mixing."""
        fragments = self._number(name, self.fragments, options)
        if steps % fragments or fragments > num_layers:
            raise StrategyError(
                f"{name} synchronises {fragments} fragments of {num_layers} layers in {steps} local steps: fragments "
                "must be at most the layers, and local steps a multiple of them"
            )
        overlap = self._number(name, self.overlap, options, least=0)
        if overlap >= steps // fragments:
            raise StrategyError(
                f"{name} sends a fragment {overlap} local steps before it meets: overlap must be less than the "
                f"{steps // fragments} steps between two meetings, as nothing is on its way from one to the next; use "
                f"{steps // fragments - 1} at most, or more local steps"
            )
        mixing = self._given(name, self.mixing, options)[0]
        if isinstance(mixing, bool) or not isinstance(mixing, int | float) or not 0 <= mixing < 1:
            raise StrategyError(
                f"mixing must be in 0..1 (without 1, which would take nothing of the common weight) for {name}, got "
                f"{mixing!r:.80}"
            )
        return fragments, overlap, float(mixing)

    def num_steps(self, name: str, options: Mapping[str, Any]) -> int:
        """Return how many optimizer steps a step of the run has.

        Raises:
            StrategyError: the option that says it is none, or no number.
        """
        return int(self._number(name, self.steps, options))

    @staticmethod
    def _given(name: str, declared: Any, options: Mapping[str, Any]) -> tuple[Any, str]:
        """Return what is declared, or what the option of the declared name has, and how it is called."""
        if isinstance(declared, str) and declared not in options:
            raise StrategyError(f"{name} declares local steps by its option {declared!r}, and takes no such option")
        return (options[declared], declared) if isinstance(declared, str) else (declared, "what it declares")

    def _number(self, name: str, declared: Any, options: Mapping[str, Any], least: int = 1) -> Any:
        """Return a number that is declared, or that the option of the declared name has; None for none."""
        number, called = self._given(name, declared, options)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise StrategyError(f"{called} must be an integer of at least {least} for {name}, got {number!r:.80}")
        return number


def local_steps(
    steps: int | str,
    replicas: int | str | None = None,
    outer: Nesterov = MEAN,
    compression: Any = None,
    *,
    fragments: int | str = 1,
    overlap: int | str = 0,
    mixing: float | str = 0.0,
    alike: bool = False,
) -> Callable[[S], S]:
    """Declare that replicas take steps of their own between two meetings; to be put before a strategy.

    The strategy makes each replica's weights by `model.local_copy`, and takes `model.update` with them on the samples
    `model.samples_of_rank(steps * replicas, step * replicas + replica)`. Then `model.outer_gradient`, summed over the
    replicas, and `model.outer_update` take the common weight on.

    Args:
        steps: how many, or the name of the option that says it.
        replicas: likewise how many; each rank is one if None.
        outer: the optimizer of the common weight; the replicas' mean by default (local SGD, Stich 2019).
            `Nesterov(0.7, 0.9)` is DiLoCo's (Douillard et al. 2023, section 3).
        compression: how outer gradients are sent, as for `approximate_steps`; exact if None.
        fragments: in how many equal, contiguous parts the layers meet, one after the other: layer k of n is of fragment
            p = k fragments // n, which meets after (p + 1) steps / fragments local steps (Streaming DiLoCo, Douillard
            et al. 2025). Where fragments, overlap or mixing are given, a replica mixes what it takes (`model.mix`),
            hands its own weights in beside the common ones, and has them again in the next round (`local_copy`).
        overlap: how many local steps before that a fragment's outer gradient is sent (the paper's tau).
        mixing: what share of its own weight a replica keeps (the paper's alpha).
        alike: as for `own_steps`.
    """
    of_rounds = {"compression": compression, "fragments": fragments, "overlap": overlap, "mixing": mixing}
    return _declaring(DeclaredLocalSteps(steps, replicas, outer, **of_rounds, alike=alike))


def delayed_steps(steps: int | str, delay: int = 1, *, alike: bool = False) -> Callable[[S], S]:
    """Declare steps whose gradients are of weights some steps old; to be put before a strategy.

    The run's batch has the samples of all steps, one after the other. The weights of step t are those of the step
    before, moved by a gradient of the samples of step t - 1 with the weights of step t - 1 - delay, of the first step
    until there are such (PipeDream-2BW, Narayanan et al. 2021, section 3.1: delay 1).

    The strategy makes the weights of the first step by `model.local_copy`, takes `model.update` with the newest on the
    gradients of each step's samples, and hands in the last.

    Args:
        steps: how many, or the name of the option that says it.
        delay: how many steps old.
        alike: as for `own_steps`.

    Raises:
        UsageError: `delay` is no integer of at least 1.
    """
    if isinstance(delay, bool) or not isinstance(delay, int) or delay < 1:
        raise UsageError(f"delay must be an integer of at least 1, got {delay!r}; a step without is a usual one")
    return _declaring(DeclaredLocalSteps(steps, 1, MEAN, in_turn=True, delay=delay, alike=alike))


def own_steps(steps: int | str, *, alike: bool = False) -> Callable[[S], S]:
    """Declare synchronous steps that a strategy takes in a loop of its own; to be put before it.

    What a step launches may end in a later one: the gather of its weights, or the sum of gradients that it applies.
    The run's batch has the samples of all steps, one after the other: step t of `for t in model.steps()` takes
    `model.samples_of_rank(steps * replicas, t * replicas + replica)`. The strategy hands in the weights of the last.

    Args:
        steps: how many, or the name of the option that says it.
        alike: whether each step does what the one before does, but for the first and last ones. Then
            `log="summary"` simulates a long loop until its steps repeat, and adds the rest in time; not for loops in
            which an option chooses a step.
    """
    return _declaring(DeclaredLocalSteps(steps, 1, MEAN, in_turn=True, alike=alike))


def approximate_steps(steps: int | str, compression: Any, *, alike: bool = False) -> Callable[[S], S]:
    """Declare steps whose gradients are sent in fewer bytes than they have; to be put before a strategy.

    The run's batch has the samples of all steps, one after the other, and of a step each rank has an equal, contiguous
    part: step t of `for t in model.steps()` takes `model.samples_of_rank(steps * world_size, t * world_size + rank)`.
    The strategy makes for each layer a state by `model.load_compression`. In each step every rank takes its gradient
    through `model.compress`, a collective and `model.decompress` (PowerSGD: `model.second_factor` and another
    all_reduce between), and updates with what comes of that.

    Args:
        steps: how many, or the name of the option that says it.
        compression: "powersgd:4" (rank), "topk:0.01" (share), "int8", "fp8" or "int4" ("int4:32+feedback" in blocks of
            32, with the error fed back), or the name of the option that says it.
        alike: as for `own_steps`.
    """
    return _declaring(DeclaredLocalSteps(steps, 1, MEAN, in_turn=True, compression=compression, alike=alike))


def _declaring(declared: DeclaredLocalSteps) -> Callable[[S], S]:
    """Return what declares something of a strategy."""

    def declare(strategy: S) -> S:
        strategy.semantics = declared  # type: ignore[attr-defined]  # any callable takes it
        return strategy

    return declare
