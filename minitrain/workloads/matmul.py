"""Layers of one square matrix: the specified workload, the default of every run, the dense one, and rows of any width.

**`MatmulLayer`** is the specified one, `BLOCK_SIZE` tokens a sample, in half precision; its optimizer reads and writes
three arrays of the weight's size. Its backward costs what its forward does, 4 H^2 flop a token for both.
**`DenseLayer`** ("dense") makes the gradients of its input and of its weight by a multiplication each: 6 H^2, as real
layers do. Left out: attention, biases, normalisation, activation functions, embeddings.

The size constants come from `minitrain.tensors`, because the specification has tensors with a `memory()` of their own.
Only tensors, this file and `minitrain.lib` may use them: all other code asks the run's workload.

**`DenseRows`** are dense layers of any width on one row a sample: what real processes train where no transformer is
given. A layer is y = tanh(x) W with a W x W matrix; forward multiplies once, backward twice. An optimizer holds two
moments a weight, and a step reads and writes weight and moments, and reads the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minitrain.errors import UsageError
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
from minitrain.tensors.compressed import COMPRESSED_KINDS, Shapes
from minitrain.tensors.kinds import KINDS, OuterState
from minitrain.tensors.placed import PLACED_KINDS
from minitrain.workloads.workload import (
    USUAL,
    WEIGHT_PASSES,
    AlikeLayers,
    Cost,
    PassMode,
    Style,
    cost_of_weight_pass,
    held_compressed_bytes,
    other_message_bytes,
)

if TYPE_CHECKING:
    from minitrain.workloads.kernels import KernelList

SPECIFIED, DENSE = "specified", "dense"

NOTES: Mapping[str, str] = MappingProxyType(
    {SPECIFIED: "backward counts as many FLOPs as forward, as specified (--model dense: twice)"}
)
"""What a reader of figures should know of a workload, by its name."""


class MatmulLayer(AlikeLayers):
    """Layers that each multiply by one `HIDDEN_SIZE` x `HIDDEN_SIZE` matrix.

    Attributes:
        name: what runs call it.
        compute_shares: how often a pass multiplies by the matrix.
        flop_per_weight: floating-point operations of a training step for each weight and token.
    """

    __slots__ = ("__weakref__",)  # all runs share one, and strategies can reach it

    name = SPECIFIED
    compute_shares: Mapping[str, float] = MappingProxyType(
        {"forward": 1.0, "backward": 1.0, "backward_input": 0.5, "backward_weight": 0.5}
    )
    flop_per_weight = 4
    datatype = DATATYPE
    bytes_per_element = gradient_bytes = BYTES_PER_ELEMENT
    tokens_per_sample = BLOCK_SIZE

    def max_shards(self, layer: int) -> int:  # noqa: ARG002  (all layers are alike)
        """Return the rows of a matrix."""
        return HIDDEN_SIZE

    def matrices(self, layer: int) -> Shapes:  # noqa: ARG002
        """Return the shapes of a layer's weights that train: one matrix."""
        return ((HIDDEN_SIZE, HIDDEN_SIZE),)

    def has_attention(self, layer: int) -> bool:  # noqa: ARG002
        """Return False: tokens do not depend on one another."""
        return False

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:
        """Return the cost of a pass: 2 H^2 flop a token, and weight, input and output moved once. The loss is free."""
        if typ == "loss":
            return Cost(0, 0)
        if typ in WEIGHT_PASSES:
            return cost_of_weight_pass(self, typ, layer, mode)
        tokens = num_samples * BLOCK_SIZE // (mode.context.degree if mode.context else 1)
        rows = HIDDEN_SIZE // mode.num_parts  # a part takes some columns of the input and makes a sum of all outputs
        return Cost(
            2 * HIDDEN_SIZE * rows * tokens,
            BYTES_PER_ELEMENT * (HIDDEN_SIZE * rows + tokens * (rows + HIDDEN_SIZE)),
            self.compute_shares[typ],
        )

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> Cost:  # noqa: ARG002
        """Return the cost of an optimizer step: one flop and three arrays of traffic an element."""
        rows = HIDDEN_SIZE // num_parts * num_shards_on_device // num_shards
        return Cost(HIDDEN_SIZE * rows, BYTES_PER_ELEMENT * 3 * HIDDEN_SIZE * rows)

    def pass_kernels(self, typ: str, num_samples: int, layer: int, mode: PassMode, style: Style) -> KernelList:
        """Return the matrix multiplications of a pass; half of one makes half of the columns. The loss is free."""
        from minitrain.workloads.kernels import KernelList, Matmul, kernels_of_weight_pass  # noqa: PLC0415  (only where it is priced)

        if typ == "loss":
            return KernelList()
        if typ in WEIGHT_PASSES:
            return kernels_of_weight_pass(self, typ, layer, mode, style.datatype or DATATYPE)
        share, datatype = self.compute_shares[typ], style.datatype or DATATYPE
        columns = int(HIDDEN_SIZE // mode.num_parts * min(share, 1))
        one = KernelList((Matmul(num_samples * BLOCK_SIZE, columns, HIDDEN_SIZE, datatype=datatype),), 1)
        return one + one if share == 2 else one

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

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        kind = tensor.__class__  # isinstance is slow for classes that derive from a Protocol
        if kind is Activation or kind is ActivationGrad:
            num_samples: int = len(tensor.samples)
            return HIDDEN_SIZE * BLOCK_SIZE * num_samples * BYTES_PER_ELEMENT
        if kind is Weight or kind is WeightGrad:
            return HIDDEN_SIZE * HIDDEN_SIZE * BYTES_PER_ELEMENT
        if kind in COMPRESSED_KINDS or not isinstance(tensor, KINDS):
            return other_message_bytes(self, tensor)
        return _parted_bytes(tensor)

    def memory_elements(self, tensor: Any) -> float:
        """Return the tensor's own `memory()`."""
        if tensor.__class__ in COMPRESSED_KINDS:
            return held_compressed_bytes(self, tensor) / BYTES_PER_ELEMENT
        return tensor.memory()  # type: ignore[no-any-return]  # anything with a memory() may be stored

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return the size of a layer's input, which is all that its backward needs."""
        return num_samples * HIDDEN_SIZE * BLOCK_SIZE

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return 4 H^2 flop a token and layer, 2 H^2 forward and 2 H^2 backward; of the dense layer 6 H^2."""
        return self.flop_per_weight * HIDDEN_SIZE * HIDDEN_SIZE * BLOCK_SIZE * num_samples * num_layers


class DenseLayer(MatmulLayer):
    """The same layers with a backward of two multiplications: one for the input's gradient, one for the weight's."""

    __slots__ = ()

    name = DENSE
    compute_shares: Mapping[str, float] = MappingProxyType(
        {"forward": 1.0, "backward": 2.0, "backward_input": 1.0, "backward_weight": 1.0}
    )
    flop_per_weight = 6


def _parted_bytes(tensor: Any) -> int:
    """Return the bytes on the wire of a part, which counts whole, of a partial sum, or of a shard of a sequence."""
    num_parts: int = tensor.num_parts
    if isinstance(tensor, Weight | WeightGrad):
        return HIDDEN_SIZE * HIDDEN_SIZE // num_parts * BYTES_PER_ELEMENT
    if isinstance(tensor, OptState):
        return BYTES_PER_ELEMENT * (HIDDEN_SIZE * HIDDEN_SIZE // num_parts // tensor.num_shards)
    return BYTES_PER_ELEMENT * int(tensor.memory())


MATMUL_LAYER, DENSE_LAYER = MatmulLayer(), DenseLayer()


_MATMULS = {"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1}
_ROWS = "rows"
_BYTES = 4
_MOMENTS = 2
_UPDATE_PASSES = 7  # weight and two moments, there and back, and the gradient


@dataclass(frozen=True, slots=True)
class DenseRows(AlikeLayers):
    """Dense layers.

    Args:
        width: features of every layer.
        bytes_per_element: of weights, activations and moments.
    """

    width: int
    bytes_per_element: int = _BYTES

    datatype = MATMUL_LAYER.datatype  # whose rates every hardware config has
    tokens_per_sample = 1

    @classmethod
    def named(cls, text: str) -> DenseRows | None:
        """Return the workload of a name, "rows:512" or "rows:512:8" with bytes of an element; None of another name.

        Raises:
            UsageError: the numbers are none.
        """
        kind, _, sizes = text.partition(":")
        if kind != _ROWS:
            return None
        numbers = [int(each) if each.isascii() and each.isdigit() else 0 for each in sizes.split(":")]
        if len(numbers) > 2 or min(numbers) < 1 or len(sizes) > 20:
            raise UsageError(f'dense layers are named by their width, "rows:512", got {text!r:.80}', workload=text)
        return cls(*numbers)

    @property
    def name(self) -> str:
        """What commands and tables call it."""
        return f"{_ROWS}:{self.width}" + (f":{self.bytes_per_element}" if self.bytes_per_element != _BYTES else "")

    def max_shards(self, layer: int) -> int:  # noqa: ARG002  (all layers are alike)
        """Return the rows of a matrix."""
        return self.width

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient."""
        return self.bytes_per_element

    def matrices(self, layer: int) -> Shapes:  # noqa: ARG002
        """Return the shapes of a layer's weights that train: one matrix."""
        return ((self.width, self.width),)

    def has_attention(self, layer: int) -> bool:  # noqa: ARG002
        """Return False: rows do not depend on one another."""
        return False

    def compute_cost(self, typ: str, num_samples: int, layer: int, mode: PassMode = USUAL) -> Cost:
        """Return the cost of a pass: 2 W^2 flop a row and multiplication. The loss is free."""
        if typ == "loss":
            return Cost(0, 0)
        if typ in WEIGHT_PASSES:
            return cost_of_weight_pass(self, typ, layer, mode)
        elements = self.width * (self.width + 2 * num_samples)
        work_flop = 2 * self.width * self.width * num_samples
        return Cost(work_flop, self.bytes_per_element * elements, _MATMULS[typ])

    def update_cost(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> Cost:  # noqa: ARG002
        """Return the cost of Adam: a dozen flop an element, seven arrays of traffic."""
        elements = self.width * self.width * num_shards_on_device // num_shards
        return Cost(12 * elements, self.bytes_per_element * _UPDATE_PASSES * elements)

    def load_bytes(self, num_shards_on_device: int, num_shards: int, layer: int, num_parts: int = 1) -> int:  # noqa: ARG002
        """Return the bytes of some shards of a weight."""
        return self.bytes_per_element * (self.width * self.width * num_shards_on_device // num_shards)

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        if tensor.__class__ in COMPRESSED_KINDS or not isinstance(tensor, KINDS):
            return other_message_bytes(self, tensor)
        held = self.memory_elements(tensor)
        elements = self.width * self.width if isinstance(tensor, Weight | WeightGrad) else int(held)
        return self.bytes_per_element * elements

    def memory_elements(self, tensor: Any) -> float:
        """Return the size of a tensor, elements.

        Raises:
            UsageError: it is of a part of a layer, of a sequence or of experts.
        """
        if tensor.__class__ in PLACED_KINDS:
            raise UsageError(
                f"dense layers are whole, as are their rows, and {type(tensor).__name__} is of a part; leave out what "
                'divides layers, sequences or experts, or train a transformer, such as workload="tiny"'
            )
        if isinstance(tensor, Activation | ActivationGrad):
            return len(tensor.samples) * self.width
        if tensor.__class__ in COMPRESSED_KINDS:
            return held_compressed_bytes(self, tensor) / self.bytes_per_element
        moments = _MOMENTS if isinstance(tensor, OptState) and not isinstance(tensor, OuterState) else 1
        return moments * self.width * self.width * len(tensor.shards) / tensor.num_shards  # type: ignore[no-any-return]

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return the size of a layer's input."""
        return num_samples * self.width

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return 6 W^2 flop a row and layer."""
        return 6 * self.width * self.width * num_samples * num_layers
