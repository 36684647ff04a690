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
    """What the simulator asks of a trained model's layer."""

    datatype: str
    bytes_per_element: int
    max_shards: int
    """The most shards that a layer can be cut into: its rows, since what is less than a row would cost nothing."""

    def compute_cost(self, typ: str, num_samples: int) -> Cost:
        """Return the cost of forward, backward, backward_input or backward_weight for some samples."""
        ...

    def update_cost(self, num_shards_on_device: int, num_shards: int) -> Cost:
        """Return the cost of an optimizer step on some shards of a layer."""
        ...

    def load_bytes(self, num_shards_on_device: int, num_shards: int) -> int:
        """Return the bytes read from storage to load some shards of a layer."""
        ...

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes that a tensor puts on the wire."""
        ...

    def memory_elements(self, tensor: Any) -> float:
        """Return the elements that a tensor holds in memory."""
        ...

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return the floating-point operations that one training step has to do."""
        ...


_COMPUTE_SHARES: Mapping[str, float] = MappingProxyType(
    {"forward": 1.0, "backward": 1.0, "backward_input": 0.5, "backward_weight": 0.5}
)


class MatmulLayer:
    """The specified workload: each layer multiplies by one `HIDDEN_SIZE` x `HIDDEN_SIZE` matrix."""

    datatype = DATATYPE
    bytes_per_element = BYTES_PER_ELEMENT
    max_shards = HIDDEN_SIZE

    def compute_cost(self, typ: str, num_samples: int) -> Cost:
        """Return the cost of one pass: 2 H^2 flop a token, and weight, input and output moved once."""
        tokens = num_samples * BLOCK_SIZE
        return Cost(
            2 * HIDDEN_SIZE * HIDDEN_SIZE * tokens,
            BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE + 2 * tokens * HIDDEN_SIZE),
            _COMPUTE_SHARES[typ],
        )

    def update_cost(self, num_shards_on_device: int, num_shards: int) -> Cost:
        """Return the cost of an optimizer step: one flop and three arrays of traffic an element."""
        rows = HIDDEN_SIZE * num_shards_on_device // num_shards
        return Cost(HIDDEN_SIZE * rows, BYTES_PER_ELEMENT * 3 * HIDDEN_SIZE * rows)

    def load_bytes(self, num_shards_on_device: int, num_shards: int) -> int:
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
