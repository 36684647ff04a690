"""Real numbers behind the symbols: `simulate(..., numerics="numpy")`, and the proof that a strategy trains.

Every tensor of a model with numerics carries an array, and every operation computes: a layer is a small dense matrix
with a tanh before it, the loss the mean over the global batch of half the squared distance to a target, the optimizer
Adam or SGD with momentum, all in float64. Widths are tiny and have nothing to do with the priced sizes, so that numbers
cost little and change no log. Left out: biases, mixed precision, rounding that depends on the order of a reduction (it
is always the order of the ranks).

`minitrain.prove` compares what a strategy has trained with `minitrain.numerics.reference`, a single-device step that
shares nothing with it but the data.
"""

from minitrain.numerics.arithmetic import Adam, Momentum
from minitrain.numerics.model import NumericModel
from minitrain.numerics.problem import Problem, problem_of

__all__ = ["Adam", "Momentum", "NumericModel", "Problem", "problem_of"]
