"""The specified workload: one dense H x H matrix multiplication a layer, the default of every run.

Modelled: `BLOCK_SIZE` tokens a sample, in half precision; a backward pass that costs what the forward does (as the
specification has it); an optimizer that reads and writes three arrays of the weight's size. Left out: attention,
biases, normalisation, activation functions, embeddings.

The size constants come from `minitrain.tensors`, because the specification has tensors with a `memory()` of their own.
Only tensors, this file and `minitrain.lib` may use them: all other code asks the run's workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
from minitrain.tensors.context import CONTEXT_KINDS
from minitrain.tensors.parts import PARTED_KINDS
from minitrain.workloads.workload import USUAL, Cost, PassMode

if TYPE_CHECKING:
    from minitrain.workloads.kernels import KernelList
    from minitrain.workloads.unit_kernels import Style

_COMPUTE_SHARES: Mapping[str, float] = MappingProxyType(
    {"forward": 1.0, "backward": 1.0, "backward_input": 0.5, "backward_weight": 0.5}
)

_DIVIDED = frozenset((*PARTED_KINDS, *CONTEXT_KINDS))


class MatmulLayer:
    """Layers that each multiply by one `HIDDEN_SIZE` x `HIDDEN_SIZE` matrix."""

    datatype = DATATYPE
    bytes_per_element = BYTES_PER_ELEMENT
    is_uniform = True
    tokens_per_sample = BLOCK_SIZE

    def max_shards(self, layer: int) -> int:  # noqa: ARG002  (all layers are alike)
        """Return the rows of a matrix."""
        return HIDDEN_SIZE

    def has_attention(self, layer: int) -> bool:  # noqa: ARG002
        """Return False: tokens do not depend on one another."""
        return False

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:  # noqa: ARG002
        """Return the cost of a pass: 2 H^2 flop a token, and weight, input and output moved once. The loss is free."""
        if typ == "loss":
            return Cost(0, 0)
        tokens = num_samples * BLOCK_SIZE // (mode.context.degree if mode.context else 1)
        rows = HIDDEN_SIZE // mode.num_parts  # a part takes some columns of the input and makes a sum of all outputs
        return Cost(
            2 * HIDDEN_SIZE * rows * tokens,
            BYTES_PER_ELEMENT * (HIDDEN_SIZE * rows + tokens * (rows + HIDDEN_SIZE)),
            _COMPUTE_SHARES[typ],
        )

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> Cost:  # noqa: ARG002
        """Return the cost of an optimizer step: one flop and three arrays of traffic an element."""
        rows = HIDDEN_SIZE // num_parts * num_shards_on_device // num_shards
        return Cost(HIDDEN_SIZE * rows, BYTES_PER_ELEMENT * 3 * HIDDEN_SIZE * rows)

    def first_like(self, layer: int) -> int:  # noqa: ARG002
        """Return 0: all layers are alike."""
        return 0

    def pass_kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:  # noqa: ARG002
        """Return the matrix multiplication of a pass; half a backward makes half of the columns. The loss is free."""
        from minitrain.workloads.kernels import KernelList, Matmul  # noqa: PLC0415  (only where kernels are priced)

        if typ == "loss":
            return KernelList()
        columns = int(HIDDEN_SIZE // mode.num_parts * _COMPUTE_SHARES[typ])
        datatype = style.datatype or DATATYPE
        return KernelList((Matmul(num_samples * BLOCK_SIZE, columns, HIDDEN_SIZE, datatype=datatype),), 1)

    def update_kernels(
        self,
        num_shards_on_device: int,
        num_shards: int,
        layer: int,
        num_parts: int,
        style: Style,  # noqa: ARG002
    ) -> KernelList:
        """Return an optimizer step as one kernel over three arrays."""
        from minitrain.workloads.kernels import KernelList, MemoryPass  # noqa: PLC0415

        traffic = self.update_cost(num_shards_on_device, num_shards, layer, num_parts).traffic_bytes
        return KernelList((MemoryPass("update", int(traffic), 1),), 1)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> int:  # noqa: ARG002
        """Return the bytes of some shards of a weight."""
        return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE // num_parts * num_shards_on_device // num_shards)

    def common_bytes(self, weight_grad: Any) -> int:  # noqa: ARG002  (a Workload's parameter)
        """Return 0: parts have no row of the matrix in common."""
        return 0

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        kind = tensor.__class__  # isinstance is slow for classes that derive from a Protocol
        if kind is Activation or kind is ActivationGrad:
            num_samples: int = len(tensor.samples)
            return HIDDEN_SIZE * BLOCK_SIZE * num_samples * BYTES_PER_ELEMENT
        if kind is Weight or kind is WeightGrad:
            return HIDDEN_SIZE * HIDDEN_SIZE * BYTES_PER_ELEMENT
        if kind is OptState:
            num_shards: int = tensor.num_shards
            return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE // num_shards)
        if kind in _DIVIDED:
            return _parted_bytes(tensor)
        raise TensorTypeError(
            "only a Weight, WeightGrad, OptState, Activation or ActivationGrad can be communicated, "
            f"got {type(tensor).__name__} ({tensor!r:.80})",
            value=tensor,
        )

    def memory_elements(self, tensor: Any) -> float:
        """Return the tensor's own `memory()`."""
        return tensor.memory()  # type: ignore[no-any-return]  # anything with a memory() may be stored

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return the size of a layer's input, which is all that its backward needs."""
        return num_samples * HIDDEN_SIZE * BLOCK_SIZE

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return 0: a layer keeps its input, and computes nothing again."""
        return 0

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return 4 H^2 flop a token and layer: 2 H^2 forward and 2 H^2 backward."""
        return 4 * HIDDEN_SIZE * HIDDEN_SIZE * BLOCK_SIZE * num_samples * num_layers


def _parted_bytes(tensor: Any) -> int:
    """Return the bytes on the wire of a part, which counts whole, of a partial sum, or of a shard of a sequence."""
    num_parts: int = getattr(tensor, "num_parts", 1)
    if isinstance(tensor, Weight | WeightGrad):
        return HIDDEN_SIZE * HIDDEN_SIZE // num_parts * BYTES_PER_ELEMENT
    if isinstance(tensor, OptState):
        return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE // num_parts // tensor.num_shards)
    return BYTES_PER_ELEMENT * int(tensor.memory())


MATMUL_LAYER = MatmulLayer()
