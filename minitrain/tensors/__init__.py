"""The five kinds of tensor that a training step handles, as symbols: which layer, which samples, which shards.

May import: `errors` alone. Open `kinds` first: weights, activations, their gradients and optimizer states, and the laws
by which they add, combine and shard. `parts` has what divides a layer among ranks that compute together: parts of
weights, partial sums, and shards of a sequence. `context` has shards of a sequence that go through the whole network,
and `attention` what lies within an attention between them. `experts` has what is divided where ranks share a layer's
experts, and the copies of tokens that they exchange. `fields` lists what tensors are made of, and copies them.
`index_sets` keeps sets of samples and shards shared, `annotations` passes on what a strict or a numeric run attaches to
tensors, and `drawing` shows a tensor in a notebook.
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
