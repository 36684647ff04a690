"""What a strategy means to compute, who takes how much of it (`Shares`), and whether a run has done it.

**Meaning.** By default the gradient of every sample of the batch goes into each update, and all ranks have the same
weights. A strategy that means something else declares it, and its laws and its proof follow from what it declares.

**Shares.** Where ranks are not alike, a run gets shares: `simulate(..., shares=mt.Shares(samples=[12, 4], layers=[20,
12]))`, the samples of each replica and the layers of each stage. A strategy reads those of its own rank from its model:
`model.samples_of_rank()`, `model.microbatches()` and `model.stages()`. Without shares all of these divide equally, so
that one strategy serves both. A *replica* is what has a share of the batch: a rank of data parallelism, or a whole
pipeline where there are stages. Samples go to replicas in their order, contiguously. Every gradient is the sum over its
samples divided by those of the whole batch, so that a rank with more samples weighs more; nothing has to be scaled.
Left out: pipelines whose replicas are cut into different stages.

**The end** (`check_final_weights`): a run must have trained the model, every layer's final weight, over all ranks, and
whole checkpoints. A rank begins a later step of a longer run with the weights that it ended the one before with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from minitrain.errors import LawError, StrategyError, UsageError, is_count, typed
from minitrain.operations.collectives import describe
from minitrain.tensors import OptState, Weight
from minitrain.tensors.compressed import Compressor, compressor_of
from minitrain.tensors.index_sets import between, ranges
from minitrain.tensors.placed import ExpertOptState, ExpertWeight, RouterWeight, WeightPart

S = TypeVar("S", bound=Callable[..., Any])


@typed
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


@typed
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
    compression: str | Compressor | None = None
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
        sent = self.compression
        how = compressor_of(options.get(sent, sent) if isinstance(sent, str) else sent)
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
        if number is not None and not is_count(number, least):
            raise StrategyError(f"{called} must be an integer of at least {least} for {name}, got {number!r:.80}")
        return number


@typed
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


@typed
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


@typed
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


@typed
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


EXAMPLE = "as in mt.Shares(samples=[12, 4]) or mt.Shares(layers=[20, 12])"


@dataclass(frozen=True, slots=True)
class Shares:
    """How a step is divided between ranks that are not alike.

    Args:
        samples: of each replica, at least 1; equal shares of the batch if None.
        layers: of each stage, at least 1; as `Model.stages` finds them if None.
        microbatch_sizes: the most samples of a microbatch, of each replica; the strategy's own option if None.

    Raises:
        UsageError: all three are None, one is no sequence of counts, or samples and microbatch sizes are of different
            numbers of replicas.

    >>> Shares(samples=[3, 1]).samples_of(1)
    range(3, 4)
    """

    samples: Sequence[int] | None = None
    layers: Sequence[int] | None = None
    microbatch_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if all(value is None for value in given.values()):
            raise UsageError(f"shares must say samples, layers or microbatch_sizes, {EXAMPLE}")
        for name, value in given.items():
            if value is not None:
                object.__setattr__(self, name, _counts(name, value))
        if self.samples and self.microbatch_sizes and len(self.samples) != len(self.microbatch_sizes):
            raise UsageError(
                f"samples and microbatch_sizes of shares must be of the same replicas, got {len(self.samples)} and "
                f"{len(self.microbatch_sizes)}; give one of each a replica"
            )

    @classmethod
    def of(cls, value: Any) -> Shares:
        """Return shares from what a run is given: shares, samples of each replica, or a plan that has `shares`.

        Raises:
            UsageError: it is something else.
        """
        found = getattr(value, "shares", value)
        if isinstance(found, Shares):
            return found
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise UsageError(f"shares must be samples of each replica or a mt.Shares, got {value!r:.80}; {EXAMPLE}")
        return cls(samples=found)

    def require(self, global_batch_size: int, num_layers: int) -> None:
        """Require that the shares make up a step.

        Raises:
            UsageError: they make up more or less.
        """
        for name, total in (("samples", global_batch_size), ("layers", num_layers)):
            counts = getattr(self, name)
            if counts is not None and sum(counts) != total:
                whole = "global_batch_size" if name == "samples" else "num_layers"
                raise UsageError(
                    f"{name} of shares must add up to {whole} ({total}), and {list(counts)} add up to {sum(counts)}; "
                    f"change a share, or use {whole}={sum(counts)}",
                    shares=self,
                )

    @property
    def names(self) -> frozenset[str]:
        """What they divide: "samples", "layers", or both."""
        divides = {"samples": self.samples or self.microbatch_sizes, "layers": self.layers}
        return frozenset(name for name, counts in divides.items() if counts)

    def samples_of(self, replica: int) -> range:
        """Return the samples of a replica; there must be samples."""
        assert self.samples is not None
        return ranges_of(self.samples)[replica]

    def __str__(self) -> str:
        """Say it in words.

        >>> str(Shares(samples=[3, 1], layers=[20, 12]))
        'samples 3, 1; layers 20, 12'
        """
        said = {field.name.replace("_", " "): getattr(self, field.name) for field in fields(self)}
        return "; ".join(f"{name} {', '.join(map(str, counts))}" for name, counts in said.items() if counts)


@dataclass(frozen=True, slots=True)
class SharesOfRun:
    """The shares of a run, and what of them was asked for.

    Args:
        shares: the shares.
        read: which of `Shares.names` some rank has asked for.
    """

    shares: Shares
    read: set[str] = field(default_factory=set)

    @property
    def unread(self) -> list[str]:
        """What no rank has asked for, so that it was divided equally."""
        return sorted(self.shares.names - self.read)


def ranges_of(counts: Sequence[int]) -> tuple[range, ...]:
    """Return contiguous ranges of some lengths."""
    return between([0, *accumulate(counts)])


def _counts(name: str, value: Any) -> tuple[int, ...]:
    """Return counts as a tuple."""
    counts = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not counts or not all(map(is_count, counts)):
        raise UsageError(f"{name} of shares must be whole numbers of at least 1, got {value!r:.80}; {EXAMPLE}")
    return counts


IN_PARTS = frozenset({WeightPart, ExpertWeight})
"""The weights of which ranks hold parts: of whole layers, or of a layer's experts."""


class TrainedRank(Protocol):
    """The part of a rank's model that is read after the run."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def num_layers(self) -> int:
        """Layers of the trained model."""

    @property
    def final_weights(self) -> Mapping[int, Weight]:
        """Final weight by layer."""

    @property
    def final_experts(self) -> Mapping[int, Weight]:
        """Final weight of this rank's experts by layer."""

    @property
    def written(self) -> Sequence[Any]:
        """Copies of what this rank has written to the storage."""

    @property
    def _runtime_predictor(self) -> Any:
        """What knows the workload."""


def check_final_weights(models: Sequence[TrainedRank]) -> None:
    """Verify that every layer has a final weight: complete over all ranks, one step on, equal across replicas.

    Args:
        models: the model of each rank, after the run.

    Raises:
        LawError: a layer's final weight is missing, incomplete, not of step 1, or differs between the ranks.
    """
    weights, experts = _by_layer(models, "final_weights"), _by_layer(models, "final_experts")
    is_divided = any(_are_divided(model.final_weights) or model.final_experts for model in models)
    for layer in range(models[0].num_layers):
        found = weights[layer]
        if not found:
            raise LawError(
                f"layer {layer} has no final weight on any rank; call model.set_final_weight({layer}, weight) where "
                "its last update was",
                layer=layer,
            )
        if is_divided:
            _require_both_pieces(layer, found, experts[layer])
        for of_part in (*_by_part(layer, found), *_by_part(layer, experts[layer])) if is_divided else (found,):
            _check_layer(layer, of_part)
    if any(model.written for model in models):
        _check_checkpoints(models, weights, experts)


def _check_checkpoints(
    models: Sequence[TrainedRank],
    weights: Mapping[int, Sequence[tuple[int, Weight]]],
    experts: Mapping[int, Sequence[tuple[int, Weight]]],
) -> None:
    """Verify that what ranks have written of each step is whole: every weight that is trained, and its state."""
    found: defaultdict[tuple[int, bool, bool, int], list[tuple[int, Any]]] = defaultdict(list)
    for model in models:
        for tensor in model.written:
            if isinstance(tensor, Weight | OptState):
                is_expert = isinstance(tensor, ExpertWeight | ExpertOptState)
                found[tensor.step, isinstance(tensor, Weight), is_expert, tensor.layer].append((model.rank, tensor))
    trained = getattr(models[0]._runtime_predictor.workload, "trained_share", lambda _: 1.0)
    wanted = [
        (step, is_weight, is_expert, layer)
        for step in sorted({step for step, *_ in found})
        for is_expert, held in ((False, weights), (True, experts))
        for layer in sorted(held)
        if held[layer] and trained(held[layer][0][1])
        for is_weight in (True, False)
    ]
    for step, is_weight, is_expert, layer in wanted:
        what = f"the {'weight' if is_weight else 'optimizer state'} of {'the experts of ' * is_expert}layer {layer}"
        pieces = found.get((step, is_weight, is_expert, layer), [])
        missing = "all of it" if not pieces else _missing([tensor for _, tensor in pieces])
        if missing:
            raise LawError(
                f"the checkpoint of step {step} is incomplete: {what} lacks {missing}; a checkpoint has every weight "
                "and every optimizer state of one step, so that training can go on from it",
                layer=layer,
            )


def _missing(pieces: Sequence[Any]) -> str:
    """Return in words what some pieces of one tensor, of equal division, leave out."""
    parts: defaultdict[frozenset[int], set[int]] = defaultdict(set)
    for piece in pieces:
        parts[frozenset(getattr(piece, "parts", (0,)))] |= set(piece.shards)
    first, num_parts = pieces[0], getattr(pieces[0], "num_parts", 1)
    lost = set(range(num_parts)).difference(*parts)
    if lost:
        return f"part {ranges(lost)} of {num_parts}"
    shards = set.union(*(set(range(first.num_shards)) - held for held in parts.values()))
    return f"shard {ranges(shards)} of {first.num_shards}" if shards else ""


def _are_divided(weights: Mapping[int, Weight]) -> bool:
    """Return whether some weights are parts of layers, or pieces of layers with experts."""
    return not {WeightPart, RouterWeight}.isdisjoint(map(type, weights.values()))


def _by_layer(models: Sequence[TrainedRank], name: str) -> Mapping[int, list[tuple[int, Weight]]]:
    """Return ranks and their final weights by layer; each rank is asked once, not once a layer."""
    found: defaultdict[int, list[tuple[int, Weight]]] = defaultdict(list)
    for model in models:
        rank = model.rank
        for layer, weight in getattr(model, name).items():
            found[layer].append((rank, weight))
    return found


def _require_both_pieces(layer: int, found: Sequence[tuple[int, Weight]], experts: Sequence[object]) -> None:
    """Verify that a layer is whole on all ranks, or that there are experts beside what all ranks hold of it."""
    are_routers = {isinstance(weight, RouterWeight) for _, weight in found}
    if are_routers == {bool(experts)}:
        return
    if experts or len(are_routers) > 1:
        raise LawError(
            f"the final weights of layer {layer} must be whole on all ranks, or router pieces on all with experts "
            f"beside them; got {', '.join(sorted({describe(weight) for _, weight in found}))}"
            + (" and experts" if experts else ""),
            layer=layer,
        )
    raise LawError(
        f"the final weight of layer {layer} is incomplete: its experts are on no rank; call "
        f"model.set_final_weight({layer}, experts) too",
        layer=layer,
    )


def _by_part(layer: int, found: Sequence[tuple[int, Weight]]) -> Iterable[Sequence[tuple[int, Weight]]]:
    """Return the final weights of each part of a layer; all parts must be there, of one division."""
    if IN_PARTS.isdisjoint({type(weight) for _, weight in found}):
        return [found] if found else []
    first_rank, first = found[0]
    parts: defaultdict[frozenset[int], list[tuple[int, Weight]]] = defaultdict(list)
    for rank, weight in found:
        if getattr(weight, "num_parts", 1) != getattr(first, "num_parts", 1):
            rule = (
                f"the final weights of layer {layer} must be of parts of one division on all ranks, got "
                f"{describe(first)} on rank {first_rank} and {describe(weight)} on rank {rank}"
            )
            raise LawError(rule, layer=layer, rank=rank)
        parts[weight.parts].append((rank, weight))
    missing = ranges(set(range(first.num_parts)).difference(*parts))
    if missing:
        rule = f"the final weight of layer {layer} is incomplete: part {missing} of {first.num_parts} is on no rank"
        raise LawError(rule, layer=layer)
    return parts.values()


def _check_layer(layer: int, found: Sequence[tuple[int, Weight]]) -> None:
    """Verify the final weights of one layer."""
    first_rank, first = found[0]
    shards: set[int] = set()
    for rank, weight in found:
        if weight.step != 1:
            rule = (
                f"the final weight of layer {layer} on rank {rank} must have seen exactly one update, got "
                f"{describe(weight)}; hand in what its one `update` returned"
            )
            raise LawError(rule, layer=layer, rank=rank)
        if weight.num_shards != first.num_shards:
            rule = (
                f"the final weights of layer {layer} must be cut alike on all ranks, got {describe(first)} on rank "
                f"{first_rank} and {describe(weight)} on rank {rank}"
            )
            raise LawError(rule, layer=layer, rank=rank)
        if len(shards) < first.num_shards:  # a thousand replicas may hold a thousand shards each: one will do
            shards |= weight.shards
    if len(shards) != first.num_shards:
        missing = sorted(set(range(first.num_shards)) - shards)
        rule = (
            f"the final weight of layer {layer} is incomplete: shards {missing[:8]} of {first.num_shards} are on no "
            "rank"
        )
        raise LawError(rule, layer=layer, missing=missing)


@dataclass(slots=True)
class Entry:
    """How a rank begins a step.

    Args:
        follows: whether another one was before it, so that loading finds the weights in memory.
        loaded: the weights that it has loaded in this step.
    """

    follows: bool
    loaded: list[Any] = field(default_factory=list)


def require_handed_on(models: Sequence[TrainedRank]) -> None:
    """Require that each rank has handed in what it begins the next step with.

    Raises:
        LawError: it has not.
    """
    for model in models:
        rank = getattr(model, "_rank", model.rank)
        for weight in _not_loaded(model):
            finals = model.final_experts if isinstance(weight, ExpertWeight) else model.final_weights
            handed = finals.get(weight.layer)
            instead = "none of it" if handed is None else describe(handed)
            rule = (
                f"rank {rank} begins a step with {describe(weight)} and ends it with {instead}; the next step "
                f"begins with what set_final_weight({weight.layer}, ...) was given, so hand in all that a rank loads"
            )
            raise LawError(rule, rank=rank, layer=weight.layer)


def _not_loaded(model: TrainedRank) -> Iterator[Weight]:
    """Yield the weights that a rank has loaded and not handed in."""
    entry: Entry | None = getattr(model, "_entry", None)
    for weight in () if entry is None else entry.loaded:
        finals = model.final_experts if isinstance(weight, ExpertWeight) else model.final_weights
        handed: Any = finals.get(weight.layer)
        are_of_one_part = handed.__class__ is weight.__class__ and (handed.parts, handed.num_parts) == (
            weight.parts,
            weight.num_parts,
        )
        if not are_of_one_part or not _has_shards(handed, weight):
            yield weight


def _has_shards(handed: Weight, weight: Weight) -> bool:
    """Return whether what was handed in has the shards of what was loaded."""
    if handed.is_complete():
        return True
    return handed.num_shards == weight.num_shards and handed.shards.issuperset(weight.shards)
