"""The proof that a strategy trains: its numbers against those of a single device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import ProofError, StrategyError
from minitrain.numerics.arithmetic import Array
from minitrain.numerics.arrays import Flat, held
from minitrain.numerics.model import NumericModel
from minitrain.numerics.problem import Problem, problem_of
from minitrain.run.result import Run
from minitrain.run.simulation import simulate

if TYPE_CHECKING:
    from minitrain.numerics.reference import Reference
    from minitrain.run.strategy_loading import Strategy

RELATIVE, ABSOLUTE = 1e-9, 1e-13
"""The largest differences that another order of float64 sums may make; second moments are as small as 1e-10."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A strategy's training step was the same as a single device's.

    Args:
        run: the run that was compared.
        differences: largest absolute difference by layer, of final weights and optimizer states over all ranks.
    """

    run: Run
    differences: Mapping[int, float]

    @property
    def largest(self) -> float:
        """The largest difference of all layers."""
        return max(self.differences.values())

    def __str__(self) -> str:
        run = self.run
        return (
            f"{run.strategy} on {run.world_size} ranks trains {run.num_layers} layers as one device does: the largest "
            f"difference is {self.largest:.2g}"
        )


def prove(
    strategy: str | Strategy,
    *,
    world_size: int = 8,
    num_layers: int = 8,
    global_batch_size: int = 16,
    numerics: Any = "numpy",
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
        num_layers: layers of the trained model.
        global_batch_size: samples of the step, over all ranks.
        numerics: what is trained: "numpy", or a `minitrain.numerics.Problem` with another seed, width or optimizer.
        strict: run strictly (see `minitrain.accounting.strict`); False is faster, and compares the numbers alone.
        options: the strategy's, or those of `simulate`.

    Returns:
        The proof.

    Raises:
        ProofError: a final weight or optimizer state differs, with layer, rank and chex's message.
        MinitrainError: the strategy does not even run.

    >>> import minitrain as mt
    >>> proof = mt.prove("zero3", world_size=4, num_layers=2, global_batch_size=8)
    >>> proof.largest < 1e-12
    True
    """
    problem = problem_of(numerics)
    run = simulate(
        strategy,
        world_size=world_size,
        num_layers=num_layers,
        global_batch_size=global_batch_size,
        numerics=problem,
        strict=strict,
        **options,
    )
    return compare_with_reference(run, problem)


def compare_with_reference(run: Run, problem: Problem) -> Proof:
    """Compare the numbers of a finished run with those of a single device.

    Raises:
        ProofError: they differ.
    """
    from minitrain.numerics.reference import reference  # noqa: PLC0415  (it brings JAX)

    expected = reference(problem, run.num_layers, run.global_batch_size)
    found = list(_results(run, expected))
    _require_every_element(run, found)
    _require_equal(found)
    differences = dict.fromkeys(range(run.num_layers), 0.0)
    for result in found:
        differences[result.layer] = max(differences[result.layer], result.difference())
    return Proof(run, differences)


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """What one rank has trained of one layer; elements that it does not hold are set to what is expected.

    Args:
        rank: which rank.
        layer: which layer.
        got: final weight, and the optimizer's state if this rank updated it.
        expected: the same of the single device.
        here: the elements of the final weight that the rank holds, none if it handed none in.
    """

    rank: int
    layer: int
    got: dict[str, Array]
    expected: dict[str, Array]
    here: NDArray[np.bool_]

    def difference(self) -> float:
        """Return the largest absolute difference."""
        return max(float(np.max(np.abs(self.got[name] - self.expected[name]))) for name in self.got)


def _results(run: Run, reference: Reference) -> Iterator[_Result]:
    """Yield the result of every rank for every layer that it updated or handed in."""
    for model in run.models:
        if not isinstance(model, NumericModel):
            raise StrategyError(f"the run of {run.strategy} has no numbers; simulate it with numerics")
        for layer in sorted({*model.final_weights, *model.final_states}):
            yield _result(model, layer, reference.weights[layer], reference.states[layer])


def _result(model: NumericModel, layer: int, weight: Array, state: Array) -> _Result:
    """Return the result of a rank for a layer, with the expected weight and state."""
    got, expected = {}, {}
    here = np.zeros(weight.size, dtype=np.bool_)
    if layer in model.final_weights:
        final = model.final_weights[layer]
        here = held(final.shards, final.num_shards, weight.size)
        content = cast("Flat", final._content)
        got["weight"], expected["weight"] = np.where(here, content.values, weight), weight
    if layer in model.final_states:
        moments = model.final_states[layer].values
        got["optimizer_state"], expected["optimizer_state"] = np.where(np.isnan(moments), state, moments), state
    return _Result(model.rank, layer, got, expected, here)


def _require_every_element(run: Run, results: Sequence[_Result]) -> None:
    """Require that the ranks together hold every element of every layer's final weight."""
    for layer in range(run.num_layers):
        here = [result.here for result in results if result.layer == layer]
        if not here or not np.logical_or.reduce(here).all():
            raise ProofError(
                f"the final weight of layer {layer} is not whole over all ranks; call model.set_final_weight({layer}, "
                "weight) with every shard of it",
                layer=layer,
            )


def _require_equal(results: Sequence[_Result]) -> None:
    """Require that all results are equal to the expected ones.

    Raises:
        ProofError: one is not; the first one is named.
    """
    everything = [(result.got, result.expected) for result in results]
    if _chex_message([got for got, _ in everything], [expected for _, expected in everything]) is None:
        return
    for result in results:
        message = _chex_message(result.got, result.expected)
        if message is not None:
            raise ProofError(
                f"layer {result.layer} on rank {result.rank} differs from single-device training by up to "
                f"{result.difference():.3g}: {message}",
                layer=result.layer,
                rank=result.rank,
                difference=result.difference(),
            )


def _chex_message(got: Any, expected: Any) -> str | None:
    """Return chex's message on how two trees differ, or None where they are close."""
    import chex  # type: ignore[import-untyped]  # noqa: PLC0415  (untyped; it brings JAX)

    try:
        chex.assert_trees_all_close(got, expected, rtol=RELATIVE, atol=ABSOLUTE)
    except AssertionError as error:
        return str(error)
    return None
