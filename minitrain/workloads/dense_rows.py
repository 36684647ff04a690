"""Dense layers of any width on one row a sample: what real processes train where no transformer is given.

A layer is y = tanh(x) W with a W x W matrix; forward multiplies once, backward twice. An optimizer holds two moments a
weight, and a step reads and writes weight and moments, and reads the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from minitrain.errors import TensorTypeError, UsageError
from minitrain.tensors import Activation, ActivationGrad, OptState, Weight, WeightGrad
from minitrain.tensors.compressed import COMPRESSED_KINDS, Shapes
from minitrain.tensors.placed import PLACED_KINDS
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.workload import (
    USUAL,
    WEIGHT_PASSES,
    Cost,
    PassMode,
    compressed_message_bytes,
    cost_of_weight_pass,
    held_compressed_bytes,
)

_MATMULS = {"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1}
_ROWS = "rows"
_BYTES = 4
_MOMENTS = 2
_UPDATE_PASSES = 7  # weight and two moments, there and back, and the gradient


@final
@dataclass(frozen=True, slots=True)
class DenseRows:
    """Dense layers.

    Args:
        width: features of every layer.
        bytes_per_element: of weights, activations and moments.
    """

    width: int
    bytes_per_element: int = _BYTES

    datatype = MATMUL_LAYER.datatype  # whose rates every hardware config has
    is_uniform = True
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

    def first_like(self, layer: int) -> int:  # noqa: ARG002
        """Return 0: all layers are alike."""
        return 0

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

    def common_bytes(self, weight_grad: Any) -> int:  # noqa: ARG002
        """Return 0: layers are not divided into parts."""
        return 0

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire; a weight or its gradient counts whole, however it is sharded."""
        if tensor.__class__ in (Weight, WeightGrad):
            return self.bytes_per_element * self.width * self.width
        if tensor.__class__ in (OptState, Activation, ActivationGrad):
            return self.bytes_per_element * int(self.memory_elements(tensor))
        if tensor.__class__ in COMPRESSED_KINDS:
            return compressed_message_bytes(self, tensor)
        raise TensorTypeError(
            "dense rows are sent as a Weight, WeightGrad, OptState, Activation or ActivationGrad, "
            f"got {type(tensor).__name__} ({tensor!r:.80})",
            value=tensor,
        )

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
        if tensor.__class__ in (Activation, ActivationGrad):
            return len(tensor.samples) * self.width
        if tensor.__class__ in COMPRESSED_KINDS:
            return held_compressed_bytes(self, tensor) / self.bytes_per_element
        moments = _MOMENTS if tensor.__class__ is OptState else 1
        return moments * self.width * self.width * len(tensor.shards) / tensor.num_shards  # type: ignore[no-any-return]

    def kept_elements(self, layer: int, num_samples: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return the size of a layer's input."""
        return num_samples * self.width

    def recomputed_flop(self, num_samples: int, layer: int, mode: PassMode) -> float:  # noqa: ARG002
        """Return 0: nothing is computed again."""
        return 0

    def training_flop(self, num_samples: int, num_layers: int) -> float:
        """Return 6 W^2 flop a row and layer."""
        return 6 * self.width * self.width * num_samples * num_layers
