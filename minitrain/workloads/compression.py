"""What compressed gradients cost and hold: bytes on the wire and in memory, passes through memory, multiplications.

Compressors say what they send and keep of weights of given shapes (`minitrain.tensors.compressed`); a workload says the
shapes (`matrices`) and the bytes of a gradient's element. Quantising, selecting and adding errors are limited by
memory. PowerSGD multiplies each matrix by a factor three times, and makes the first factor's columns orthonormal: 2 n
r^2 FLOPs by the Gram-Schmidt procedure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any, final

from minitrain.errors import TensorTypeError
from minitrain.tensors.compressed import ApproximateGrad, CompressedGrad, Compressor, PowerSGD, Shapes

COMPRESSING = ("compress", "second_factor", "decompress")
"""The computations of compression."""


@final
@dataclass(frozen=True, slots=True)
class Packing:
    """What is compressed, or made of messages.

    Args:
        how: the compressor.
        members: messages that are read.
        share: of the layer that the rank works on.
    """

    how: Compressor
    members: int = 1
    share: float = 1.0


def traffic_of(workload: Any, typ: str, layer: int, packing: Packing) -> int:
    """Return the bytes that a computation of compression reads and writes, but for its multiplications."""
    shapes: Shapes = workload.matrices(layer)
    element_bytes: int = workload.gradient_bytes
    elements = ceil(sum(map(prod, shapes)) * packing.share)
    phase = int(isinstance(packing.how, PowerSGD) and typ != "compress")
    message = packing.how.message_bytes(shapes, packing.share, element_bytes, phase)
    return packing.how.element_passes(typ) * elements * element_bytes + packing.members * message


def multiplications(workload: Any, typ: str, layer: int, packing: Packing) -> list[tuple[int, int, int, int]]:
    """Return the multiplications of a computation of compression: each as m, n, k and how many alike."""
    how = packing.how
    if not isinstance(how, PowerSGD):
        return []
    found = []
    for shape in filter(how.takes, workload.matrices(layer)):
        batch, (n, m) = prod(shape[:-2]), shape[-2:]
        rows, columns, inner = {"compress": (n, how.rank, m), "second_factor": (m, how.rank, n)}.get(
            typ, (n, m, how.rank)
        )
        found.append((rows, columns, inner, batch))
    return found


def flop_of(typ: str, sizes: list[tuple[int, int, int, int]]) -> int:
    """Return the FLOPs of a computation of compression that has some multiplications."""
    flop = sum(2 * m * n * k * batch for m, n, k, batch in sizes)
    if typ == "second_factor":  # and the columns of the first factor are made orthonormal
        flop += sum(2 * k * n * n * batch for _, n, k, batch in sizes)
    return flop


def message_bytes(workload: Any, tensor: Any) -> int:
    """Return the bytes on the wire of messages, or of an approximate gradient.

    Raises:
        TensorTypeError: a rank's own state of compression, which no other can use.
    """
    if isinstance(tensor, CompressedGrad):
        return held_bytes(workload, tensor)
    if isinstance(tensor, ApproximateGrad):
        return int(workload.gradient_bytes * sum(map(prod, workload.matrices(tensor.layer))))
    raise TensorTypeError(
        f"a {type(tensor).__name__} is its own rank's and cannot be communicated; communicate what compress returns",
        value=tensor,
    )


def held_bytes(workload: Any, tensor: Any) -> int:
    """Return the bytes in memory of messages, of an approximate gradient, or of a state of compression."""
    shapes: Shapes = workload.matrices(tensor.layer)
    element_bytes: int = workload.gradient_bytes
    share: float = len(tensor.shards) / tensor.num_shards
    elements = element_bytes * ceil(sum(map(prod, shapes)) * share)
    if isinstance(tensor, ApproximateGrad):
        return elements
    if isinstance(tensor, CompressedGrad):
        members: int = tensor.members
        return members * tensor.how.message_bytes(shapes, share, element_bytes, tensor.phase)
    state_how: Compressor = tensor.how
    return elements * state_how.feedback + state_how.factor_bytes(shapes, element_bytes)
