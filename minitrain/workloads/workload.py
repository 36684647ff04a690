"""What one layer of the trained model costs: arithmetic, memory traffic, and the sizes of its tensors.

Modelled: one dense H x H matrix multiplication a layer over `BLOCK_SIZE` tokens a sample, in half precision; a
backward pass that costs what the forward does (as the specification has it); an optimizer that reads and writes three
arrays of the weight's size. Left out: attention, biases, normalisation, activation functions, embeddings.

Another workload (a transformer layer, say) is another object with the methods of `Workload`; nothing outside this
room and `minitrain.tensors` reads the constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from minitrain.errors import TensorTypeError
from minitrain.tensors import (
    BLOCK_SIZE,
    BYTES_PER_ELEMENT,
    DATATYPE,
    HIDDEN_SIZE,
    Activation,
    ActivationGrad,
    OptState,
    Weight,
    WeightGrad,
)


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


_COMPUTE_SHARES: Mapping[str, float] = MappingProxyType(
    {"forward": 1.0, "backward": 1.0, "backward_input": 0.5, "backward_weight": 0.5}
)


class MatmulLayer:
    """The specified workload: each layer multiplies by one `HIDDEN_SIZE` x `HIDDEN_SIZE` matrix."""

    datatype = DATATYPE
    bytes_per_element = BYTES_PER_ELEMENT
    is_uniform = True
    max_shards = HIDDEN_SIZE

    def compute_cost(self, typ: str, num_samples: int, layer: int) -> Cost:  # noqa: ARG002  (all layers are alike)
        """Return the cost of a pass: 2 H^2 flop a token, and weight, input and output moved once. The loss is free."""
        if typ == "loss":
            return Cost(0, 0)
        tokens = num_samples * BLOCK_SIZE
        return Cost(
            2 * HIDDEN_SIZE * HIDDEN_SIZE * tokens,
            BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE + 2 * tokens * HIDDEN_SIZE),
            _COMPUTE_SHARES[typ],
        )

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int) -> Cost:  # noqa: ARG002
        """Return the cost of an optimizer step: one flop and three arrays of traffic an element."""
        rows = HIDDEN_SIZE * num_shards_on_device // num_shards
        return Cost(HIDDEN_SIZE * rows, BYTES_PER_ELEMENT * 3 * HIDDEN_SIZE * rows)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int) -> int:  # noqa: ARG002
        """Return the bytes of some shards of a weight."""
        return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE * num_shards_on_device // num_shards)

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        kind = tensor.__class__  # not isinstance, which takes a protocol's long way for what can be gathered
        if kind is Activation or kind is ActivationGrad:
            num_samples: int = len(tensor.samples)
            return HIDDEN_SIZE * BLOCK_SIZE * num_samples * BYTES_PER_ELEMENT
        if kind is Weight or kind is WeightGrad:
            return HIDDEN_SIZE * HIDDEN_SIZE * BYTES_PER_ELEMENT
        if kind is OptState:
            num_shards: int = tensor.num_shards
            return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE // num_shards)
        raise TensorTypeError(
            "only a Weight, WeightGrad, OptState, Activation or ActivationGrad can be communicated, "
            f"got {type(tensor).__name__} ({tensor!r:.80})",
            value=tensor,
        )

    def memory_elements(self, tensor: Any) -> float:
        """Return the tensor's own `memory()`."""
        return tensor.memory()  # type: ignore[no-any-return]  # anything with a memory() may be stored

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return 4 H^2 flop a token and layer: 2 H^2 forward and 2 H^2 backward."""
        return 4 * HIDDEN_SIZE * HIDDEN_SIZE * BLOCK_SIZE * num_samples * num_layers


MATMUL_LAYER = MatmulLayer()
