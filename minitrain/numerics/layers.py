"""The layers that a rank computes: dense ones, or the units of a transformer.

Contents of tensors go in and come out; `minitrain.numerics.model` attaches them to tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from minitrain.errors import UsageError
from minitrain.numerics import arithmetic
from minitrain.numerics.arithmetic import Adam, Array, Momentum
from minitrain.numerics.arrays import Flat, Rows
from minitrain.numerics.placing import on_place, placed
from minitrain.numerics.problem import Problem
from minitrain.numerics.transformer_layers import TransformerLayers
from minitrain.numerics.transformer_problem import TransformerProblem
from minitrain.workloads.transformer_workload import TransformerWorkload


class Layers(Protocol):
    """The layers of one rank. Arguments called x, grad and weight are contents, and `inp` is the tensor of x."""

    @property
    def optimizer(self) -> Adam | Momentum:
        """What takes the step."""
        ...

    def load(self, layer: int, part: int, num_parts: int) -> Flat:
        """Return the initial weight of a layer, or of a part of it."""
        ...

    def positions(self, shards: Iterable[int], num_shards: int) -> Any:
        """Return the positions of some shards of a sequence."""
        ...

    def inputs(self, samples: Iterable[int], global_batch_size: int, positions: Any = None) -> Any:
        """Return the model's input for some samples, at some positions of their sequence or all."""
        ...

    def forward(self, layer: int, inp: Any, x: Any, weight: Flat, global_batch_size: int) -> Any:
        """Return what a layer makes of its input."""
        ...

    def loss(self, output: Any, samples: Iterable[int], global_batch_size: int) -> Any:
        """Return the gradient of the loss with respect to the model's output."""
        ...

    def backward(self, layer: int, inp: Any, x: Any, grad: Any, weight: Flat) -> tuple[Any, Any]:
        """Return the gradients of weight and input."""
        ...

    def backward_input(self, layer: int, inp: Any, x: Any, grad: Any, weight: Flat) -> Any:
        """Return the gradient of the input alone."""
        ...

    def backward_weight(self, layer: int, inp: Any, x: Any, grad: Any) -> Any:
        """Return the gradient of the weight alone."""
        ...


class DenseLayers:
    """Small dense layers; see `minitrain.numerics.arithmetic`.

    Args:
        problem: what is trained.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def optimizer(self) -> Adam | Momentum:
        """What takes the step."""
        return self.problem.optimizer

    def load(self, layer: int, part: int, num_parts: int) -> Flat:
        """Return the initial weight of a whole layer.

        Raises:
            UsageError: it is a part that is wanted.
        """
        if num_parts > 1:
            raise UsageError(
                f"the dense layers of numerics are whole, and cannot be divided into {num_parts} parts; train a "
                'transformer, as in workload="tiny"',
                part=part,
            )
        return Flat(placed(self.problem.initial_weight(layer).ravel(), self.problem))

    def positions(self, shards: Iterable[int], num_shards: int) -> None:
        """Require a whole sequence: a sample is one row.

        Raises:
            UsageError: it is cut.
        """
        if len(list(shards)) < num_shards:
            raise UsageError(
                f"the dense layers of numerics have one row a sample, which cannot be cut into {num_shards} shards of "
                'a sequence; train a transformer, as in workload="tiny"',
                num_shards=num_shards,
            )

    def inputs(self, samples: Iterable[int], global_batch_size: int, positions: Any = None) -> Rows:  # noqa: ARG002
        """Return the inputs of some samples."""
        return Rows(placed(_rows_of(self.problem.inputs(global_batch_size), samples), self.problem))

    def forward(self, layer: int, inp: Any, x: Rows, weight: Flat, global_batch_size: int) -> Rows:  # noqa: ARG002
        """Return what a layer makes of its input."""
        return Rows(arithmetic.forward(x.values, self._matrix(weight)))

    def loss(self, output: Rows, samples: Iterable[int], global_batch_size: int) -> Rows:
        """Return the gradient of the loss."""
        targets = _rows_of(self.problem.targets(global_batch_size), samples)
        return Rows(arithmetic.loss_gradient(output.values, targets, global_batch_size))

    def backward(self, layer: int, inp: Any, x: Rows, grad: Rows, weight: Flat) -> tuple[Flat, Rows]:
        """Return the gradients of weight and input."""
        return self.backward_weight(layer, inp, x, grad), self.backward_input(layer, inp, x, grad, weight)

    def backward_input(self, layer: int, inp: Any, x: Rows, grad: Rows, weight: Flat) -> Rows:  # noqa: ARG002
        """Return the gradient of the input."""
        return Rows(arithmetic.backward_input(x.values, grad.values, self._matrix(weight)))

    def backward_weight(self, layer: int, inp: Any, x: Rows, grad: Rows) -> Flat:  # noqa: ARG002
        """Return the gradient of the weight."""
        return Flat(arithmetic.backward_weight(x.values, grad.values).ravel())

    def _matrix(self, weight: Flat) -> Array:
        """Return a weight as the matrix that it is."""
        return weight.values.reshape(self.problem.width, self.problem.width)


def _rows_of(numbers: Array, samples: Iterable[int]) -> Array:
    """Return the rows of some samples, in ascending order."""
    return numbers[sorted(samples)]


def problem_of(numerics: Any, workload: Any = None) -> Problem | TransformerProblem:
    """Return the problem that `numerics` names for what is trained.

    Args:
        numerics: "numpy" for the default, or a `Problem`, of which a transformer takes seed and optimizer, or a
            `TransformerProblem`.
        workload: what is trained; dense layers unless it is a transformer.

    Raises:
        UsageError: it is something else, or of another model, or the model cannot be computed with.
    """
    if isinstance(numerics, TransformerProblem):
        return on_place(_of_workload(numerics, workload))
    problem = Problem() if isinstance(numerics, str) and numerics == "numpy" else numerics
    if not isinstance(problem, Problem):
        raise UsageError(f'numerics must be None, "numpy" or a minitrain.numerics.Problem, got {numerics!r:.80}')
    if isinstance(workload, TransformerWorkload):
        given = problem.seed, problem.optimizer
        problem = TransformerProblem(workload.model, workload.seq_len, *given, backend=problem.backend)
    return on_place(problem)


def _of_workload(problem: TransformerProblem, workload: Any) -> TransformerProblem:
    """Require that a problem is of the workload that is trained."""
    if not isinstance(workload, TransformerWorkload) or (workload.model, workload.seq_len) != (
        problem.model,
        problem.seq_len,
    ):
        raise UsageError(
            f"numerics are of {problem.model.name} with seq_len={problem.seq_len}, and the workload is "
            f"{workload!r:.80}; give the same model and length as workload= and seq_len="
        )
    return problem


def layers_of(problem: Problem | TransformerProblem, world_size: int, global_batch_size: int) -> Layers:
    """Return new layers of one rank.

    Raises:
        UsageError: so many ranks and samples are too many to compute with a transformer.
    """
    if not isinstance(problem, TransformerProblem):
        return DenseLayers(problem)
    problem.require_sizes(world_size, global_batch_size)
    return TransformerLayers(problem)
