"""The specified library: exactly its names, nothing else. Import it as `lib` to run programs written for it."""

from minitrain.events import Event
from minitrain.hardware.predictor import RuntimePredictor
from minitrain.rank.model import Model
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
from minitrain.transport.barrier import Barrier
from minitrain.transport.dist import Dist

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
