"""Real arrays for symbolic tensors: `simulate(..., numerics="numpy")`, and the proof that a strategy trains.

Every tensor of a model with numerics carries an array, and every operation computes in float64. What is trained follows
from the workload:

- The specified one: a layer is a small dense matrix with a tanh before it, and the loss is the mean over the global
  batch of half the squared distance to a target. Widths are tiny and independent of the priced sizes.
- A transformer: every unit is computed as the model says, whole, in parts, or on shards of the sequence, down to the
  cross-entropy over a vocabulary that parts may divide. So it must be small, as the model "tiny" is.

The optimizer is Adam or SGD with momentum. Arrays change no log. Left out: dropout, tied embeddings, mixed precision,
and rounding that depends on the order of a reduction, which is always the order of the ranks.

`minitrain.prove` compares what a strategy has trained with `reference`, a single-device step that shares nothing with
it but the data.

May import: the rooms up to `run`. Open `layers` first, which gives the operations of a rank their numbers. The files:

| what | files |
|---|---|
| what is trained | `problem`: data, weights, and the arrays that tensors carry |
| parts | `partial_gradients` carry theirs, until a sum |
| what a rank computes | `layers`: dense ones by `arithmetic`, those of a transformer by `units` |
| units of a transformer | `units`, `attention` by `attention_core`, `experts`, of functions in `arithmetic` |
| the proof | `proof` (what is compared, and what must hold) |
"""

from minitrain.proof.arithmetic import Adam, Momentum
from minitrain.proof.layers import ArraysExecutor, problem_of
from minitrain.proof.problem import Problem, TransformerProblem

__all__ = ["Adam", "ArraysExecutor", "Momentum", "Problem", "TransformerProblem", "problem_of"]
