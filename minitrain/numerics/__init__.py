"""Real arrays for symbolic tensors: `simulate(..., numerics="numpy")`, and the proof that a strategy trains.

Every tensor of a model with numerics carries an array, and every operation computes in float64. A layer is a small
dense matrix with a tanh before it. The loss is the mean over the global batch of half the squared distance to a target.
The optimizer is Adam or SGD with momentum. Widths are tiny and independent of the priced sizes, so that the arithmetic
costs little and does not change a log. Left out: biases, mixed precision, and rounding that depends on the order of a
reduction, which is always the order of the ranks.

`minitrain.prove` compares what a strategy has trained with `reference`, a single-device step that shares nothing with
it but the data.

May import: the rooms up to `run`. Open `model` first, which extends the operations of a rank; `arithmetic` is what they
compute, and `proof` the comparison.
"""

from minitrain.numerics.arithmetic import Adam, Momentum
from minitrain.numerics.model import NumericModel
from minitrain.numerics.problem import Problem, problem_of

__all__ = ["Adam", "Momentum", "NumericModel", "Problem", "problem_of"]
