"""The five kinds of tensor that a training step handles, as symbols: which layer, which samples, which shards.

May import: `errors`, `files`. Open `kinds` first: weights, activations, their gradients and optimizer states, and the
laws by which they add, combine and shard. `placed` has the kinds of which a rank has a part (tensor, sequence, context
and expert parallelism) with `expert_load`.

`fields` lists the fields of tensors and copies tensors, also to host memory. `index_sets` keeps sets of samples and
shards shared, and says which part of a sequence something is of.
"""

from minitrain.tensors.fields import FIELDS, clone
from minitrain.tensors.kinds import (
    BLOCK_SIZE,
    BYTES_PER_ELEMENT,
    DATATYPE,
    HIDDEN_SIZE,
    KINDS,
    Activation,
    ActivationGrad,
    Gatherable,
    OptState,
    Reduceable,
    ReduceableGatherable,
    Sharded,
    Tensor,
    Weight,
    WeightGrad,
)

__all__ = [
    "BLOCK_SIZE",
    "BYTES_PER_ELEMENT",
    "DATATYPE",
    "FIELDS",
    "HIDDEN_SIZE",
    "KINDS",
    "Activation",
    "ActivationGrad",
    "Gatherable",
    "OptState",
    "Reduceable",
    "ReduceableGatherable",
    "Sharded",
    "Tensor",
    "Weight",
    "WeightGrad",
    "clone",
]
