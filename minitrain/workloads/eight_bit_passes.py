"""Passes over memory that multiplications in eight bits need: casts, and transpositions for the gradients of weights.

Hopper's matrix units take eight-bit operands in one order alone. So backward needs the input of each multiplication,
and the gradient of its result, transposed. Norms and activation functions write both in eight bits themselves. What is
left is

| what | forward | backward |
|---|---|---|
| input of what columns divide (queries, keys, values; up), whole | | transposed |
| gradient of what rows divide (output; down), whole | | transposed |
| input of the output projection | cast and transposed | |
| gradient of queries, keys and values | | cast and transposed |

Left out: scaling factors and their history; weights, whose copies are made once a step.

Source: `LayerNormLinear` and `Linear` of github.com/NVIDIA/TransformerEngine (1.x): `fp8_cast_transpose_fused`,
`fp8_transpose` of the gathered input and of the gathered gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.workloads.kernels import MemoryPass
from minitrain.workloads.shapes import Gemm

_CAST_BYTES = 4  # read in 16 bits, written in eight, and written in eight transposed
_TRANSPOSED_BYTES = 2


def eight_bit_passes(gemm: Gemm, eager: float, *, is_backward: bool, is_attention: bool) -> Iterator[MemoryPass]:
    """Yield the casts and transpositions of a multiplication in eight bits, forward or backward.

    Args:
        gemm: the multiplication, forward.
        eager: factor on the traffic.
        is_backward: which pass.
        is_attention: whether it is one of an attention's.
    """
    is_divided_by_rows = gemm.name == "output" or gemm.name.endswith("down")
    inputs, outputs = gemm.batch * gemm.m * gemm.k, gemm.batch * gemm.m * gemm.n
    if not is_backward:
        if is_attention and is_divided_by_rows:
            yield MemoryPass("cast", inputs, _CAST_BYTES * eager)
        return
    yield MemoryPass("transposition", outputs if is_divided_by_rows else inputs, _TRANSPOSED_BYTES * eager)
    if is_attention and not is_divided_by_rows:
        yield MemoryPass("cast", outputs, _CAST_BYTES * eager)
