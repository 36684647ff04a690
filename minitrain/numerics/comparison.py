"""The comparison of what the ranks of a run have trained with what one device trains: element by element.

A difference is judged relative to the largest element of the same weight, or of the same moment of it. Where that is
less than a thousandth of the largest in the layer, it is judged by this thousandth: gradients that are zero by
mathematics, such as that of a bias of keys, are nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from numpy.typing import NDArray

from minitrain.errors import StrategyError
from minitrain.numerics.arithmetic import Adam, Array, Momentum
from minitrain.numerics.arrays import Flat, held
from minitrain.numerics.model import NumericModel
from minitrain.numerics.problem import Problem
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.numerics.unit_weights import PADDING, names_of, places
from minitrain.run.result import Run

if TYPE_CHECKING:
    from minitrain.numerics.reference import Reference

_FLOOR = 1e-3
_MOMENTS = {Adam: ("first moment", "second moment"), Momentum: ("velocity",)}


@final
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
    return _MOMENTS[type(problem.optimizer)]


def results_of(run: Run, problem: Problem | TransformerProblem, reference: Reference) -> Iterator[Result]:
    """Yield the result of every rank for every layer that it updated or handed in.

    Raises:
        StrategyError: the run has no numbers.
    """
    for model in run.models:
        if not isinstance(model, NumericModel):
            raise StrategyError(f"the run of {run.strategy} has no numbers; simulate it with numerics")
        for weights, states in (
            (model.final_weights, model.final_states),
            (model.final_experts, model.final_expert_states),
        ):
            for layer in sorted({*weights, *states}):
                trained = weights.get(layer), states.get(layer)
                yield _result(model._rank, layer, trained, problem, reference)


def _result(
    rank: int,
    layer: int,
    trained: tuple[Any, Flat | None],
    problem: Problem | TransformerProblem,
    reference: Reference,
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
