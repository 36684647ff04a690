"""What the simulator asks of a trained model: what its layers cost, and how large their tensors are.

A workload is any object with the methods of `Workload`. It knows no hardware: a predictor makes seconds of its FLOPs
and bytes. The default is `minitrain.workloads.matmul`.
"""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation asks of the processor and of its memory.

    Args:
        work_flop: floating-point operations.
        traffic_bytes: bytes read and written.
        share: the share of that cost which the operation pays (1/2 for each half of a split backward).
    """

    work_flop: float
    traffic_bytes: float
    share: float = 1.0


class Workload(Protocol):
    """What the simulator asks of a trained model: the cost of an operation on a layer, and the size of a tensor.

    A tensor knows its layer, so that sizes may differ between layers too: an `Activation` of layer k is the input of
    layer k and the output of layer k - 1, and an `ActivationGrad` of layer k belongs to the output of layer k.

    Attributes:
        datatype: the key of the hardware config's rates that apply.
        bytes_per_element: size of an element.
        is_uniform: whether all layers cost the same and hold tensors of the same sizes, so that the output of a layer
            is as large as its input. Prices and sizes are then remembered for all layers together.
        max_shards: the most shards that any layer can be cut into: its rows, since what is less than a row would cost
            nothing.
    """

    datatype: str
    bytes_per_element: int
    is_uniform: bool
    max_shards: int

    def compute_cost(self, typ: str, num_samples: int, layer: int) -> Cost:
        """Return the cost of forward, loss, backward, backward_input or backward_weight for some samples.

        The loss is of layer `num_layers`, one after the last.
        """
        ...

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int) -> Cost:
        """Return the cost of an optimizer step on some shards of a layer."""
        ...

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int) -> int:
        """Return the bytes read from storage to load some shards of a layer."""
        ...

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes that a tensor puts on the wire."""
        ...

    def memory_elements(self, tensor: Any) -> float:
        """Return the elements that a tensor holds in memory."""
        ...

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return the floating-point operations that one training step has to do, summed over its layers."""
        ...
