"""The proof that a strategy trains: its numbers against those of a single device.

The comparison of what the ranks of a run have trained with what one device trains: element by element.

A difference is judged relative to the largest element of the same weight, or of the same moment of it. Where that is
less than a thousandth of the largest in the layer, it is judged by this thousandth: gradients that are zero by
mathematics, such as that of a bias of keys, are nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from minitrain.engine.gradients import require_tied
from minitrain.errors import ProofError, StrategyError, typed
from minitrain.proof.arithmetic import Adafactor, Adam, Array, Averaged, Momentum, Muon
from minitrain.proof.layers import problem_of
from minitrain.proof.problem import Flat, Problem, TransformerProblem, computed_by, held, on_place
from minitrain.proof.units import PADDING, names_of, places
from minitrain.run.result import Run
from minitrain.run.simulation import ProveKeywords, of_strategy, simulate

if TYPE_CHECKING:
    from minitrain.proof.reference import Reference
    from minitrain.run.strategy_loading import Strategy


_FLOOR = 1e-3
_MOMENTS = {
    Adam: ("first moment", "second moment"),
    Momentum: ("velocity",),
    Muon: ("first moment, or momentum", "second moment"),
    Adafactor: ("second moment, or its factors",),
}


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one rank has trained of one layer; elements that it does not hold are set to what is expected.

    Args:
        rank: which rank.
        layer: which layer.
        got: final weight, and the optimizer's state if this rank updated it.
        expected: the same of the single device.
        here: which elements of the layer the rank's final weight holds, none if it handed none in.
        names: the layer's weights, by the elements of `got` that belong to each.
    """

    rank: int
    layer: int
    got: dict[str, Array]
    expected: dict[str, Array]
    here: NDArray[np.bool_]
    names: Mapping[str, slice]

    def difference(self) -> float:
        """Return the largest absolute difference."""
        return max(float(np.max(np.abs(self.got[name] - self.expected[name]))) for name in self.got)

    def relative_differences(self, moments: tuple[str, ...]) -> Iterator[tuple[float, str]]:
        """Yield how much each weight, and each moment of it, differs, with what it is called.

        Args:
            moments: what the optimizer's moments are called.
        """
        for quantity, rows in (("weight", ("",)), ("optimizer_state", moments)):
            if quantity not in self.got:
                continue
            pairs = zip(rows, np.atleast_2d(self.got[quantity]), np.atleast_2d(self.expected[quantity]), strict=True)
            for row, got, expected in pairs:
                sizes, differences = np.abs(expected), np.abs(got - expected)
                least = _FLOOR * _largest(sizes)
                for name, where in self.names.items():
                    largest, difference = max(_largest(sizes[where]), least), _largest(differences[where])
                    relative = difference / largest if largest else np.inf if difference else 0.0
                    yield relative, f"{row} of {name}" if row else name


def _largest(values: Array) -> float:
    """Return the largest of some absolute values, NaN if there is one."""
    return float(values.max(initial=0.0))


def moments_of(problem: Problem | TransformerProblem) -> tuple[str, ...]:
    """Return what the moments of the optimizer are called."""
    optimizer: Any = problem.optimizer
    return (*_MOMENTS[type(optimizer.of)], "average") if isinstance(optimizer, Averaged) else _MOMENTS[type(optimizer)]


def results_of(run: Run, problem: Problem | TransformerProblem, reference: Reference) -> Iterator[Result]:
    """Yield the result of every rank for every layer that it updated or handed in.

    Raises:
        StrategyError: the run has no numbers.
    """
    models: Sequence[Any] = run.models
    for model in models:
        if not hasattr(model, "final_states"):
            raise StrategyError(f"the run of {run.strategy} has no numbers; simulate it with numerics")
        for weights, states in (
            (model.final_weights, model.final_states),
            (model.final_experts, model.final_expert_states),
        ):
            for layer in sorted({*weights, *states}):
                trained = weights.get(layer), states.get(layer)
                yield _result(model._rank, layer, trained, problem, reference)
        for layer, own in model.final_locals.items():
            replica = min(own.samples) // model._semantics.share(run.global_batch_size)
            expected = replace(reference, weights=reference.own[replica])
            found = _result(model._rank, layer, (own, None), problem, expected)
            yield replace(found, here=np.zeros_like(found.here))


def _result(
    rank: int, layer: int, trained: tuple[Any, Flat | None], problem: Problem | TransformerProblem, reference: Reference
) -> Result:
    """Return the result of a rank for a layer, or for a piece of one, with the expected weight and state."""
    final, state = trained
    content = state if final is None else final._content
    where, names = _elements(problem, layer, content, reference.weights[layer].size)
    got, expected = {}, {}
    here = np.zeros(reference.weights[layer].size, dtype=np.bool_)
    if final is not None:
        mine = held(final.shards, final.num_shards, where.size)
        here[where[mine & (where != PADDING)]] = True
        expected["weight"] = np.where(where == PADDING, 0, reference.weights[layer][where])
        got["weight"] = np.where(mine, np.asarray(cast("Flat", final._content).values), expected["weight"])
    if state is not None:
        expected["optimizer_state"] = np.where(where == PADDING, 0, reference.states[layer][:, where])
        values = np.asarray(state.values)
        got["optimizer_state"] = np.where(np.isnan(values), expected["optimizer_state"], values)
    return Result(rank, layer, got, expected, here, names)


def _elements(
    problem: Problem | TransformerProblem, layer: int, content: Any, size: int
) -> tuple[NDArray[np.int64], Mapping[str, slice]]:
    """Return where in the whole layer the elements of a part are, and which of them belong to each weight."""
    if not isinstance(problem, TransformerProblem):
        return np.arange(size), {"": slice(None)}
    unit = problem.units[layer]
    return places(unit, content.part), names_of(unit, content.part)


RELATIVE, ABSOLUTE = 1e-9, 1e-13
"""The largest differences that another order of float64 sums may make; second moments are as small as 1e-10."""

_LAYERS = 8

_ROUNDING = 1e-15
"""A difference of a few last digits, which another machine's sums make anew: it is told as no more than this."""


def _told(difference: float) -> str:
    return f"{difference:.2g}" if difference > _ROUNDING else f"at most {_ROUNDING:.0e}"


@dataclass(frozen=True, slots=True)
class Proof:
    """A strategy's training step was the same as a single device's.

    Args:
        run: the run that was compared.
        differences: largest absolute difference by layer, of final weights and optimizer states over all ranks.
        relative_differences: largest difference by layer relative to the largest element of the same weight or moment
            (see `minitrain.proof.proof`).
        backend: what computed the strategy's numbers, if one was asked for.
        computed: how many operations that was, by backend, and by "host" for what it left to NumPy.
    """

    run: Run
    differences: Mapping[int, float]
    relative_differences: Mapping[int, float]
    backend: str | None = None
    computed: Mapping[str, int] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest difference of all layers."""
        return max(self.differences.values())

    @property
    def largest_relative(self) -> float:
        """The largest relative difference of all layers."""
        return max(self.relative_differences.values())

    def __str__(self) -> str:
        run = self.run
        if run.trained_model is None:
            what, largest = f"{run.num_layers} layers", f"difference is {_told(self.largest)}"
        else:
            what, largest = run.trained_model.name, f"relative difference is {_told(self.largest_relative)}"
        meant = run.models[0]._semantics
        device = "one device does"
        if meant is not None:
            of_replicas = f"{meant.replicas} replicas with {meant.steps} steps of their own"
            of_replicas += meant.streamed
            of_replicas += f" and outer gradients by {meant.compression}" if meant.compression else ""
            device = f"{meant if meant.in_turn else of_replicas} do on one device"
        by = "" if self.backend is None else f", computed by {self.backend}"
        return f"{run.strategy} on {run.world_size} ranks trains {what} as {device}: the largest {largest}{by}"

    def __repr__(self) -> str:
        return f"<Proof: {self}>"


@of_strategy(ProveKeywords)
@typed
def prove(
    strategy: str | Strategy,
    *,
    world_size: int = 8,
    num_layers: int | None = None,
    global_batch_size: int = 16,
    numerics: Any = "numpy",
    backend: str | Sequence[str] | None = None,
    strict: bool = True,
    **options: Any,
) -> Proof:
    """Run a strategy on real arrays, and compare it with an independent step on a single device.

    What is proven: with these sizes and this data, every final weight and optimizer state is what one device computes,
    and it came about by operations of the run's own models alone, which cost what the log says. The latter is what
    strict accounting adds. Without it, numbers that travel by a global variable, or that come from a model of the
    strategy's own, are right too and cost nothing. One proof says nothing of other sizes.

    Args:
        strategy: a coroutine function of one rank's `Model`, a shipped name, or "path.py:function".
        world_size: number of ranks.
        num_layers: layers of the trained model; 8 if None, or those of a transformer that `workload` names.
        global_batch_size: samples of the step, over all ranks.
        numerics: what is trained: "numpy", or a `minitrain.proof.Problem` with another seed, width or optimizer, or
            a `minitrain.proof.TransformerProblem` with a capacity for experts.
        backend: what computes the strategy's numbers: "numpy", "jax" or "torch" by the hardware abstraction layer (see
            `minitrain.heterogeneous`), in float64; or several of these, which ranks take in turn; NumPy
            directly if None. The single device is computed as ever.
        strict: run strictly (see `minitrain.run.strict`); False is faster, and compares the numbers alone.
        options: the strategy's, or those of `simulate`; with `workload="tiny"` or a small `mt.Transformer` the units of
            that are computed, whole or in parts.

    Returns:
        The proof.

    Raises:
        ProofError: a final weight or optimizer state differs, with layer, rank and what differs.
        UsageError: the model is too large to compute with, or has what is left out.
        MinitrainError: the strategy does not even run.

    >>> import minitrain as mt
    >>> proof = mt.prove("zero3", world_size=4, num_layers=2, global_batch_size=8)
    >>> proof.largest < 1e-12
    True
    >>> mt.prove("megatron", workload="tiny", world_size=4, tp=2, pp=2).largest_relative < 1e-9
    True
    >>> mt.prove("ddp", world_size=2, num_layers=2, global_batch_size=4, backend="jax").backend
    'jax'
    """
    if num_layers is not None or options.get("workload") is None:
        options["num_layers"] = _LAYERS if num_layers is None else num_layers
    if backend is not None:
        numerics = on_place(numerics if isinstance(numerics, TransformerProblem) else problem_of(numerics), backend)
    run = simulate(
        strategy,
        world_size=world_size,
        global_batch_size=global_batch_size,
        numerics=numerics,
        strict=strict,
        **options,
    )
    return compare_with_reference(run, numerics)


def compare_with_reference(run: Run, problem: Problem | TransformerProblem | str) -> Proof:
    """Compare the numbers of a finished run with those of a single device.

    Args:
        run: a run with numerics.
        problem: what it was given as `numerics`.

    Raises:
        ProofError: they differ.
    """
    require_tied(run.strategy, run.models)
    trained = problem_of(problem, run.models[0].runtime_predictor.workload)
    found = list(results_of(run, trained, _expected(run, trained)))
    _require_every_element(run, found)
    meant = run.models[0]._semantics
    moments = ("outer momentum",) if meant is not None and not meant.in_turn else moments_of(trained)
    relative = [_relative(result, moments) for result in found]
    if isinstance(trained, TransformerProblem):
        _require_close(found, relative, trained)
    else:
        _require_equal(found)
    return Proof(
        run,
        _by_layer(run, [(result.layer, result.difference()) for result in found]),
        _by_layer(run, [(result.layer, difference) for result, (difference, _) in zip(found, relative, strict=True)]),
        *computed_by(trained),
    )


def _expected(run: Run, problem: Problem | TransformerProblem) -> Reference:
    """Return what a single device trains, whatever computed the strategy's numbers."""
    problem = replace(problem, backend=None)
    meant = run.models[0]._semantics
    if meant is not None:
        from minitrain.proof.reference import local_reference  # noqa: PLC0415  (as below)

        return local_reference(problem, run.num_layers, run.global_batch_size, meant)
    if isinstance(problem, TransformerProblem):
        from minitrain.proof.reference import transformer_reference  # noqa: PLC0415  (as below)

        return transformer_reference(problem, run.global_batch_size)
    from minitrain.proof.reference import reference  # noqa: PLC0415  (it brings autograd)

    return reference(problem, run.num_layers, run.global_batch_size)


def _by_layer(run: Run, found: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return the largest difference of each layer."""
    return {layer: max(value for of, value in found if of == layer) for layer in range(run.num_layers)}


def _relative(result: Result, moments: tuple[str, ...]) -> tuple[float, str]:
    """Return the largest relative difference of a result, and of which weight or moment it is."""
    return max(result.relative_differences(moments), key=lambda pair: (np.isnan(pair[0]), pair[0]))


def _require_close(
    results: Sequence[Result], relative: Sequence[tuple[float, str]], problem: TransformerProblem
) -> None:
    """Require that all results are relatively close to the expected ones.

    Args:
        results: of all ranks.
        relative: the largest relative difference of each.
        problem: what was trained.

    Raises:
        ProofError: one is not; the first one is named.
    """
    for result, (difference, what) in zip(results, relative, strict=True):
        if not difference <= RELATIVE:
            message = (
                f"layer {result.layer} ({problem.units[result.layer].name}) on rank {result.rank} differs from "
                f"single-device training: its {what} by {difference:.3g} of the largest element"
            )
            raise ProofError(message, layer=result.layer, rank=result.rank, difference=difference, what=what)


def _require_every_element(run: Run, results: Sequence[Result]) -> None:
    """Require that the ranks together hold every element of every layer's final weight."""
    for layer in range(run.num_layers):
        here = [result.here for result in results if result.layer == layer]
        if not here or not np.logical_or.reduce(here).all():
            raise ProofError(
                f"the final weight of layer {layer} is not whole over all ranks; call model.set_final_weight({layer}, "
                "weight) with every shard of it",
                layer=layer,
            )


def _require_equal(results: Sequence[Result]) -> None:
    """Require that all results are equal to the expected ones.

    Raises:
        ProofError: one is not; the first one is named.
    """
    for result in results:
        for quantity, expected in result.expected.items():
            got = result.got[quantity]
            apart = ~np.isclose(got, expected, rtol=RELATIVE, atol=ABSOLUTE)
            if apart.any():
                first = tuple(int(index) for index in np.argwhere(apart)[0])
                message = (
                    f"layer {result.layer} on rank {result.rank} differs from single-device training by up to "
                    f"{result.difference():.3g}: {apart.sum()} of {apart.size} elements of its {quantity} differ, the "
                    f"first of them, {list(first)}, is {got[first]:.6g} instead of {expected[first]:.6g}"
                )
                raise ProofError(message, layer=result.layer, rank=result.rank, difference=result.difference())
