"""The five kinds of tensor that a training step handles, as symbols: which layer, which samples, which shards.

May import: `errors`, `files`. Open `kinds` first: weights, activations, their gradients and optimizer states, and the
laws by which they add, combine and shard. `placed` has the kinds of which a rank has a part (tensor, sequence, context
and expert parallelism) with `expert_load`.

`fields` lists the fields of tensors and copies tensors, also to host memory. `index_sets` keeps sets of samples and
shards shared, and says which part of a sequence something is of.
"""

from minitrain.tensors.fields import FIELDS as FIELDS
from minitrain.tensors.fields import clone as clone
from minitrain.tensors.kinds import BLOCK_SIZE as BLOCK_SIZE
from minitrain.tensors.kinds import BYTES_PER_ELEMENT as BYTES_PER_ELEMENT
from minitrain.tensors.kinds import DATATYPE as DATATYPE
from minitrain.tensors.kinds import HIDDEN_SIZE as HIDDEN_SIZE
from minitrain.tensors.kinds import KINDS as KINDS
from minitrain.tensors.kinds import Activation as Activation
from minitrain.tensors.kinds import ActivationGrad as ActivationGrad
from minitrain.tensors.kinds import Gatherable as Gatherable
from minitrain.tensors.kinds import OptState as OptState
from minitrain.tensors.kinds import Reduceable as Reduceable
from minitrain.tensors.kinds import ReduceableGatherable as ReduceableGatherable
from minitrain.tensors.kinds import Sharded as Sharded
from minitrain.tensors.kinds import Tensor as Tensor
from minitrain.tensors.kinds import Weight as Weight
from minitrain.tensors.kinds import WeightGrad as WeightGrad
