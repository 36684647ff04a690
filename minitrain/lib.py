"""The specified library: exactly its names, nothing else. Import it as `lib` to run programs written for it.

The specification is that of the course library from which minitrain descends: one dense layer as the workload, prices
by a roofline, and an event log. Elsewhere in minitrain, "specified" means what these names do by it, to the last float.
"""

from minitrain.engine.dist import Barrier, Dist
from minitrain.engine.model import Model
from minitrain.machine.predictor import RuntimePredictor
from minitrain.operations import Event
from minitrain.tensors import (
    BLOCK_SIZE,
    BYTES_PER_ELEMENT,
    DATATYPE,
    HIDDEN_SIZE,
    Activation,
    ActivationGrad,
    Gatherable,
    OptState,
    Reduceable,
    ReduceableGatherable,
    Weight,
    WeightGrad,
)

__all__ = [
    "BLOCK_SIZE",
    "BYTES_PER_ELEMENT",
    "DATATYPE",
    "HIDDEN_SIZE",
    "Activation",
    "ActivationGrad",
    "Barrier",
    "Dist",
    "Event",
    "Gatherable",
    "Model",
    "OptState",
    "Reduceable",
    "ReduceableGatherable",
    "RuntimePredictor",
    "Weight",
    "WeightGrad",
]
