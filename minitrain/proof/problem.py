"""The training problem of a numeric run, and the arrays that tensors carry: how they are sharded, combined and added.

Data and initial weights are made from a seed. On a transformer a sample is a sequence of random tokens and the loss
that of the next one. Everything is in float64, whatever the model's precision. Norms begin near 1 and not at it, and
biases not at 0, so that an error in either shows. Where embeddings are tied, a strategy must sum the table's gradient
over embedding and head. Dropout must be 0, since a proof compares one sample's outcome with itself. ALiBi is left out:
attention without positions is computed.

Arrays are never changed in place, so that tensors may share them. They lie in NumPy's memory, or on a backend of the
hardware abstraction layer: initial weights and inputs are placed; what is computed with them is computed where they
lie, since NumPy's functions leave that to the array. So the arithmetic of layers is written once. Where ranks lie on
different backends, what they exchange moves between these. Of this room, only this file imports
`minitrain.heterogeneous`, when a backend is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from autograd.numpy.numpy_boxes import ArrayBox  # type: ignore[import-untyped]
from autograd.numpy.numpy_vspaces import ArrayVSpace  # type: ignore[import-untyped]
from numpy.typing import NDArray

from minitrain.errors import UsageError, refuse
from minitrain.proof.arithmetic import Adafactor, Adam, Array, Averaged, Momentum, Muon, Optimizer
from minitrain.proof.attention_core import Tokens
from minitrain.tensors.compressed import Shapes
from minitrain.workloads.shapes import WeightShape
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.unit import Unit

_INPUTS, _TARGETS, _WEIGHTS = range(3)


@dataclass(frozen=True, slots=True)
class Problem:
    """A training step on small dense layers; its data follow from the seed.

    Args:
        width: features of every layer; a weight is a width x width matrix.
        seed: of inputs, targets and initial weights.
        optimizer: takes the step.
        backend: what computes: "numpy", "jax" or "torch", by the hardware abstraction layer, or several of these, which
            ranks take in turn; NumPy directly if None.
    """

    width: int = 8
    seed: int = 0
    optimizer: Optimizer | Averaged = field(default_factory=Adam)
    backend: Any = None

    def inputs(self, global_batch_size: int) -> Array:
        """Return the inputs of the global batch, one row a sample."""
        return _normal(self.seed, _INPUTS, 0, global_batch_size, self.width)

    def targets(self, global_batch_size: int) -> Array:
        """Return the targets of the global batch, one row a sample."""
        return _normal(self.seed, _TARGETS, 0, global_batch_size, self.width)

    def optimizer_of(self, layer: int) -> Any:  # noqa: ARG002  (all layers are alike)
        """Return what takes the step of a layer."""
        return self.optimizer

    def trained(self, layer: int) -> tuple[NDArray[np.bool_], Shapes]:  # noqa: ARG002  (all layers are alike)
        """Return which elements of a layer train, and the shapes of the weights that they are."""
        return np.ones(self.width**2, dtype=np.bool_), ((self.width, self.width),)

    def initial_weight(self, layer: int) -> Array:
        """Return the weight of a layer before the step, width x width, at a scale where tanh does not saturate."""
        numbers = _normal(self.seed, _WEIGHTS, layer, self.width, self.width)
        return np.asarray(numbers / np.sqrt(self.width / 2))


@lru_cache(maxsize=512)
def _normal(seed: int, what: int, which: int, rows: int, columns: int) -> Array:
    """Return normal random numbers; those of more rows begin with those of fewer."""
    numbers = np.random.default_rng([seed, what, which]).standard_normal((rows, columns))
    numbers.flags.writeable = False
    return numbers


MOST_RANKS = 2**16  # each takes 5 ms and 0.1 MB of the smallest proof
MOST_PARAMETERS = 2**21
MOST_HELD = 2**25  # over all ranks, each of which may hold a whole model with its gradient and optimizer state
MOST_FLOP = 2e12  # of a step over all ranks: minutes on one core

_TOKENS, _WEIGHTS_OF_UNITS = range(2)


@dataclass(frozen=True, slots=True)
class TransformerProblem:
    """A training step on a small transformer; its data follow from the seed.

    Args:
        model: what is trained.
        seq_len: tokens of a sample; the model's own if None.
        seed: of tokens and initial weights.
        optimizer: takes the step; with the average of weights, if the model has one.
        capacity_factor: how many times its fair share of a sample's tokens an expert takes at most; None for all.
        backend: as for `Problem`.
        most_parameters: how large the model may be, since each rank of a proof has all of it in float64; None for any.

    Raises:
        UsageError: the model is too large to compute with, or has what is left out; all faults at once.
    """

    model: Transformer
    seq_len: int = None  # type: ignore[assignment]  # filled in by __post_init__
    seed: int = 0
    optimizer: Optimizer | Averaged = field(default_factory=Adam)
    capacity_factor: float | None = None
    backend: Any = None
    most_parameters: int | None = MOST_PARAMETERS

    def __post_init__(self) -> None:
        if self.seq_len is None:
            object.__setattr__(self, "seq_len", self.model.seq_len)
        if self.model.optimizer == "muon" and isinstance(self.optimizer, Adam):
            object.__setattr__(self, "optimizer", Muon(adam=self.optimizer))
        if self.model.optimizer == "adafactor" and isinstance(self.optimizer, Adam):
            object.__setattr__(self, "optimizer", Adafactor())
        if self.model.ema is not None and not isinstance(self.optimizer, Averaged):
            object.__setattr__(self, "optimizer", Averaged(self.optimizer, self.model.ema))
        faults = list(_faults(self.model, self.most_parameters))
        if self.model.optimizer != "adam" and (self.backend is not None or isinstance(self.optimizer, Momentum)):
            faults.append(
                "optimizer and backend must be left out, or an Adam, for a model that "
                f"{self.model.optimizer.title()} trains, got {self.optimizer!r:.80} and {self.backend!r:.40}"
            )
        if faults:
            raise refuse(f"{self.model.name} with real arrays", faults)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Return the layers that are trained."""
        return self.model.units()

    def require_sizes(self, world_size: int, global_batch_size: int) -> None:
        """Require sizes that can be computed with.

        Raises:
            UsageError: it would take too long, or too much memory.
        """
        work = global_batch_size * self.seq_len * self.model.flop_per_token(self.seq_len)
        if work > MOST_FLOP:
            raise UsageError(
                f"a step of {work:.2g} floating-point operations is too large to compute with real arrays, which is "
                f"for {MOST_FLOP:.2g} at most; use a smaller global_batch_size than {global_batch_size}, or a shorter "
                f"seq_len than {self.seq_len}",
                global_batch_size=global_batch_size,
            )
        if world_size * self.model.num_parameters > MOST_HELD:
            raise UsageError(
                f"{world_size} ranks with {self.model.num_parameters:,} parameters are too many to hold in float64; "
                f"use at most {MOST_HELD // self.model.num_parameters} ranks, or a smaller model",
                world_size=world_size,
            )

    def inputs(self, global_batch_size: int) -> NDArray[np.int64]:
        """Return the tokens of the global batch, samples x seq_len."""
        return _tokens(self, global_batch_size)[:, :-1]

    def targets(self, global_batch_size: int) -> NDArray[np.int64]:
        """Return the token that follows each of the inputs."""
        return _tokens(self, global_batch_size)[:, 1:]

    def optimizer_of(self, layer: int) -> Any:
        """Return what takes the step of a unit, which knows its matrices."""
        found: Any = self.optimizer
        of: Any = found.of if isinstance(found, Averaged) else found
        if isinstance(of, Muon):
            of = replace(of, matrices=self.units[layer].orthogonalised)
        if isinstance(of, Adafactor):
            of = replace(of, weights=self.units[layer].weights_in_place)
        return replace(found, of=of) if isinstance(found, Averaged) else of

    def trained(self, layer: int) -> tuple[NDArray[np.bool_], Shapes]:
        """Return which elements of a unit train, and the shapes of the weights that they are."""
        weights = self.units[layer].weights
        mask = np.repeat([weight.is_trained for weight in weights], [weight.num_parameters for weight in weights])
        return mask, tuple(weight.shape for weight in weights if weight.is_trained)

    def initial_weight(self, layer: int) -> Array:
        """Return the weights of a unit before the step, as one flat array."""
        return _initial_weight(self.model, self.seed, layer)


_NOT_COMPUTED = {
    "norm_placement": ("pre", "norms behind a unit are"),
    "qk_norm": ("none", "norms of queries and keys are"),
    "sinks": (False, "sinks are"),
    "score_cap": (None, "soft caps are"),
    "logit_cap": (None, "soft caps are"),
    "gate_clamp": (None, "clamped gates are"),
    "chunked_windows": (False, "windows side by side are"),
    "output_gate": (False, "gates of attention are"),
    "sparse": (None, "sparse attentions are"),
    "without_mixer": ((), "layers of an MLP alone are"),
    "without_mlp": ((), "layers of an attention alone are"),
    "linear_layers": ((), "linear attentions are"),
    "shared_gate": (False, "gates of shared experts are"),
    "prediction_layers": (0, "layers that predict further tokens are"),
}
"""What a transformer may have that its arithmetic has not: the value that it must have, and why."""


def _faults(model: Transformer, most_parameters: int | None) -> Iterator[str]:
    """Yield why a model cannot be computed with."""
    if most_parameters is not None and model.num_parameters > most_parameters:
        yield (
            f"num_parameters ({model.num_parameters:,}) must be at most {most_parameters:,}, since every rank computes "
            'in float64 here; use workload="tiny", or an mt.Transformer with a few small layers'
        )
    if model.dropout or model.attention_dropout:
        yield (
            f"dropout ({model.dropout}) and attention_dropout ({model.attention_dropout}) must be 0, since masks are "
            "not drawn; use dataclasses.replace(model, dropout=0.0, attention_dropout=0.0)"
        )
    yield from _layers_not_computed(model)
    name, size = _rotary_size(model)
    if size % 2:
        yield f"{name} ({size}) must be even for rotary positions; use {size + 1}"


def _layers_not_computed(model: Transformer) -> Iterator[str]:
    """Yield what of a model's layers has no arithmetic here."""
    for name, (usual, why) in _NOT_COMPUTED.items():
        if getattr(model, name) != usual:
            yield (
                f"{name} ({getattr(model, name)}) must be {usual!r}, since {why} not computed here; use "
                f"dataclasses.replace(model, {name}={usual!r})"
            )
    if model.mlp in ("geglu", "relu2"):
        yield f'mlp must be "swiglu", "gelu" or "relu", since others are not computed here, got "{model.mlp}"'
    if model.window and len(model.window_layers) < model.num_layers:
        yield "window_layers must be all, since every attention is computed with one mask; leave window_layers out"


def _rotary_size(model: Transformer) -> tuple[str, int]:
    """Return what is rotated of a head, by the name of its size, and that size; 0 where nothing is."""
    if model.latent is not None:
        return "latent.rope_head_dim", model.latent.rope_head_dim
    return "head_dim", model.head_dim if model.positions == "rotary" else 0


@lru_cache(maxsize=64)
def _tokens(problem: TransformerProblem, global_batch_size: int) -> NDArray[np.int64]:
    """Return random tokens; those of more samples begin with those of fewer."""
    generator = np.random.default_rng([problem.seed, _TOKENS])
    return generator.integers(problem.model.vocab_size, size=(global_batch_size, problem.seq_len + 1))


@lru_cache(maxsize=512)
def _initial_weight(model: Transformer, seed: int, layer: int) -> Array:
    """Return normal random numbers, at scales where nothing saturates."""
    unit = model.units()[layer]
    generator = np.random.default_rng([seed, _WEIGHTS_OF_UNITS, layer])
    drawn = [_drawn(generator, unit, weight, is_tied=model.tied_embeddings) for weight in unit.weights]
    if unit.kind == "head" and model.tied_embeddings:  # the embedding's table
        size = model.vocab_size * model.hidden_size
        drawn[-1] = _initial_weight(model, seed, 0)[:size].reshape(model.vocab_size, model.hidden_size).T
    values = np.concatenate([each.ravel() for each in drawn])
    values.flags.writeable = False
    return values


def _drawn(generator: np.random.Generator, unit: Unit, weight: WeightShape, *, is_tied: bool) -> Array:
    """Return one weight's first numbers."""
    numbers = generator.standard_normal(weight.shape)
    if weight.is_norm or len(weight.shape) == 1:
        return 0.1 * numbers + (1 if weight.name.endswith("norm.weight") else 0)
    if unit.kind == "embedding" and not is_tied:
        return numbers
    if unit.kind == "embedding":
        return np.asarray(numbers / np.sqrt(weight.shape[-1]))  # the head's scale
    return np.asarray(numbers / np.sqrt(weight.shape[-2]))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The numbers of an activation or its gradient.

    Args:
        values: one row a sample, in ascending order of the samples.
    """

    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """The numbers of a weight, its gradient or its optimizer state, or of some shards of them.

    Args:
        values: all elements of the layer, or of a part of it, along the last axis; those that are not held are NaN, so
            that a use of one shows in the result.
        part: which part of a layer, where it may be divided; see `minitrain.proof.units`.
    """

    values: Array
    part: Any = None

    def add(self, other: Flat) -> Flat:
        """Return the sum."""
        return Flat(self.values + other.values, self.part)

    def shard(self, shard: int, num_shards: int) -> Flat:
        """Return the elements of one of `num_shards` shards; all others become NaN."""
        here = held([shard], num_shards, self.values.shape[-1])
        return Flat(np.where(here, self.values, np.nan), self.part)

    def combine(self, other: Flat) -> Flat:
        """Return the elements of both."""
        return Flat(np.where(np.isnan(self.values), other.values, self.values), self.part)


def held(shards: Iterable[int], num_shards: int, size: int) -> NDArray[np.bool_]:
    """Return which of `size` elements some shards hold; shard i of n is the part of them from i / n to (i + 1) / n.

    >>> held([1], 3, 8)
    array([False, False,  True,  True,  True, False, False, False])
    """
    mask = np.zeros(size, dtype=np.bool_)
    for shard in shards:
        mask[shard * size // num_shards : (shard + 1) * size // num_shards] = True
    return mask


class _PlacedSpace(ArrayVSpace):  # type: ignore[misc]  # autograd has no types
    """How autograd adds up gradients that are placed arrays."""

    def __init__(self, value: Any) -> None:
        self.shape, self.dtype = value.shape, value.dtype

    def _mut_add(self, x: Any, y: Any) -> Any:
        return x + y


def on_place(problem: Problem | TransformerProblem, backend: Any = None) -> Problem | TransformerProblem:
    """Return a problem whose arrays are placed on a backend, or on one for each rank.

    Args:
        problem: what is trained.
        backend: "numpy", "jax" or "torch", or a sequence of these, which ranks take in turn; that of the problem if
            None.

    Raises:
        UsageError: there is no such backend, or its library is not installed.
    """
    wanted = problem.backend if backend is None else backend
    names = wanted if isinstance(wanted, list | tuple) else (wanted,)
    if wanted is None or (names and all(hasattr(name, "put") for name in names)):
        return problem
    from minitrain.machine.heterogeneous.abstraction_layer import PlacedArray, places_of  # noqa: PLC0415  (only where a backend is named)

    ArrayBox.register(PlacedArray)
    _PlacedSpace.register(PlacedArray)
    places = places_of(names)
    return replace(problem, backend=places if len(places) > 1 else places[0])


def of_rank(problem: Problem | TransformerProblem, rank: int) -> Problem | TransformerProblem:
    """Return a problem with the place of one rank, where ranks have different ones."""
    places = problem.backend
    return replace(problem, backend=places[rank % len(places)]) if isinstance(places, tuple) else problem


def placed(values: Any, problem: Problem | TransformerProblem) -> Any:
    """Return initial numbers where a problem wants them."""
    return values if problem.backend is None else problem.backend.put(values)


def at_home(values: Any) -> Array:
    """Return numbers in NumPy's memory."""
    return values.home() if hasattr(values, "home") else values  # type: ignore[no-any-return]  # an array either way


def brought(content: Any, place: Any) -> Any:
    """Return what a tensor carries on a rank's own place, where it came from another rank's.

    Incomplete gradients stay where they are: they are the same objects until they are complete.
    """
    if not isinstance(content, Flat | Rows | Tokens):
        return content
    values: Any = content.values
    if getattr(values, "place", place) is place:
        return content
    return replace(content, values=place.put(values.home()))


def computed_by(problem: Problem | TransformerProblem) -> tuple[str | None, dict[str, int]]:
    """Return the backends that a problem names, and how many operations were computed where."""
    if problem.backend is None:
        return None, {}
    places = problem.backend if isinstance(problem.backend, tuple) else (problem.backend,)
    on_host = sum(place.on_host.total() for place in places)
    return " and ".join(dict.fromkeys(place.key for place in places)), {**places[0].layer.executed, "host": on_host}
