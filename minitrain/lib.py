"""The specified library: exactly its names, nothing else. Import it as `lib` to run programs written for it.

The specification is that of the course library from which minitrain descends: one dense layer as the workload, prices
by a roofline, and an event log. Elsewhere in minitrain, "specified" means what these names do by it, to the last float.
It is a file of its own, since programs name it.
"""

from minitrain.engine.dist import Barrier as Barrier
from minitrain.engine.dist import Dist as Dist
from minitrain.engine.model import Model as Model
from minitrain.machine.predictor import RuntimePredictor as RuntimePredictor
from minitrain.operations import Event as Event
from minitrain.tensors import BLOCK_SIZE as BLOCK_SIZE
from minitrain.tensors import BYTES_PER_ELEMENT as BYTES_PER_ELEMENT
from minitrain.tensors import DATATYPE as DATATYPE
from minitrain.tensors import HIDDEN_SIZE as HIDDEN_SIZE
from minitrain.tensors import Activation as Activation
from minitrain.tensors import ActivationGrad as ActivationGrad
from minitrain.tensors import Gatherable as Gatherable
from minitrain.tensors import OptState as OptState
from minitrain.tensors import Reduceable as Reduceable
from minitrain.tensors import ReduceableGatherable as ReduceableGatherable
from minitrain.tensors import Weight as Weight
from minitrain.tensors import WeightGrad as WeightGrad
